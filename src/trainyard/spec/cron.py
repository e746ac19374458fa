"""Times by the clock, as cron writes them: five fields, names, ranges, steps, and the next moment that they mean. Pure.

Fields are local times of a time zone. A time that a change of clocks skips is kept at the same distance after it; one that comes
twice is taken once, unless every hour is meant: then each real hour counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from trainyard.lib.errors import InvalidError

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LONGEST = 120
# The 29th of February skips 1900, 2100 …: eight years to the next one at most.
MOST_DAYS = 8 * 366 + 2
# Clocks are changed by less than this.
CHANGE = timedelta(hours=3)
_PART = re.compile(r"(\*|\?|[a-z]{3}|\d{1,2})(?:-([a-z]{3}|\d{1,2}))?(?:/(\d{1,3}))?\Z")


@dataclass(frozen=True, slots=True)
class Cron:
    """The moments that five fields mean."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0: Sunday
    either_day: bool  # day of the month or of the week, where both are given
    every_hour: bool  # the hours are a star: hours that come twice both count

    def is_day(self, day: date) -> bool:
        """Whether it has a moment on this day."""
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, (day.weekday() + 1) % 7 in self.weekdays
        return (of_month or of_week) if self.either_day else (of_month and of_week)


@lru_cache(256)
def parse_cron(text: str) -> Cron:
    """Read `minute hour day month weekday`, or a short word such as @daily."""
    if len(text) > LONGEST:
        raise InvalidError("The times are too long.", hint=f"Write at most {LONGEST} characters.")
    fields = SHORT.get(text.strip().lower(), text.lower()).split()
    if len(fields) != 5:
        raise InvalidError(
            f"{text!r} has {len(fields)} fields, not five.",
            hint="Write minute hour day month weekday: 0 3 * * mon-fri.",
        )
    minute, hour, day, month, weekday = fields
    weekdays = {number % 7 for number in _field("weekday", weekday, 0, 7, DAYS)}
    return Cron(
        minutes=tuple(sorted(_field("minute", minute, 0, 59))),
        hours=tuple(sorted(_field("hour", hour, 0, 23))),
        days=frozenset(_field("day", day, 1, 31)),
        months=frozenset(_field("month", month, 1, 12, MONTHS, first=1)),
        weekdays=frozenset(weekdays),
        either_day=not day.startswith(("*", "?")) and not weekday.startswith(("*", "?")),
        every_hour=hour.startswith("*"),
    )


def find_timezone(name: str) -> ZoneInfo:
    """A time zone by its name: Asia/Shanghai."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidError(
            f"There is no time zone {name!r}.", hint="Name it like Asia/Shanghai or UTC."
        ) from error


def next_after(cron: Cron, after: float, zone: ZoneInfo) -> float | None:
    """The first moment after this one, as POSIX seconds; None where there is none in the next eight years."""
    local = datetime.fromtimestamp(after, zone).replace(tzinfo=None, fold=0)
    best: float | None = None
    start = local - CHANGE
    for offset in range(MOST_DAYS):
        day = start.date() + timedelta(days=offset)
        if not cron.is_day(day):
            continue
        for hour in cron.hours:
            for minute in cron.minutes:
                moment = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001  # a local time, on purpose
                if moment < start:
                    continue
                if (
                    best is not None
                    and moment > datetime.fromtimestamp(best, zone).replace(tzinfo=None) + CHANGE
                ):
                    return best
                for instant in _instants(moment, zone, twice=cron.every_hour):
                    if instant > after and (best is None or instant < best):
                        best = instant
    return best


def upcoming(text: str, zone: str, after: float, number: int) -> list[float]:
    """The next few moments."""
    cron, place = parse_cron(text), find_timezone(zone)
    found: list[float] = []
    while (
        len(found) < number and (moment := next_after(cron, found[-1] if found else after, place)) is not None
    ):
        found.append(moment)
    return found


def _instants(moment: datetime, zone: ZoneInfo, *, twice: bool) -> list[float]:
    first = moment.replace(tzinfo=zone, fold=0).astimezone(UTC).timestamp()
    if not twice:
        return [first]
    return [first, moment.replace(tzinfo=zone, fold=1).astimezone(UTC).timestamp()]


def _field(
    name: str, text: str, least: int, most: int, names: tuple[str, ...] = (), *, first: int = 0
) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.match(part)
        if match is None:
            raise _wrong(name, part)
        low, high, step = match.groups()
        if low in {"*", "?"}:
            if high:
                raise _wrong(name, part)
            begin, end = least, most
        else:
            begin = _number(name, low, names, first)
            # `5/15` is from 5 to the end, `5` is 5 alone.
            end = _number(name, high, names, first) if high else (most if step else begin)
        if step is not None and int(step) == 0:
            raise _wrong(name, part)
        if begin > end and names == DAYS:  # fri-mon
            end += 7
        if not (least <= begin <= most) or begin > end or (end > most and names != DAYS):
            raise _wrong(name, part)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def _number(name: str, text: str, names: tuple[str, ...], first: int) -> int:
    if text.isdigit():
        return int(text)
    if text not in names:
        raise _wrong(name, text)
    return names.index(text) + first


def _wrong(name: str, part: str) -> InvalidError:
    return InvalidError(
        f"{part!r} is no {name} of a cron line.",
        hint="Write numbers, names, ranges 1-5, lists 1,3 and steps */10.",
    )


__all__ = ["Cron", "find_timezone", "next_after", "parse_cron", "upcoming"]
