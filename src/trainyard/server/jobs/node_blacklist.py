"""The black list of a job: nodes that failed it, by their own fault, are avoided while others can have it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from trainyard.server.jobs.turn_changes import TurnChanges
from trainyard.server.records.nodes import NodeCondition, NodeDesired, NodeRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import RoleSpec


def relieve(
    turn_changes: TurnChanges, record: WorkloadRecord, nodes: Sequence[NodeRecord], now: float
) -> WorkloadRecord:
    """The same job, without its black list where the nodes that are left could never have it."""
    if not record.avoid or _could_hold(record, [one for one in nodes if one.name not in record.avoid]):
        return record
    if not _could_hold(record, nodes):
        return record  # the list is not what keeps it
    changed = turn_changes.change(replace(record, avoid=()))
    turn_changes.tell(
        changed,
        now,
        "avoid_lifted",
        f"No other node can have it: {', '.join(record.avoid)} may be tried again.",
    )
    return changed


def _could_hold(record: WorkloadRecord, nodes: Iterable[NodeRecord]) -> bool:
    """Whether these nodes, all of them empty, have room for every role by itself."""
    usable = [one for one in nodes if one.state == NodeCondition.READY and one.desired == NodeDesired.READY]
    return all(
        sum(_fitting(role, node) for node in usable)
        >= (role.replicas if role.minimum is None else role.minimum)
        for role in record.spec.roles
    )


def _fitting(role: RoleSpec, node: NodeRecord) -> int:
    """How many replicas one empty node has room for."""
    if role.nodes and node.name not in role.nodes:
        return 0
    if any(node.labels.get(key) != value for key, value in role.labels.items()):
        return 0
    counts = [role.replicas]
    if role.cpu:
        counts.append(int((node.cpu - node.reserved_cpu) // max(1, round(role.cpu * 1000))))
    memory = role.memory_mib + role.shared_memory_mib
    if memory:
        counts.append((node.memory_mib - node.reserved_memory_mib) // memory)
    if role.devices:
        kinds = [role.device] if role.device else list(node.devices)
        counts.append(max((node.devices.get(kind, 0) // role.devices for kind in kinds), default=0))
    return max(0, min(counts))
