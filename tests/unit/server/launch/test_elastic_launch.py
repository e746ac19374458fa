"""An elastic job that begins with fewer tasks tells each of them how many they are, whatever its kind."""

from __future__ import annotations

import json

import pytest

from trainyard.scheduling import Admit, Slot
from trainyard.server.jobs.lifecycle import admit
from trainyard.server.jobs.turn_changes import TurnChanges
from trainyard.server.launch import kinds
from trainyard.server.launch.job_launch import launch_of
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import RoleSpec, WorkloadSpec


def launched(kind: str, replicas: int, minimum: int, workers: int):
    spec = kinds.fit(
        WorkloadSpec(name="j", command="x", kind=kind, roles=(RoleSpec(replicas=replicas, minimum=minimum),))
    )
    record = WorkloadRecord(
        id="dlcx", name="j", kind=kind, workspace_id="w", user_id="u", spec=spec, submitted_at=0.0
    )
    slots = [
        Slot(role.name, "n", ())
        for role in spec.roles
        for _ in range(workers if role.minimum is not None else role.replicas)
    ]
    turn_changes = TurnChanges()
    job = admit(turn_changes, record, Admit("dlcx", tuple(slots)), 1.0)
    node = NodeRecord(name="n", created_at=0.0, address={}, facts={"address": "10.0.0.1"})
    launch_facts = LaunchFacts(nodes={"n": node}, secret=b"x" * 32)
    return launch_of(job, launch_facts), turn_changes


@pytest.mark.parametrize(("workers", "world"), [(3, 4), (1, 2)])
def test_the_world_is_as_large_as_it_is_when_a_torch_job_begins_with_fewer(workers, world):
    launch, turn_changes = launched("PyTorchJob", 4, 2, workers)
    assert [task.env["RANK"] for task in launch.tasks] == [str(rank) for rank in range(world)]
    assert {task.env["WORLD_SIZE"] for task in launch.tasks} == {str(world)}
    said = " ".join(event.message for event in turn_changes.events)
    assert (f"runs with {world} of 4 tasks" in said) == (world < 4)


def test_tensorflow_lists_only_those_that_are_there():
    launch, _ = launched("TFJob", 4, 1, 2)
    for task in launch.tasks:
        given = task.env.get("TF_CONFIG") or (task.entry.env["TF_CONFIG"] if task.entry else "{}")
        assert len(json.loads(given)["cluster"]["worker"]) == 2
