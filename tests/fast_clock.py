"""A clock that runs faster, in step with the emulator's: hours of a cloud in a second, and nothing else is different."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from trainyard.lib.clock import SystemClock

if TYPE_CHECKING:
    from emulation import Emulation


class HurriedClock(SystemClock):
    """Each second since `start` counts `rate` times."""

    def __init__(self, rate: float, start: float) -> None:
        self.rate = rate
        self.start = start

    def now(self) -> datetime:
        """The time of the cloud."""
        elapsed = time.time() - self.start
        return datetime.fromtimestamp(self.start, UTC) + timedelta(seconds=elapsed * self.rate)

    def monotonic(self) -> float:
        """Seconds of the cloud."""
        return time.monotonic() * self.rate

    async def sleep(self, seconds: float) -> None:
        """Wait for a part of it."""
        await asyncio.sleep(seconds / self.rate)


def hurry(cloud: Emulation, rate: float) -> HurriedClock:
    """Let an emulator's time run so much faster from now on; the clock that its clients need then."""
    start = time.time()
    cloud.control("POST", "clock", {"rate": rate})
    return HurriedClock(rate, start)
