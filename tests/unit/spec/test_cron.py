"""Times by the clock: fields, names, months without the day, and changes of clocks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib.errors import InvalidError
from trainyard.spec.cron import find_timezone, next_after, parse_cron, upcoming


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def times(cron: str, after: str, number: int = 3, zone: str = "UTC") -> list[str]:
    found = upcoming(cron, zone, at(after), number)
    return [datetime.fromtimestamp(one, UTC).strftime("%Y-%m-%d %H:%M") for one in found]


@pytest.mark.parametrize(
    ("cron", "after", "wanted"),
    [
        ("*/20 * * * *", "2026-11-16T05:59:59", ["2026-11-16 06:00", "2026-11-16 06:20", "2026-11-16 06:40"]),
        ("0 3 * * *", "2026-11-16T03:00:00", ["2026-11-17 03:00", "2026-11-18 03:00", "2026-11-19 03:00"]),
        ("30 9 * * mon-fri", "2026-11-20T10:00:00", ["2026-11-23 09:30", "2026-11-24 09:30", "2026-11-25 09:30"]),
        ("0 0 * * fri-mon", "2026-11-16T00:00:00", ["2026-11-20 00:00", "2026-11-21 00:00", "2026-11-22 00:00"]),
        ("0 0 31 * *", "2026-01-31T00:00:00", ["2026-03-31 00:00", "2026-05-31 00:00", "2026-07-31 00:00"]),
        ("0 0 29 feb *", "2026-01-01T00:00:00", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
        ("0 0 13 * 5", "2026-11-01T00:00:00", ["2026-11-06 00:00", "2026-11-13 00:00", "2026-11-20 00:00"]),
        ("5/25 1,2 * * 7", "2026-11-16T00:00:00", ["2026-11-22 01:05", "2026-11-22 01:30", "2026-11-22 01:55"]),
        ("@monthly", "2026-11-16T00:00:00", ["2026-12-01 00:00", "2027-01-01 00:00", "2027-02-01 00:00"]),
        ("0 0 ? JAN-MAR/2 SUN", "2026-11-16T00:00:00", ["2027-01-03 00:00", "2027-01-10 00:00", "2027-01-17 00:00"]),
    ],
)  # fmt: skip
def test_the_next_moments_are_found_when_the_fields_mean_them(cron, after, wanted):
    assert times(cron, after) == wanted


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *",
     "x * * * *", "*-5 * * * *", "1,,2 * * * *", "* * * * * *", "@sometimes", "-1 * * * *", "1.5 * * * *", "* " * 99],
)  # fmt: skip
def test_a_line_is_refused_when_no_clock_shows_it(cron):
    with pytest.raises(InvalidError):
        parse_cron(cron)


def test_a_day_that_never_comes_has_no_moment():
    assert next_after(parse_cron("0 0 31 feb *"), at("2026-01-01T00:00:00"), find_timezone("UTC")) is None


def test_a_moment_is_kept_once_when_clocks_go_forward():
    # Berlin 2026-03-29: 02:00 is 03:00.
    assert times("30 2 * * *", "2026-03-28T12:00:00", 2, "Europe/Berlin") == [
        "2026-03-29 01:30",
        "2026-03-30 00:30",
    ]
    assert times("*/30 * * * *", "2026-03-29T00:30:00", 3, "Europe/Berlin") == [
        "2026-03-29 01:00", "2026-03-29 01:30", "2026-03-29 02:00",
    ]  # fmt: skip


def test_a_moment_is_taken_once_when_clocks_go_back_and_every_hour_each_time():
    # Berlin 2026-10-25: 02:00 to 03:00 comes twice, 00:00 UTC and 01:00 UTC.
    assert times("30 2 * * *", "2026-10-24T12:00:00", 2, "Europe/Berlin") == [
        "2026-10-25 00:30",
        "2026-10-26 01:30",
    ]
    assert times("30 * * * *", "2026-10-24T23:45:00", 3, "Europe/Berlin") == [
        "2026-10-25 00:30", "2026-10-25 01:30", "2026-10-25 02:30",
    ]  # fmt: skip
    assert times("0 9 * * *", "2026-11-16T00:00:00", 1, "Asia/Shanghai") == ["2026-11-16 01:00"]


@pytest.mark.parametrize("zone", ["Nowhere/AtAll", "../etc/passwd", "", "/etc/localtime", "a\0b"])
def test_a_zone_is_refused_when_there_is_none(zone):
    with pytest.raises(InvalidError):
        find_timezone(zone)


@given(
    after=st.integers(at("2026-01-01T00:00:00").__int__(), at("2027-12-31T00:00:00").__int__()),
    cron=st.sampled_from(["*/7 * * * *", "15 */3 * * *", "0 2 * * *", "59 23 28-31 * *", "30 2 * 3,10 sun"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
)
def test_moments_go_up_and_no_step_is_left_out(after, cron, zone):
    place, fields = find_timezone(zone), parse_cron(cron)
    first = next_after(fields, after, place)
    assert first is not None and first > after and first % 60 == 0
    between = next_after(fields, (after + first) / 2, place)
    assert between == first, "nothing lies between"
