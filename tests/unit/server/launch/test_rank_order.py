"""Tasks on NPUs are numbered by the addresses of their nodes, because their rank tables are in that order."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trainyard.scheduling import Admit, Slot
from trainyard.server.jobs.lifecycle import admit
from trainyard.server.jobs.turn_changes import TurnChanges
from trainyard.server.launch import kinds
from trainyard.server.launch.job_launch import launch_of
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.launch.rank_order import by_address
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import RoleSpec, WorkloadSpec

ALL = tuple(range(8))


def cluster(device: str) -> dict[str, NodeRecord]:
    """The nodes of the manual's table, which begins with the higher address; one more that is only higher as a number."""
    addresses = {"a": "192.168.3.6", "b": "192.168.3.2", "c": "192.168.3.10"}
    return {
        name: NodeRecord(name=name, created_at=0.0, address={}, facts={"address": address}, devices={device: 8}, simulated=True)
        for name, address in addresses.items()
    }  # fmt: skip


def spec_of(kind: str, device: str, *roles: RoleSpec) -> WorkloadSpec:
    return kinds.fit(
        WorkloadSpec(
            name="j", command="x", kind=kind, roles=roles or (RoleSpec(replicas=3, devices=8, device=device),)
        )
    )


@pytest.mark.parametrize("kind", ["PSDistJob", "PyTorchJob"])
@pytest.mark.parametrize("device", ["Ascend910", ""])
def test_ranks_rise_with_addresses_in_the_table_and_in_the_tasks_when_there_are_npus(kind, device):
    nodes, spec = cluster("Ascend910"), spec_of(kind, device)
    names = [role.name for role in spec.roles for _ in range(role.replicas) if role.devices]
    slots = [Slot(role, node, ALL) for role, node in zip(names, "abc", strict=True)]
    slots += [Slot("ps", "a")] if kind == "PSDistJob" else []
    record = WorkloadRecord(
        id="dlcx", name="j", kind=kind, workspace_id="w", user_id="u", spec=spec, submitted_at=0.0
    )
    seated = by_address(spec, slots, nodes.get)
    assert sorted((slot.node, slot.devices) for slot in seated) == sorted(
        (slot.node, slot.devices) for slot in slots
    )
    launch = launch_of(
        admit(TurnChanges(), record, Admit("dlcx", seated), 1.0), LaunchFacts(nodes=nodes, secret=b"x" * 32)
    )
    trainers = [task for task in launch.tasks if task.devices]
    assert [task.node for task in trainers] == ["c", "b", "a"], "as texts: 10 goes before 2"
    entry = trainers[0].entry
    assert entry is not None
    table = json.loads(next(text for name, text in entry.files.items() if '"version": "1.0"' in text))
    assert [one["server_id"] for one in table["server_list"]] == [
        "192.168.3.10",
        "192.168.3.2",
        "192.168.3.6",
    ]
    assert [device["rank_id"] for one in table["server_list"] for device in one["device"]] == [
        str(rank) for rank in range(24)
    ]


@pytest.mark.parametrize("device", ["V100", ""])
def test_places_stay_as_the_scheduler_gave_them_when_there_are_no_npus(device):
    slots = tuple(Slot("worker", node, ALL) for node in "abc")
    assert by_address(spec_of("job", device), slots, cluster("V100").get) == slots


def test_tasks_of_different_shapes_keep_their_nodes():
    roles = (
        RoleSpec(name="big", devices=8, device="Ascend910", cpu=9),
        RoleSpec(name="small", devices=8, device="Ascend910", cpu=1),
    )
    slots = (Slot("big", "a", ALL), Slot("small", "b", ALL))
    assert by_address(spec_of("job", "", *roles), slots, cluster("Ascend910").get) == slots


def test_places_stay_as_they_are_when_the_nodes_have_npus_that_the_job_does_not_ask_for():
    nodes = {
        name: replace(node, devices={"V100": 8, "Ascend910": 8}) for name, node in cluster("V100").items()
    }
    spec = spec_of("PyTorchJob", "V100")
    names = [role.name for role in spec.roles for _ in range(role.replicas)]
    slots = tuple(Slot(role, node, ALL) for role, node in zip(names, "abc", strict=True))
    assert by_address(spec, slots, nodes.get) == slots
