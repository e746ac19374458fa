"""A job of 256 machines: pages, batches of a hundred, throttling. Calls grow with batches, not with machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation import Emulation, emulated
from fast_clock import HurriedClock, hurry
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.lib.errors import CapacityError
from trainyard.spec.machine import MachineSpec, MachineState
from trainyard.spec.names import task_name

# Hundreds of instances in a real emulator: some seconds.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SMALL = MachineSpec(type="ecs.g7.large")
RATE = 20.0  # a throttled minute takes three seconds


@pytest.fixture(scope="module")
def hurried_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Emulation, HurriedClock]]:
    folder = tmp_path_factory.mktemp("cloud") / "state"
    with emulated(folder, "--set", "machines=false") as cloud:
        yield cloud, hurry(cloud, RATE)


@pytest.fixture
def cloud(hurried_cloud: tuple[Emulation, HurriedClock]) -> Iterator[Emulation]:
    emulation = hurried_cloud[0]
    emulation.control("DELETE", "calls")
    yield emulation
    emulation.control("DELETE", "faults")


@pytest.fixture
def backend(hurried_cloud: tuple[Emulation, HurriedClock], tmp_path: Path) -> AliyunBackend:
    emulation, clock = hurried_cloud
    environ = {"HOME": str(tmp_path), "USER": "alice", **emulation.environ()}
    return AliyunBackend(settings.load(environ), clock=clock)


def counted(cloud: Emulation) -> Counter[str]:
    """Calls by action that were served since the last time."""
    calls = cloud.control("GET", "calls")["calls"]
    cloud.control("DELETE", "calls")
    return Counter(call["action"] for call in calls if call["status"] == 200)


async def life(cloud: Emulation, backend: AliyunBackend, number: int) -> dict[str, Counter[str]]:
    """Make, stop, start and release so many machines; the calls of each."""
    names = [task_name("many", index) for index in range(number)]
    spent: dict[str, Counter[str]] = {}
    machines = await backend.acquire(SMALL, names)
    spent["make"] = counted(cloud)
    assert [machine.name for machine in machines] == names
    assert len({machine.id for machine in machines}) == number
    await backend.stop(machines)
    spent["stop"] = counted(cloud)
    stopped = await backend.machines()
    assert {machine.state for machine in stopped} == {MachineState.STOPPED}
    counted(cloud)
    await backend.start(stopped)
    spent["start"] = counted(cloud)
    await backend.release(await backend.machines())
    spent["release"] = counted(cloud)
    state = cloud.control("GET", "state")
    assert (state["instances"], state["disks"]) == ({}, {})
    return spent


async def test_calls_grow_with_batches_when_a_job_has_256_machines(cloud, backend):
    try:
        few = await life(cloud, backend, 8)
        many = await life(cloud, backend, 256)
    finally:
        await backend.aclose()
    pages = 3  # of a hundred machines
    assert many["make"]["RunInstances"] == 4  # task0 to 9, 10 to 99, 100 to 199, 200 to 255
    assert many["make"]["TagResources"] <= 6  # fifty a call
    assert many["stop"]["StopInstances"] == pages
    assert many["start"]["StartInstances"] == pages
    assert many["release"]["DeleteInstances"] == pages
    for verb, calls in many.items():
        lists = calls["DescribeInstances"]
        assert lists <= pages * few[verb]["DescribeInstances"] + pages, (verb, calls, few[verb])
        assert calls.total() <= pages * few[verb].total() + 12, (verb, calls, few[verb])


async def test_256_machines_are_made_once_when_calls_are_throttled(cloud, backend):
    """Limits of a minute, answers that get lost, and pages between which calls fail."""
    cloud.control(
        "PUT",
        "faults",
        [
            {"action": "RunInstances", "kind": "hang", "seconds": 0.2, "times": 2},
            {"action": "RunInstances", "kind": "throttle", "per_minute": 3},
            {"action": "Describe*", "kind": "throttle", "per_minute": 12},
            {"action": "DescribeInstances", "kind": "throttle", "retry_after_milliseconds": 400, "times": 3},
            {"action": "DescribeInstances", "kind": "html", "skip": 2, "times": 2},
            {"action": "TagResources", "kind": "throttle", "per_minute": 3},
            {"action": "DeleteInstances", "kind": "cut", "times": 2},
        ],
    )
    names = [task_name("throttled", index) for index in range(256)]
    try:
        machines = await backend.acquire(SMALL, names)
        assert [machine.name for machine in machines] == names
        there = cloud.control("GET", "state")["instances"]
        assert set(there) == {machine.id for machine in machines}
        assert not list((backend.client.folder / "journal").glob("*"))
        lines = cloud.control("GET", "bill")["lines"]
        paid = Counter(line["thing"] for line in lines if line["kind"] == "instance" and not line["end"])
        assert paid == Counter(there.keys())
        await backend.release(machines)
        assert cloud.control("GET", "state")["instances"] == {}
    finally:
        await backend.aclose()


async def test_none_of_256_is_left_when_the_last_cannot_be_had(cloud, backend):
    cloud.control("POST", "options", {"stock": 210})
    try:
        with pytest.raises(CapacityError, match="256 machines"):
            await backend.acquire(SMALL, [task_name("none", index) for index in range(256)])
        assert cloud.control("GET", "state")["instances"] == {}
        assert float(cloud.control("GET", "bill")["per_hour"]) == 0
        assert not list((backend.client.folder / "journal").glob("*"))
    finally:
        cloud.control("POST", "options", {"stock": 1000})
        await backend.aclose()
