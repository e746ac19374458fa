"""Launches that came to nothing: what they made is given back, by this run or by the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation import Emulation, emulated
from fast_clock import hurry
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.lib.errors import CapacityError, UnreachableError
from trainyard.spec.machine import MachineSpec

# An emulator of its own, and retries that are waited out on a fast clock.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

SMALL, LARGE = MachineSpec(type="ecs.g7.large"), MachineSpec(type="ecs.g7.xlarge")
NO_STOCK = {"kind": "error", "status": 403, "code": "OperationDenied.NoStock"}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Emulation]:
    with emulated(tmp_path / "state", "--set", "machines=false") as emulation:
        yield emulation


@pytest.fixture
def backend(cloud: Emulation, tmp_path: Path) -> AliyunBackend:
    environ = {"HOME": str(tmp_path / "home"), "USER": "alice", **cloud.environ()}
    return AliyunBackend(settings.load(environ), clock=hurry(cloud, 20.0))


def there(cloud: Emulation) -> list[tuple[str, str]]:
    return sorted((row["InstanceName"], row["InstanceType"]) for row in cloud.instances())


def entries(backend: AliyunBackend) -> list[Path]:
    return list((backend.client.folder / "journal").glob("*"))


async def test_an_old_launch_is_given_back_when_another_type_is_wanted_by_now(cloud, backend, caplog):
    """To find out whether a launch was heard means to repeat it, so it may only now make what nobody wants any more."""
    try:
        cloud.control("PUT", "faults", [{"action": "RunInstances", "kind": "cut", "when": "before"}])
        with pytest.raises(UnreachableError):
            await backend.acquire(SMALL, ["task0.changed"])
        assert len(entries(backend)) == 1
        assert "release it with `trainyard kill {changed}`" in caplog.text
        cloud.control("DELETE", "faults")
        await backend.acquire(LARGE, ["task0.changed"])
        assert there(cloud) == [("task0.changed", LARGE.type)]
        assert entries(backend) == []
    finally:
        await backend.aclose()


async def test_what_was_answered_goes_when_the_provider_refuses_to_say_it_again(cloud, backend):
    """Two launches, as their numbers do not follow each other; the second is sold out, and so is any repetition."""
    try:
        cloud.control("PUT", "faults", [{"action": "RunInstances", **NO_STOCK, "skip": 1}])
        with pytest.raises(CapacityError):
            await backend.acquire(SMALL, ["task0.half", "task5.half"])
        assert there(cloud) == []
        assert entries(backend) == []
    finally:
        await backend.aclose()


async def test_those_that_were_there_are_spared_by_the_command_when_giving_back_fails(cloud, backend, caplog):
    try:
        await backend.acquire(SMALL, ["task0.spared"])
        cloud.control("PUT", "faults", [{"action": "DeleteInstances", "kind": "cut", "when": "before"}])
        cloud.control("POST", "faults", {"action": "TagResources", "kind": "cut", "when": "before"})
        cloud.control("POST", "faults", {"action": "RunInstances", **NO_STOCK, "skip": 1})
        with pytest.raises(UnreachableError):
            await backend.acquire(SMALL, ["task0.spared", "task1.spared", "task5.spared"])
        assert "`trainyard kill task1.spared`" in caplog.text
    finally:
        await backend.aclose()


async def test_nothing_new_is_left_when_a_machine_was_released_meanwhile(cloud, backend):
    """Fewer machines than were asked for would be a surprise; all or none."""
    try:
        await backend.acquire(SMALL, ["task0.gone"])
        (old,) = cloud.instances()
        cloud.control("PUT", "faults", [{"action": "RunInstances", "kind": "slow", "seconds": 1, "times": 1}])
        both = asyncio.ensure_future(backend.acquire(SMALL, ["task0.gone", "task1.gone"]))
        async with asyncio.timeout(30):
            while not cloud.control("GET", "faults")[0]["struck"]:
                await asyncio.sleep(0.01)
        cloud.ecs("DeleteInstances", InstanceId=[old["InstanceId"]], Force=True)
        with pytest.raises(UnreachableError, match=r"released these machines meanwhile: task0\.gone"):
            await both
        assert there(cloud) == []
    finally:
        await backend.aclose()
