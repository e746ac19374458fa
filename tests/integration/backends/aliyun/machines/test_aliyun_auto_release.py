"""The leash on money over hours: renewed while a client lives, through failures, and the provider's to pull when it dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from emulation import Emulation, emulated
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.lib.clock import SystemClock
from trainyard.spec.machine import MachineSpec

# An emulator of its own, and a client that renews: some seconds a test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

LEASHED = MachineSpec(type="ecs.g7.large", max_hours=1)
RENEWS = "ModifyInstanceAutoReleaseTime"
PAUSE = 15  # minutes between two renewals


class SteppedClock(SystemClock):
    """Stands still until it is pushed, together with the emulator's; short waits are let pass."""

    def __init__(self, cloud: Emulation) -> None:
        self.cloud = cloud
        self.start = datetime.fromisoformat(cloud.control("GET", "clock")["now"]).astimezone(UTC)
        self.ahead = timedelta()
        self.moved = asyncio.Event()
        self.sleepers = 0

    def now(self) -> datetime:
        return self.start + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead.total_seconds()

    async def sleep(self, seconds: float) -> None:
        if seconds < 60:
            await asyncio.sleep(0.001)
            return
        end = self.ahead + timedelta(seconds=seconds)
        self.sleepers += 1
        try:
            while self.ahead < end:
                await self.moved.wait()
        finally:
            self.sleepers -= 1

    def push(self, minutes: float) -> None:
        """Let time pass for everybody."""
        self.ahead += timedelta(minutes=minutes)
        self.cloud.control("POST", "clock", {"advance_seconds": minutes * 60})
        self.moved.set()
        self.moved = asyncio.Event()

    async def pass_pause(self) -> None:
        """Until the next renewal is due, of a client that waits for it."""
        await until(lambda: self.sleepers)
        self.push(PAUSE)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Emulation]:
    with emulated(tmp_path / "state", "--set", "machines=false") as emulation:
        emulation.control("POST", "clock", {"rate": 0})
        yield emulation


@pytest.fixture
def backend(cloud: Emulation, tmp_path: Path) -> AliyunBackend:
    environ = {"HOME": str(tmp_path / "home"), "USER": "alice", **cloud.environ()}
    return AliyunBackend(settings.load(environ), clock=SteppedClock(cloud))


async def until(is_so: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


def minutes_left(cloud: Emulation, clock: SteppedClock) -> float:
    """Until the provider releases the machine."""
    (row,) = cloud.instances()
    return (datetime.fromisoformat(row["AutoReleaseTime"]) - clock.now()) / timedelta(minutes=1)


def renewals(cloud: Emulation) -> int:
    calls = cloud.control("GET", "calls")["calls"]
    return sum(call["action"] == RENEWS for call in calls)


async def test_a_machine_outlives_its_hours_while_a_client_lives_and_goes_when_it_has_died(cloud, backend):
    clock = backend.clock
    await backend.acquire(LEASHED, ["task0.leash"])
    assert 58 <= minutes_left(cloud, clock) <= 61
    for _ in range(12):  # three hours
        await clock.pass_pause()
        await until(lambda: minutes_left(cloud, clock) >= 58)
    await backend.aclose()
    clock.push(59)
    assert len(cloud.instances()) == 1
    clock.push(3)
    assert cloud.instances() == []
    assert float(cloud.control("GET", "bill")["per_hour"]) == 0


async def test_a_machine_stays_when_renewing_fails_for_half_an_hour(cloud, backend, caplog):
    clock = backend.clock
    try:
        await backend.acquire(LEASHED, ["task0.leash"])
        cloud.control("PUT", "faults", [{"action": RENEWS, "kind": "error", "status": 500}])
        for number in (1, 2):
            await clock.pass_pause()
            await until(lambda number=number: caplog.text.count("could not be renewed") == number)
        assert 28 <= minutes_left(cloud, clock) <= 31
        cloud.control("DELETE", "faults")
        await clock.pass_pause()
        await until(lambda: minutes_left(cloud, clock) >= 58)
    finally:
        await backend.aclose()


async def test_nothing_is_renewed_any_more_when_the_machine_is_gone(cloud, backend):
    clock = backend.clock
    try:
        (machine,) = await backend.acquire(LEASHED, ["task0.leash"])
        cloud.ecs("DeleteInstances", InstanceId=[machine.id], Force=True)
        await clock.pass_pause()
        await until(lambda: renewals(cloud) == 1)  # it finds that it is gone
        for _ in range(3):
            clock.push(PAUSE)
            await asyncio.sleep(0.05)
        assert renewals(cloud) == 1
    finally:
        await backend.aclose()


async def test_nobody_renews_when_only_a_client_without_a_leash_lives(cloud, backend, tmp_path):
    clock = backend.clock
    environ = {"HOME": str(tmp_path / "other"), "USER": "alice", **cloud.environ()}
    other = AliyunBackend(settings.load(environ), clock=clock)
    try:
        await backend.acquire(LEASHED, ["task0.leash"])
        await other.acquire(MachineSpec(type="ecs.g7.large"), ["task0.leash"])
        await backend.aclose()
        clock.push(62)
        assert cloud.instances() == []  # who asked for no leash does not hold one
    finally:
        await other.aclose()
        await backend.aclose()
