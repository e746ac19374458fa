from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from trainyard.lib.clock import ManualClock, SystemClock


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
