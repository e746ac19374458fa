"""Records as the scheduler's values: pure functions, shared by the admit loop and by those who ask what would happen.

Workspaces, groups and users go by their ids: what a reason's subject means for people is
explain/explanations.py's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainyard.scheduling import (
    DeviceRule,
    Holding,
    Node,
    NodeState,
    Policy,
    Quota,
    Request,
    Role,
    Scheduler,
    Slot,
    Snapshot,
    Strategy,
    Taint,
)
from trainyard.scheduling.model import ASCEND_910
from trainyard.server.cluster.elastic_pools import Elastic
from trainyard.server.records.nodes import RUNS_IMAGES, NodeCondition, NodeDesired, NodeRecord, can_run_images
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.records.workspaces import GroupRecord, WorkspaceRecord
from trainyard.spec.workload import RoleSpec, State, WorkloadSpec

# Device types whose devices are wired in rings.
DEVICE_RULES: Mapping[str, DeviceRule] = {"huawei.com/Ascend910": ASCEND_910, "ascend-910": ASCEND_910}

# So long a workload without a time of its own may need to be gone, once its program has ended.
CLEARING_SECONDS = 30.0


def request_of(record: WorkloadRecord) -> Request:
    """A workload as one that asks. Requeued it keeps its place in time by `queued_at`."""
    wait = record.wait or {}
    return request_from(
        record.spec,
        id=record.id,
        workspace=record.workspace_id,
        user=record.user_id,
        priority=record.priority,
        submitted=record.queued_at if record.queued_at is not None else record.submitted_at,
        avoid=record.avoid,
        claim=_slots(wait.get("claim", ())),
        preemptible=record.preemptible,
        ran=ran_before(record),
    )


def ran_before(record: WorkloadRecord) -> float:
    """How long a workload had run when it left to grow: its time limit goes on from there."""
    return float((record.wait or {}).get("ran", 0.0))


def time_run(record: WorkloadRecord) -> dict[str, float] | None:
    """What a start keeps of what the record says about its wait: the time that counts against its limit."""
    ran = ran_before(record)
    return {"ran": ran} if ran and record.spec.max_run_seconds else None


def request_from(
    spec: WorkloadSpec,
    *,
    id: str,  # noqa: A002  # the field's name
    workspace: str,
    user: str,
    priority: int,
    submitted: float,
    preemptible: bool,
    avoid: Iterable[str] = (),
    claim: tuple[Slot, ...] = (),
    ran: float = 0.0,
) -> Request:
    """A spec as one that asks, before there is a record of it."""
    return Request(
        id=id,
        roles=tuple(_role(role) for role in spec.roles),
        workspace=workspace,
        user=user,
        priority=priority,
        submitted=submitted,
        limit=max(1.0, spec.max_run_seconds - ran) if spec.max_run_seconds else None,
        preemptible=preemptible,
        grace=float(spec.grace_seconds),
        avoid=frozenset(avoid),
        claim=claim,
    )


def holding_of(record: WorkloadRecord, tasks: Sequence[TaskRecord]) -> Holding:
    """A workload as one that holds places: those of its present attempt's tasks."""
    started = record.admitted_at if record.admitted_at is not None else record.submitted_at
    leaving = record.leave_by
    if leaving is None and record.state is State.FINISHING:
        leaving = (record.stopped_at or started) + CLEARING_SECONDS
    if leaving is None and record.state is State.RETAINED:
        leaving = record.retain_until
    return Holding(
        request=request_of(record),
        started=started,
        slots=tuple(Slot(task.role, task.node, tuple(task.devices)) for task in tasks),
        leaving=leaving,
        leaving_for=record.leave_for,
        passed=tuple((record.wait or {}).get("passed", ())),
    )


def node_of(record: NodeRecord, now: float | None = None) -> Node:
    """A node as the scheduler sees it. Without `now`, one that is avoided is avoided for good."""
    return Node(
        name=record.name,
        pool=record.pool,
        cpu=record.cpu,
        memory=record.memory_mib,
        devices=dict(record.devices),
        unhealthy={kind: frozenset(indices) for kind, indices in record.unhealthy.items() if indices},
        labels=_labels(record),
        taints=tuple(_taint(text) for text in (*record.taints, *record.facts.get("taints", ()))),
        topology=tuple(record.topology),
        engine=record.engine,
        state=_node_state(record, now),
        suspect=record.failures > 0,
        reserved_cpu=record.reserved_cpu,
        reserved_memory=record.reserved_memory_mib,
    )


def _labels(record: NodeRecord) -> dict[str, str]:
    """Those of its engine, those of people, and one where it runs images."""
    found = {**record.facts.get("labels", {}), **record.labels}
    return {**found, RUNS_IMAGES: "yes"} if can_run_images(record) else found


def quotas_of(
    groups: Iterable[GroupRecord], workspaces: Iterable[WorkspaceRecord], user_ids: Mapping[str, str]
) -> tuple[Quota, ...]:
    """The quota tree: groups under the cluster, workspaces under their groups. `user_ids` is by name."""
    found = [_quota(group.id, "", group, user_ids) for group in groups]
    return (*found, *(_quota(one.id, one.group_id or "", one, user_ids) for one in workspaces))


def snapshot_of(
    *,
    nodes: Iterable[NodeRecord],
    waiting: Iterable[WorkloadRecord],
    running: Iterable[tuple[WorkloadRecord, Sequence[TaskRecord]]],
    quotas: tuple[Quota, ...],
    now: float | None = None,
    policy: Policy | None = None,
    past_use: Mapping[tuple[str, str], float] | None = None,
    elastic: Elastic | None = None,
    is_hopeful: bool = False,
) -> Snapshot:
    """Everything the scheduler reads. `past_use` is by workspace and user, decayed until now.

    `is_hopeful`: pools that could not buy lately promise nodes all the same, to tell what somebody waits for.
    """
    records = list(nodes)
    grows = elastic or Elastic()
    by_name = {record.name: node_of(record, now) for record in records} | grows.nodes(records)
    known = tuple(by_name.values())
    use = past_use or {}
    by_workspace: dict[str, float] = {}
    for (workspace, _user), amount in use.items():
        by_workspace[workspace] = by_workspace.get(workspace, 0.0) + amount
    return Snapshot(
        nodes=known,
        waiting=tuple(request_of(record) for record in waiting),
        running=tuple(holding_of(record, tasks) for record, tasks in running),
        pools=grows.scheduled(known, None if is_hopeful else now),
        quotas=quotas,
        policy=policy or Policy(),
        device_rules=DEVICE_RULES,
        past_use=by_workspace,
        past_use_by_user=dict(use),
    )


def past_use_of(scheduler: Scheduler, now: float) -> dict[tuple[str, str], float]:
    """What every user of every workspace has had, as the scheduler counted it until now."""
    keys = [key for key in scheduler.shares.accounts if isinstance(key, tuple)]
    return {key: scheduler.shares.past(key, now) for key in keys}


# -- inside


def _role(role: RoleSpec) -> Role:
    return Role(
        name=role.name,
        replicas=role.replicas,
        minimum=role.minimum,
        cpu=round(role.cpu * 1000),
        memory=role.memory_mib,
        shared_memory=role.shared_memory_mib,
        device=role.device,
        devices=role.devices,
        selector=tuple(sorted({**role.labels, **({RUNS_IMAGES: "yes"} if role.image else {})}.items())),
        nodes=frozenset(role.nodes),
        tolerations=tuple(_taint(text) for text in role.tolerations),
    )


def _taint(text: str) -> Taint:
    key, _equals, value = text.partition("=")
    return Taint(key, value)


def _slots(data: Iterable[Sequence[Any]]) -> tuple[Slot, ...]:
    return tuple(Slot(role, node, tuple(devices)) for role, node, devices in data)


def _node_state(record: NodeRecord, now: float | None) -> NodeState:
    if record.desired == NodeDesired.GONE or record.state == NodeCondition.LOST:
        return NodeState.LOST
    if record.desired != NodeDesired.READY or record.state != NodeCondition.READY:
        return NodeState.CORDONED
    if record.avoid_until is not None and (now is None or record.avoid_until > now):
        return NodeState.CORDONED
    return NodeState.READY


def _quota(
    name: str, parent: str, record: GroupRecord | WorkspaceRecord, user_ids: Mapping[str, str]
) -> Quota:
    limits = record.quota
    return Quota(
        name=name,
        parent=parent,
        nominal=dict(limits.nominal),
        borrow=dict(limits.borrow),
        lend=dict(limits.lend),
        per_user=dict(limits.per_user),
        users={user_ids[user]: dict(amounts) for user, amounts in limits.users.items() if user in user_ids},
        weight=limits.weight,
        strategy=Strategy(limits.strategy) if limits.strategy else None,
    )
