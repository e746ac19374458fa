"""Records as the scheduler sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.scheduling import Code, NodeState, Slot, Strategy, Taint, schedule
from trainyard.server.cluster import scheduler_snapshot
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.records.workspaces import GroupRecord, Limits, WorkspaceRecord
from trainyard.spec.workload import RoleSpec, State, WorkloadSpec

NODE = NodeRecord(name="n1", created_at=0.0, cpu=8000, memory_mib=1000, devices={"V100": 4}, state="ready")
SPEC = WorkloadSpec(
    name="x",
    max_run_seconds=60,
    roles=(
        RoleSpec(name="ps", cpu=0.5, memory_mib=10),
        RoleSpec(
            name="w",
            replicas=2,
            devices=1,
            labels={"b": "2", "a": "1"},
            nodes=("n1",),
            tolerations=("k=v", "k2"),
        ),
    ),
)
RECORD = WorkloadRecord(
    id="dlc1", name="x", kind="job", workspace_id="ws", user_id="u", spec=SPEC, submitted_at=1.0, queued_at=5.0,
    priority=7, avoid=("n9",),
)  # fmt: skip


def test_a_request_is_what_the_job_asks_for_with_the_age_that_it_kept():
    request = scheduler_snapshot.request_of(RECORD)
    assert (request.id, request.workspace, request.user, request.priority) == ("dlc1", "ws", "u", 7)
    assert (request.submitted, request.limit, request.avoid) == (5.0, 60.0, frozenset({"n9"}))
    ps, worker = request.roles
    assert (ps.cpu, ps.memory, ps.replicas) == (500, 10, 1)
    assert worker.selector == (("a", "1"), ("b", "2"))
    assert worker.tolerations == (Taint("k", "v"), Taint("k2"))
    assert (
        scheduler_snapshot.request_of(
            replace(RECORD, queued_at=None, spec=replace(SPEC, max_run_seconds=0))
        ).limit
        is None
    )


@pytest.mark.parametrize(
    ("changes", "leaving"),
    [
        ({"state": State.RUNNING}, None),
        ({"state": State.RUNNING, "leave_by": 50.0}, 50.0),
        ({"state": State.FINISHING, "stopped_at": 20.0}, 20.0 + scheduler_snapshot.CLEARING_SECONDS),
        ({"state": State.FINISHING, "stopped_at": 20.0, "leave_by": 25.0}, 25.0),
        ({"state": State.RETAINED, "retain_until": 99.0}, 99.0),
    ],
)
def test_a_holding_has_its_places_and_says_when_it_goes(changes, leaving):
    task = TaskRecord(
        workload_id="dlc1", attempt=1, name="w-0", role="w", number=0, rank=0, node="n1", devices=(2,)
    )
    holding = scheduler_snapshot.holding_of(
        replace(RECORD, admitted_at=10.0, wait={"passed": ["g"]}, **changes), [task]
    )
    assert holding.slots == (Slot("w", "n1", (2,)),)
    assert (holding.started, holding.leaving, holding.passed) == (10.0, leaving, ("g",))


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, NodeState.READY), ({"state": "joining"}, NodeState.CORDONED), ({"state": "lost"}, NodeState.LOST),
        ({"state": "refused"}, NodeState.CORDONED), ({"desired": "cordoned"}, NodeState.CORDONED),
        ({"desired": "drained"}, NodeState.CORDONED), ({"desired": "gone"}, NodeState.LOST),
        ({"avoid_until": 50.0}, NodeState.CORDONED), ({"avoid_until": 5.0}, NodeState.READY),
    ],
)  # fmt: skip
def test_a_node_takes_work_only_when_it_is_ready_and_wanted(changes, state):
    assert scheduler_snapshot.node_of(replace(NODE, **changes), 10.0).state is state


def test_quotas_are_a_tree_when_workspaces_belong_to_groups():
    limits = Limits(
        nominal={"V100": 2},
        users={"ann": {"V100": 1}, "gone": {"V100": 1}},
        strategy="strict_fifo",
        weight=3.0,
    )
    quotas = scheduler_snapshot.quotas_of(
        [GroupRecord(id="g", name="labs")],
        [
            WorkspaceRecord(id="a", name="A", created_at=0.0, group_id="g", quota=limits),
            WorkspaceRecord(id="b", name="B", created_at=0.0),
        ],
        {"ann": "u-ann"},
    )
    assert [(quota.name, quota.parent) for quota in quotas] == [("g", ""), ("a", "g"), ("b", "")]
    assert (quotas[1].users, quotas[1].strategy, quotas[1].weight) == (
        {"u-ann": {"V100": 1}},
        Strategy.STRICT_FIFO,
        3.0,
    )


def test_the_scheduler_decides_when_it_gets_a_snapshot_of_records():
    found = scheduler_snapshot.snapshot_of(
        nodes=[replace(NODE, labels={"a": "1", "b": "2"}), replace(NODE, name="n2", state="lost")],
        waiting=[RECORD, replace(RECORD, id="dlc2", spec=replace(SPEC, roles=(RoleSpec(cpu=64.0),)))],
        running=[],
        quotas=(),
        now=10.0,
        past_use={("ws", "u"): 4.0, ("ws", "v"): 2.0},
    )
    assert found.past_use == {"ws": 6.0}
    decisions = {decision.id: decision for decision in schedule(found, 10.0)}
    assert {slot.node for slot in decisions["dlc1"].slots} == {"n1"}
    assert decisions["dlc2"].reason.code is Code.NEVER_FITS
