"""The life of machines on the emulated cloud: stopping and what it costs, starting, storage, firewalls, leashes."""

from __future__ import annotations

import logging
from datetime import timedelta
from decimal import Decimal

import pytest

from trainyard.lib.clock import SystemClock
from trainyard.lib.errors import CapacityError, InvalidError
from trainyard.runtime import verbs
from trainyard.spec.machine import MachineSpec, MachineState

pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(90)]  # machines that boot real sshds

SMALL = MachineSpec(type="ecs.g7.large")
LOCAL_DISKS = "ecs.gn5-c4g1.xlarge"


class LaterClock(SystemClock):
    """A clock that goes on in step with the emulator's, which is pushed ahead."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self):
        return super().now() + self.ahead


async def test_a_stopped_machine_costs_its_disks_when_its_type_can_stop_costing(lab, open_client):
    clock = LaterClock()
    backend = open_client(clock=clock)
    try:
        machine = (await backend.acquire(SMALL, ["task0.cheap"]))[0]
        lab.control("POST", "clock", {"advance_seconds": 36000})
        clock.ahead = timedelta(hours=10)
        before = (await backend.machines())[0]
        price = Decimal(before.details["price_per_hour"])
        assert abs(Decimal(before.details["spent"]) - 10 * price) < price / 5
        await backend.stop([machine])
        stopped = (await backend.machines())[0]
        assert stopped.state is MachineState.STOPPED
        assert stopped.details["stopped_mode"] == "StopCharging"
        assert Decimal(stopped.details["price_per_hour_now"]) < price / 2
        assert "disks" in stopped.details["cost_note"]
        assert Decimal(stopped.details["spent"]) >= Decimal(before.details["spent"])
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_a_machine_is_not_even_reached_when_it_is_released(lab, open_client):
    """Its files go with it; one that hangs would only hold up what costs money."""
    backend = open_client()
    try:
        machines = await backend.acquire(SMALL, ["task0.gone"])
        await verbs.release(backend, machines)
        assert lab.instances() == []
        assert not backend._ways
    finally:
        await backend.aclose()


async def test_the_user_is_told_when_a_stop_does_not_stop_the_costs(open_client, caplog):
    backend = open_client()
    try:
        machine = (await backend.acquire(MachineSpec(type=LOCAL_DISKS), ["task0.dear"]))[0]
        with caplog.at_level(logging.WARNING):
            await backend.stop([machine])
        assert "task0.dear is stopped but goes on costing" in caplog.text
        stopped = (await backend.machines())[0]
        assert stopped.details["price_per_hour_now"] == stopped.details["price_per_hour"]
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_a_machine_is_reached_at_its_new_address_when_started_again(open_client):
    backend = open_client()
    try:
        machine = (await verbs.acquire(backend, SMALL, ["task0.moved"]))[0]
        assert (await backend.transport(machine).run("echo kept > file")).status == 0
        await verbs.stop(backend, [machine])
        again = (await verbs.start(backend, [machine]))[0]
        assert again.public_address != machine.public_address
        assert (await backend.transport(again).run("cat file")).stdout == b"kept\n"
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_a_start_is_refused_and_files_are_kept_when_there_is_no_stock(lab, open_client):
    backend = open_client()
    try:
        machine = (await backend.acquire(SMALL, ["task0.stock"]))[0]
        await backend.stop([machine])
        wish = {"zone": machine.zone, "type": machine.type, "spot": False}
        lab.control("POST", "stock", {**wish, "free": 0})
        with pytest.raises(CapacityError) as raised:
            await backend.acquire(SMALL, ["task0.stock"])
        assert "files are kept" in raised.value.hint
        lab.control("POST", "stock", {**wish, "free": 1000})
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_machines_are_released_when_they_are_just_being_stopped(lab, open_client):
    """Scripts of the family call stop and kill in one breath."""
    backend = open_client()
    try:
        await backend.acquire(SMALL, ["task0.breath"])
        lab.control("POST", "options", {"timing": {"stopping": 1}})
        lab.ecs("StopInstances", InstanceId=[row["InstanceId"] for row in lab.instances()])
        await backend.release(await backend.machines())
        assert lab.instances() == []
        assert lab.ecs("DescribeDisks", MaxResults=100)["Disks"]["Disk"] == []
    finally:
        lab.control("POST", "options", {"timing": {"stopping": 0}})
        await backend.aclose()


async def test_files_are_shared_and_mounted_again_when_a_machine_was_stopped(lab, open_client):
    backend = open_client()
    try:
        spec = MachineSpec(type="ecs.g7.large", shared_storage=True, data_disk_gib=40)
        one, two = await verbs.acquire(backend, spec, ["task0.nas", "task1.nas"])
        assert (await backend.transport(one).run("echo shared > /fastgpu/file; test -d /data")).status == 0
        assert (await backend.transport(two).run("cat /ncluster/file")).stdout == b"shared\n"
        await verbs.stop(backend, [two])
        again = (await verbs.start(backend, [two]))[0]
        assert (await backend.transport(again).run("cat /fastgpu/file")).stdout == b"shared\n"
        assert await backend.mount([one, again]) == "/fastgpu"
        disks = lab.ecs("DescribeDisks", MaxResults=100)["Disks"]["Disk"]
        assert {(disk["Type"], disk["Category"]) for disk in disks} == {
            ("system", "cloud_essd"),
            ("data", "cloud_essd"),
        }
        assert len(lab.call("nas", "DescribeFileSystems")["FileSystems"]["FileSystem"]) == 1
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_only_ssh_and_named_services_are_opened_when_an_address_is_admitted(lab, open_client):
    backend = open_client()
    try:
        machine = (await backend.acquire(SMALL, ["task0.wall"]))[0]
        assert await backend.admit_address([machine], "203.0.113.7") == "203.0.113.7/32"
        assert (
            await backend.admit_address([], "198.51.100.0/24", services=["tensorboard"]) == "198.51.100.0/24"
        )
        group = machine.details["security_group_ids"]
        answer = lab.ecs("DescribeSecurityGroupAttribute", SecurityGroupId=group)
        rules = {(rule["SourceCidrIp"], rule["PortRange"]) for rule in answer["Permissions"]["Permission"]}
        assert rules >= {
            ("203.0.113.7/32", "22/22"),
            ("198.51.100.0/24", "22/22"),
            ("198.51.100.0/24", "6006/6016"),
        }
        assert not any(source.startswith("0.0.0.0/0") for source, _ in rules)
        with pytest.raises(InvalidError, match="no service"):
            await backend.admit_address([], services=["telnet"])
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_the_release_time_moves_when_the_same_machine_is_asked_for_again(lab, open_client):
    clock = LaterClock()
    clock.ahead = timedelta(days=30)  # behind which the emulator's clock stays
    backend = open_client(clock=clock)
    try:
        spec = MachineSpec(type="ecs.g7.large", max_hours=10)
        first = (await backend.acquire(spec, ["task0.leash"]))[0]
        clock.ahead += timedelta(hours=5)
        await backend.acquire(spec, ["task0.leash"])
        second = (await backend.machines())[0]
        assert second.details["release_time"] > first.details["release_time"]
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_machines_of_others_are_seen_when_the_account_is_surveyed(open_client):
    alice, bob = open_client(), open_client("desk", USER="bob")
    try:
        await alice.acquire(SMALL, ["task0.mine"])
        assert await bob.machines() == []
        seen = await bob.survey(everybody=True, everywhere=True)
        assert [(machine.name, machine.owner.partition("@")[0]) for machine in seen] == [
            ("task0.mine", "alice")
        ]
    finally:
        await alice.release(await alice.machines())
        await alice.aclose()
        await bob.aclose()


async def test_types_and_images_have_rows_when_asked_for(open_client):
    backend = open_client()
    try:
        types = await backend.machine_types()
        v100 = next(row for row in types if row["Type"] == "ecs.gn6v-c8g1.2xlarge")
        assert v100["GPU"] == "V100 x 1"
        assert v100["Price/h"].endswith("CNY")
        assert any(row["Image"].startswith("ubuntu_22_04") for row in await backend.images())
    finally:
        await backend.aclose()
