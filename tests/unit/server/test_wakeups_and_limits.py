"""Hints wake whoever waits, from any thread; limits fill up with time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from trainyard.lib.clock import ManualClock
from trainyard.server.auth.actor import LimitedError
from trainyard.server.auth.rate_limits import KEYS, Limiter
from trainyard.server.wakeups import Wakeups


async def test_everybody_wakes_when_a_hint_comes_from_a_thread():
    wakeups = Wakeups()
    waiting = [asyncio.create_task(wakeups.wait("a", timeout=10)) for _ in range(5)]
    other = asyncio.create_task(wakeups.wait("b", timeout=0.05))
    await asyncio.sleep(0)
    thread = threading.Thread(target=wakeups.wake, args=("a",))
    thread.start()
    assert await asyncio.gather(*waiting) == [True] * 5
    assert await other is False
    thread.join()
    assert wakeups._waiting == {}


async def test_no_hint_is_missed_when_it_comes_between_looking_and_waiting():
    wakeups = Wakeups()
    mark = wakeups.mark("a")
    wakeups.wake("a")
    assert await wakeups.wait("a", timeout=10, since=mark)
    assert await wakeups.wait("a", timeout=0.01, since=wakeups.mark("a")) is False


async def test_nothing_is_kept_when_who_waited_was_cancelled():
    wakeups = Wakeups()
    task = asyncio.create_task(wakeups.wait("a"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert wakeups._waiting == {}
    wakeups.wake("a")


def test_a_hint_does_no_harm_when_the_loop_of_who_waited_has_closed():
    wakeups = Wakeups()

    async def leave() -> None:
        asyncio.ensure_future(wakeups.wait("a"))  # noqa: RUF006  # left behind on purpose
        await asyncio.sleep(0)
        wakeups._waiting["a"] = list(wakeups._waiting["a"])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    kept = dict(wakeups._waiting)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    wakeups._waiting = kept
    wakeups.wake("a")


def test_a_bucket_fills_again_when_time_passes():
    clock = ManualClock()
    limiter = Limiter(clock, rate=60, burst=3, what="tries")
    for _ in range(3):
        limiter.take("x")
    with pytest.raises(LimitedError, match="Too many tries") as caught:
        limiter.take("x")
    assert caught.value.retry_after == pytest.approx(1.0)
    limiter.take("y")
    clock.advance(0.9)
    with pytest.raises(LimitedError):
        limiter.check("x")
    clock.advance(0.2)
    limiter.check("x")
    limiter.take("x")
    limiter.forgive("x")
    for _ in range(3):
        limiter.take("x")


def test_there_is_no_limit_when_the_rate_is_nothing():
    limiter = Limiter(ManualClock(), rate=0)
    for _ in range(1000):
        limiter.take("x")


def test_memory_stays_small_when_keys_are_made_up():
    limiter = Limiter(ManualClock(), rate=1)
    for number in range(KEYS + 100):
        limiter.take(number)
    assert len(limiter._buckets) == KEYS
