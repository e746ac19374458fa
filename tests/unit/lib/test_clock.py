from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from trainyard.lib.clock import Deadlines, Leaps, ManualClock, Steps, SystemClock


async def nothing():
    return None


async def test_time_passes_at_once_when_the_clock_is_manual():
    start = datetime(2026, 2, 1, tzinfo=UTC)
    clock = ManualClock(start)
    other = asyncio.ensure_future(nothing())
    await clock.sleep(3600)
    assert other.done()
    assert clock.now() == start + timedelta(hours=1)
    assert clock.monotonic() == 3600


async def test_time_is_aware_when_the_clock_is_the_machines():
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0)
    assert clock.monotonic() >= before
    assert clock.now().utcoffset() == timedelta()


def at(clock: ManualClock) -> float:
    return clock.now().timestamp()


def test_a_moment_comes_when_its_time_has_passed():
    clock = ManualClock()
    deadlines, moment = Deadlines(clock, longest=1000), at(clock) + 100
    assert not deadlines.is_past("a", moment, at(clock))
    clock.advance(99)
    assert not deadlines.is_past("a", moment, at(clock))
    clock.advance(1)
    assert deadlines.is_past("a", moment, at(clock))


def test_a_moment_comes_all_the_same_when_the_clock_is_set_back():
    clock = ManualClock()
    deadlines, moment = Deadlines(clock, longest=1000), at(clock) + 100
    assert not deadlines.is_past("a", moment, at(clock))
    clock.step(-86400)
    clock.advance(99)
    assert not deadlines.is_past("a", moment, at(clock))
    clock.advance(1)
    assert deadlines.is_past("a", moment, at(clock))
    later = moment + 50  # another moment of the same name begins anew
    assert not deadlines.is_past("a", later, at(clock))


def test_a_moment_comes_after_the_longest_time_when_it_was_written_by_a_clock_that_was_ahead():
    clock = ManualClock()
    deadlines, moment = Deadlines(clock, longest=1000), at(clock) + 10**9
    assert not deadlines.is_past("a", moment, at(clock))
    clock.advance(1000)
    assert deadlines.is_past("a", moment, at(clock))


def test_a_leap_is_noticed_and_believed_later_when_the_clock_was_set():
    clock = ManualClock()
    leaps = Leaps(clock, patience=900)
    clock.advance(10**6)
    assert not leaps.is_astray()
    clock.step(300)
    assert not leaps.is_astray()  # a small correction
    clock.step(10**7)
    assert leaps.is_astray()
    clock.advance(899)
    assert leaps.is_astray()
    clock.step(-(10**7))
    assert not leaps.is_astray()  # it is as before
    clock.step(-7200)
    assert leaps.is_astray()
    clock.advance(900)
    assert not leaps.is_astray()  # so it is meant
    assert not leaps.is_astray()


def test_moments_are_forgotten_when_nobody_asks_for_them_any_more():
    clock = ManualClock()
    deadlines = Deadlines(clock, longest=10)
    for number in range(5000):
        assert not deadlines.is_past(f"machine {number}", at(clock) + 1, at(clock))
        clock.advance(0.1)
    assert len(deadlines._ends) <= 1000


def test_each_step_is_told_once_when_the_clock_was_set_by_more_than_a_little():
    clock = ManualClock()
    steps = Steps(clock)
    clock.advance(10**6)
    clock.step(30)
    assert not steps.was_set()
    for seconds in (61, -(10**8)):
        clock.step(seconds)
        assert (steps.was_set(), steps.was_set()) == (True, False)


def test_a_clock_that_is_doubted_is_believed_sooner_once():
    clock = ManualClock()
    leaps = Leaps(clock, patience=900)
    leaps.doubt(patience=100)
    assert leaps.is_astray()
    clock.advance(100)
    assert not leaps.is_astray()
    clock.step(7200)
    assert leaps.is_astray()
    clock.advance(899)
    assert leaps.is_astray()
