"""Making machines on the emulated cloud: names, places, all or none, and what a dead client leaves."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from emulation import Emulation
from trainyard.backends.aliyun.launch.journal import JournalEntry
from trainyard.lib.errors import CapacityError, DeniedError, Error, InvalidError
from trainyard.spec.machine import MachineSpec, MachineState
from trainyard.spec.names import task_name

pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(60)]  # machines that boot real sshds

SMALL = MachineSpec(type="ecs.g7.large")
GPU = "ecs.gn6v-c8g1.2xlarge"


def set_stock(cloud: Emulation, kind: str, free: dict[str, int], *, spot: bool = False) -> None:
    """So many in these zones, by letter, and none elsewhere."""
    for zone in cloud.ecs("DescribeZones")["Zones"]["Zone"]:
        letter = zone["ZoneId"][-1]
        wish = {"zone": zone["ZoneId"], "type": kind, "spot": spot, "free": free.get(letter, 0)}
        cloud.control("POST", "stock", wish)


def claim(cloud: Emulation, kind: str, claimed: str | None) -> None:
    """What DescribeAvailableResource says of a type, true or not."""
    for zone in cloud.ecs("DescribeZones")["Zones"]["Zone"]:
        cloud.control(
            "POST", "stock", {"zone": zone["ZoneId"], "type": kind, "spot": False, "advice": claimed}
        )


def counts(cloud: Emulation) -> dict[str, int]:
    found: dict[str, int] = cloud.control("GET", "calls")["counts"]
    return {name.partition(".")[2] or name: count for name, count in found.items()}


async def test_a_dozen_machines_take_two_launches_when_names_follow_each_other(lab, open_client):
    lab.control("POST", "options", {"timing": {"starting": 3600}})  # none of them needs to boot
    backend = open_client()
    try:
        names = [task_name("dozen", index) for index in range(12)]
        machines = await backend.acquire(SMALL, names)
        assert [machine.name for machine in machines] == names
        assert len({machine.id for machine in machines}) == 12
        assert counts(lab)["RunInstances"] == 2  # task0 to task9, task10 and task11
        assert backend.client.calls < 30
    finally:
        lab.control("POST", "options", {"timing": {"starting": 0}})
        await backend.aclose()


async def test_the_next_zone_is_tried_when_the_provider_has_claimed_too_much(lab, open_client):
    set_stock(lab, GPU, {"h": 2})
    claim(lab, GPU, "WithStock")
    backend = open_client()
    try:
        machines = await backend.acquire(MachineSpec(type=GPU), ["task0.zones", "task1.zones"])
        assert {machine.zone[-1] for machine in machines} == {"h"}
        assert machines[0].gpu_text == "V100 x 1"
        assert not list((backend.client.folder / "journal").glob("*"))
    finally:
        claim(lab, GPU, None)
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_nothing_is_left_and_all_places_are_told_when_nobody_has_enough(lab, open_client):
    set_stock(lab, GPU, {"h": 1, "g": 1})
    claim(lab, GPU, "WithStock")
    backend = open_client()
    try:
        with pytest.raises(CapacityError, match=r"2 machines.*sold out.*cn-beijing-h"):
            await backend.acquire(MachineSpec(type=GPU), ["task0.none", "task1.none"])
        assert lab.instances() == []
        assert not list((backend.client.folder / "journal").glob("*"))
    finally:
        claim(lab, GPU, None)
        await backend.aclose()


async def test_fewer_machines_come_when_fewer_will_do(lab, open_client):
    set_stock(lab, GPU, {"h": 2})
    claim(lab, GPU, "WithStock")
    backend = open_client()
    try:
        names = [task_name("fewer", index) for index in range(3)]
        machines = await backend.acquire(MachineSpec(type=GPU, min_machines=2), names)
        assert [machine.name for machine in machines] == names[:2]
    finally:
        claim(lab, GPU, None)
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_both_types_are_planned_for_when_either_will_do(lab, open_client):
    backend = open_client()
    try:
        found = await backend.plan(MachineSpec(type=f"{GPU},ecs.g7.large"), ["task0.plan"])
        assert found.options[0].type in {GPU, "ecs.g7.large"}
        assert {option.type for option in found.options} >= {"ecs.g7.large"}
        assert found.price_per_hour and found.currency == "CNY"
        assert lab.instances() == []
    finally:
        await backend.aclose()


async def test_a_machine_is_refused_when_it_would_cost_more_than_allowed(lab, open_client):
    backend = open_client()
    try:
        spec = MachineSpec(type="ecs.g7.large", max_price_per_hour=Decimal("0.01"))
        with pytest.raises(CapacityError) as raised:
            await backend.acquire(spec, ["task0.dear"])
        assert "max_price_per_hour" in raised.value.hint
    finally:
        await backend.aclose()


async def test_a_type_is_asked_for_when_none_is_named(open_client):
    backend = open_client()
    try:
        with pytest.raises(InvalidError, match="no machine type"):
            await backend.acquire(MachineSpec(), ["task0.any"])
    finally:
        await backend.aclose()


async def test_the_cheapest_type_is_taken_when_only_gpus_are_asked_for(open_client):
    backend = open_client()
    try:
        found = await backend.plan(MachineSpec(gpus=1), ["task0.gpu"])
        prices = [option.price_per_hour for option in found.options]
        assert prices[0] == min(prices)
    finally:
        await backend.aclose()


@pytest.mark.parametrize("kind", ["hang", "cut", "broken"])
async def test_one_machine_is_made_when_the_answer_gets_lost(lab, open_client, kind):
    lab.control("POST", "faults", {"action": "RunInstances", "kind": kind, "seconds": 0.3, "times": 2})
    backend = open_client()
    try:
        machines = await backend.acquire(SMALL, [f"task0.{kind}"])
        assert [row["InstanceId"] for row in lab.instances()] == [machines[0].id]
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_nothing_is_left_when_acquiring_is_cancelled(lab, open_client):
    lab.control("POST", "faults", {"action": "RunInstances", "kind": "slow", "seconds": 1, "times": 1})
    backend = open_client()
    try:
        acquiring = asyncio.ensure_future(backend.acquire(SMALL, ["task0.cancelled"]))
        while not list((backend.client.folder / "journal").glob("*")):
            assert not acquiring.done(), acquiring
            await asyncio.sleep(0.01)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        lab.control("POST", "settle", {})
        assert lab.instances() == []
        assert not list((backend.client.folder / "journal").glob("*"))
    finally:
        await backend.aclose()


async def test_the_next_run_finds_the_machine_when_a_client_died_before_the_answer(lab, open_client):
    dead = open_client()
    await dead.acquire(SMALL, ["task0.dead"])
    await dead.release(await dead.machines())
    made = await dead.acquire(SMALL, ["task0.dead"])
    entry = _entry_of(lab, dead, made[0].details["launch"])
    backend = open_client()
    try:
        again = await backend.acquire(SMALL, ["task0.dead"])
        assert [machine.id for machine in again] == [made[0].id]
        assert len(lab.instances()) == 1
        assert backend.client.journal.find(entry.purpose, host=entry.host) is None
    finally:
        await dead.aclose()
        await backend.release(await backend.machines())
        await backend.aclose()


def _entry_of(lab: Emulation, backend, token: str) -> JournalEntry:
    """What a client that died between the call and its answer leaves."""
    return backend.client.journal.begin(
        purpose=f"machines {lab.region} dead 123 456",
        product="ecs",
        action="RunInstances",
        region=lab.region,
        host=backend.client.host("ecs"),
        token=token,
        form={"InstanceName": "task0.dead", "Amount": "1"},
    )


async def test_a_second_machine_is_not_made_when_the_list_is_forbidden(lab, open_client):
    backend = open_client()
    try:
        await backend.acquire(SMALL, ["task0.blind"])
        lab.control("POST", "options", {"account": {"denied": ["ecs:DescribeInstances"]}})
        other = open_client()
        with pytest.raises(DeniedError, match="DescribeInstances"):
            await other.acquire(SMALL, ["task0.blind"])
        with pytest.raises(DeniedError):
            await other.machines()
        await other.aclose()
    finally:
        lab.control("POST", "options", {"account": {"denied": []}})
        assert len(lab.instances()) == 1
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_a_spot_machine_says_so_when_listed(lab, open_client):
    backend = open_client()
    try:
        spec = MachineSpec(type="ecs.g7.large", spot=True, max_hours=100, labels={"project": "中文 'x'"})
        machine = (await backend.acquire(spec, ["task0.spot"]))[0]
        assert machine.spot
        assert machine.details["release_time"]
        assert machine.labels == {"project": "中文 'x'"}
        row = lab.instances()[0]
        assert row["SpotStrategy"] == "SpotAsPriceGo"
        assert row["AutoReleaseTime"]
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_the_first_connection_is_refused_when_another_machine_answers(lab, open_client):
    """The host key comes from the account, so somebody in between is noticed at the first connection."""
    from dataclasses import replace

    from trainyard.transport.ssh import SshTransport

    backend = open_client()
    try:
        machine = (await backend.acquire(SMALL, ["task0.verified"]))[0]
        assert (await backend.transport(machine).run("true")).status == 0
        fake = backend.client.folder / "fake"
        other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKR1zrPmDIqWDJyXFbh6SBJt537tUrE6s4y2jAeUNvbD"
        fake.write_text(f"{machine.public_address} {other}\n")
        address = replace(backend.transport(machine).address, known_hosts=fake)
        with pytest.raises(DeniedError, match=r"(?i)host key"):
            await SshTransport(address).run("true")
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_the_reason_is_told_when_a_new_account_has_no_quota(lab, open_client):
    lab.control("POST", "options", {"quotas": {"vcpus": 0}})
    backend = open_client()
    try:
        with pytest.raises(Error) as raised:
            await backend.acquire(SMALL, ["task0.quota"])
        assert "quota" in str(raised.value).lower()
        assert lab.instances() == []
    finally:
        lab.control("POST", "options", {"quotas": {"vcpus": 50000}})
        await backend.aclose()


async def test_the_machine_is_pending_when_it_has_not_booted(lab, open_client):
    lab.control("POST", "options", {"timing": {"starting": 3600}})
    backend = open_client()
    try:
        machine = (await backend.acquire(SMALL, ["task0.slow"]))[0]
        assert machine.state is MachineState.PENDING
    finally:
        lab.control("POST", "options", {"timing": {"starting": 0}})
        lab.control("POST", "clock", {"advance_seconds": 3600})
        await backend.release(await backend.machines())
        await backend.aclose()
