"""Several computers of one person make the same machines at once: one of each stays, and nobody loses another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulation import Emulation, emulated
from fast_clock import HurriedClock, hurry
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.backends.aliyun.ecs import KEPT, KEPT_TAG
from trainyard.lib.errors import CapacityError
from trainyard.spec.machine import MachineSpec, MachineState

# An emulator of its own, and waiting for each other: some seconds a test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

SMALL = MachineSpec(type="ecs.g7.large")
RATE = 20.0  # rivals wait for each other for half a minute


@pytest.fixture(scope="module")
def rival_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Emulation, HurriedClock]]:
    folder = tmp_path_factory.mktemp("cloud") / "state"
    with emulated(folder, "--set", "machines=false") as cloud:
        yield cloud, hurry(cloud, RATE)


@pytest.fixture
def cloud(rival_cloud: tuple[Emulation, HurriedClock]) -> Iterator[Emulation]:
    emulation = rival_cloud[0]
    yield emulation
    emulation.control("DELETE", "faults")
    emulation.control("POST", "options", {"timing": {"visible": 0}, "stock": 1000})
    left = [row["InstanceId"] for row in emulation.instances()]
    if left:
        emulation.ecs("DeleteInstances", InstanceId=left, Force=True)


@pytest.fixture
def sit_at(rival_cloud: tuple[Emulation, HurriedClock], tmp_path: Path) -> Callable[[str], AliyunBackend]:
    """A client on a computer of that name."""
    emulation, clock = rival_cloud

    def opened(computer: str) -> AliyunBackend:
        environ = {"HOME": str(tmp_path / computer), "USER": "alice", **emulation.environ()}
        return AliyunBackend(settings.load(environ), clock=clock)

    return opened


async def until(is_so: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


def struck(cloud: Emulation) -> bool:
    return any(rule["struck"] for rule in cloud.control("GET", "faults"))


def tags_of(cloud: Emulation) -> dict[str, str]:
    """Id → whether it is kept."""
    return {
        row["InstanceId"]: {tag["TagKey"]: tag["TagValue"] for tag in row["Tags"]["Tag"]}.get(KEPT_TAG, "")
        for row in cloud.instances()
    }


@pytest.mark.parametrize("visible", [0, 10], ids=["at once", "late"])
async def test_all_computers_get_the_same_machines_when_they_make_them_at_once(cloud, sit_at, visible):
    cloud.control("POST", "options", {"timing": {"visible": visible}})
    cloud.control("PUT", "faults", [{"action": "RunInstances", "kind": "slow", "seconds": 0.2}])
    names = ["task0.same", "task1.same"]
    computers = [sit_at(name) for name in ("laptop", "desk", "cluster")]
    try:
        found = await asyncio.gather(*(each.acquire(SMALL, names) for each in computers))
        assert [machine.name for machine in found[0]] == names
        assert len({tuple(machine.id for machine in machines) for machines in found}) == 1
        await until(lambda: len(cloud.instances()) == len(names))
        assert set(tags_of(cloud)) == {machine.id for machine in found[0]}
        assert set(tags_of(cloud).values()) == {KEPT}
        for each in computers:
            assert not list((each.client.folder / "journal").glob("*"))
    finally:
        await asyncio.gather(*(each.aclose() for each in computers))


async def test_the_machine_of_another_computer_stays_when_ours_cannot_be_started(cloud, sit_at):
    """What this call made goes when it fails; what it only found is another's."""
    laptop, desk = sit_at("laptop"), sit_at("desk")
    try:
        old = (await laptop.acquire(SMALL, ["task0.both"]))[0]
        await laptop.stop([old])
        cloud.control(
            "PUT",
            "faults",
            [
                {"action": "RunInstances", "kind": "slow", "seconds": 5, "times": 1},
                {
                    "action": "StartInstances",
                    "kind": "error",
                    "status": 403,
                    "code": "OperationDenied.NoStock",
                },
            ],
        )
        both = asyncio.ensure_future(laptop.acquire(SMALL, ["task0.both", "task1.both"]))
        await until(lambda: struck(cloud))  # it has seen that there is no task1
        theirs = (await desk.acquire(SMALL, ["task1.both"]))[0]
        with pytest.raises(CapacityError):
            await both
        assert set(tags_of(cloud)) == {old.id, theirs.id}
        assert tags_of(cloud)[theirs.id] == KEPT
    finally:
        await laptop.aclose()
        await desk.aclose()


async def test_nothing_new_is_left_when_a_stopped_machine_cannot_be_started(cloud, sit_at, caplog):
    laptop = sit_at("laptop")
    try:
        old = (await laptop.acquire(SMALL, ["task0.alone"]))[0]
        await laptop.stop([old])
        cloud.control(
            "POST",
            "faults",
            {"action": "StartInstances", "kind": "error", "status": 403, "code": "OperationDenied.NoStock"},
        )
        with pytest.raises(CapacityError) as raised:
            await laptop.acquire(SMALL, ["task0.alone", "task1.alone"])
        assert "files are kept" in raised.value.hint
        assert set(tags_of(cloud)) == {old.id}
        assert "giving back what was made of alone" in caplog.text
    finally:
        await laptop.aclose()


async def test_the_first_machine_is_taken_when_its_maker_died_before_it_decided(cloud, sit_at):
    """The other's is not ours to delete, so ours goes."""
    laptop, desk = sit_at("laptop"), sit_at("desk")
    try:
        cloud.control("PUT", "faults", [{"action": "RunInstances", "kind": "slow", "seconds": 5, "times": 1}])
        late = asyncio.ensure_future(laptop.acquire(SMALL, ["task0.dead"]))
        await until(lambda: struck(cloud))
        theirs = (await desk.acquire(SMALL, ["task0.dead"]))[0].id
        # What a client leaves that dies between its launch and its decision.
        cloud.ecs("UntagResources", ResourceType="instance", ResourceId=[theirs], TagKey=[KEPT_TAG])
        found = await late
        assert [machine.id for machine in found] == [theirs]
        assert set(tags_of(cloud)) == {theirs}
    finally:
        await laptop.aclose()
        await desk.aclose()


async def test_only_one_batch_is_started_and_stopped_again_when_the_next_cannot_be_had(cloud, sit_at):
    """A hundred are started in one call, so a job of more than that may get half of its machines."""
    laptop = sit_at("laptop")
    names = [f"task{index}.batch" for index in range(101)]
    try:
        machines = await laptop.acquire(SMALL, names)
        await laptop.stop(machines)
        cloud.control(
            "PUT",
            "faults",
            [
                {
                    "action": "StartInstances",
                    "kind": "error",
                    "status": 403,
                    "code": "OperationDenied.NoStock",
                    "skip": 1,
                }
            ],
        )
        with pytest.raises(CapacityError):
            await laptop.start(await laptop.machines())
        assert {machine.state for machine in await laptop.machines()} == {MachineState.STOPPED}
        await laptop.release(await laptop.machines())
    finally:
        await laptop.aclose()
