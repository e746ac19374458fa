"""Time as a parameter: code that waits or stamps takes a Clock; tests turn a ManualClock."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

MOST_NAMES = 1000


class Clock(Protocol):
    """What code may ask of time."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass, and others run."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never step back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for real."""
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until it is told; `sleep` moves it."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed = 0.0

    def now(self) -> datetime:
        """The time it was set to."""
        return self._now

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)
        self._elapsed += seconds

    def step(self, seconds: float) -> None:
        """Set the time ahead or back, as people and time servers do; no time has passed."""
        self._now += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        """Pass the time at once, but let others run."""
        self.advance(seconds)
        await asyncio.sleep(0)


class Deadlines:
    """Moments of the wall clock, by name, that come in the end even where somebody sets that clock back."""

    def __init__(self, clock: Clock, *, longest: float) -> None:
        self._clock = clock
        self._longest = longest
        self._ends: dict[str, tuple[float, float]] = {}  # name → the moment, and its end by the other clock

    def is_past(self, name: str, moment: float, now: float) -> bool:
        """Whether it has come, or as much time has passed as it was ahead when first asked for: `longest` at most."""
        ahead = moment - now
        if ahead <= 0:
            self._ends.pop(name, None)
            return True
        known, steady = self._ends.get(name), self._clock.monotonic()
        if known is None or known[0] != moment:
            if len(self._ends) >= MOST_NAMES:  # nobody asks any more for most of those that are over
                self._ends = {key: one for key, one in self._ends.items() if one[1] > steady}
            known = self._ends[name] = (moment, steady + min(ahead, self._longest))
        return steady >= known[1]


class Steps:
    """Tells once of each time that the wall clock was set by more than `tolerance`."""

    def __init__(self, clock: Clock, *, tolerance: float = 60.0) -> None:
        self._clock = clock
        self._tolerance = tolerance
        self._usual = _offset(clock)

    def was_set(self) -> bool:
        """Whether it was, since this was asked last."""
        offset = _offset(self._clock)
        if abs(offset - self._usual) <= self._tolerance:
            return False
        self._usual = offset
        return True


class Leaps:
    """Notices that the wall clock was set: it has gone on otherwise than the one that never steps."""

    def __init__(self, clock: Clock, *, patience: float, tolerance: float = 600.0) -> None:
        self._clock = clock
        self._patience = patience
        self._tolerance = tolerance
        self._usual = _offset(clock)
        self._odd: tuple[float, float] | None = None  # what the offset is since when
        self._patience_now = patience

    def doubt(self, *, patience: float) -> None:
        """Take the clock for one that was set just now: what was noted before we came does not go with it."""
        self._usual, self._odd, self._patience_now = -math.inf, None, patience

    def is_astray(self) -> bool:
        """Whether it was set by more than `tolerance`, less than `patience` seconds ago; after those it is believed."""
        offset, now = _offset(self._clock), self._clock.monotonic()
        if abs(offset - self._usual) <= self._tolerance:
            self._odd = None
            return False
        if self._odd is None or abs(offset - self._odd[0]) > self._tolerance:
            self._odd = (offset, now)
        if now - self._odd[1] < self._patience_now:
            return True
        self._usual, self._odd, self._patience_now = offset, None, self._patience
        return False


def _offset(clock: Clock) -> float:
    """By how much the wall clock is ahead of the one that never steps."""
    return clock.now().timestamp() - clock.monotonic()
