"""The quota tree as people see it: what each place is guaranteed, may use, and uses now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from trainyard.scheduling.model import CPU, MEMORY
from trainyard.scheduling.quota import ROOT
from trainyard.server.auth.actor import Actor, require
from trainyard.server.records.nodes import NodeDesired
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.records.workspaces import Limits
from trainyard.server.service_context import Context
from trainyard.server.store.cluster import nodes
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import users, workspaces
from trainyard.spec.workload import HOLDING, State

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """One place of the tree. CPU in thousandths of a core, memory in MiB, devices counted."""

    id: str
    name: str
    kind: str  # cluster, group or workspace
    parent: str | None
    nominal: Amounts | None  # guaranteed; None: nothing is
    limit: Amounts | None  # never more than this; None: whatever is free
    used: Amounts
    waiting: int = 0
    running: int = 0
    users: Mapping[str, Amounts] = field(default_factory=dict)  # what each user holds, by name


class Quotas:
    """`services.quota`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def tree(self, actor: Actor) -> Sequence[QuotaView]:
        """The cluster, then groups, then workspaces: all for an administrator, else what is above and at one's own."""
        require(actor, "quota:read")
        return await self._context.db.read(lambda c: _tree(c, actor))


@dataclass(slots=True)
class _Use:
    """What every workspace holds, and how many of its jobs wait and run."""

    used: dict[str, Counter[str]] = field(default_factory=dict)
    by_user: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)
    running: Counter[str] = field(default_factory=Counter)

    def total(self, workspace_ids: Sequence[str]) -> dict[str, int]:
        """Of several workspaces together."""
        found: Counter[str] = Counter()
        for one in workspace_ids:
            found.update(self.used.get(one, {}))
        return dict(found)


def _tree(connection: Connection, actor: Actor) -> list[QuotaView]:
    spaces = workspaces.list_workspaces(connection)
    groups = workspaces.list_groups(connection)
    use = _use(connection)
    shown = [one for one in spaces if actor.is_admin or actor.can("workspaces:read", one.id)]
    above = {one.group_id for one in shown}
    views = [_cluster(connection, use)]
    for group in groups:
        if not actor.is_admin and group.id not in above:
            continue
        below = [one.id for one in spaces if one.group_id == group.id]
        view = QuotaView(
            id=group.id,
            name=group.name,
            kind="group",
            parent=ROOT,
            nominal=dict(group.quota.nominal) or None,
            limit=_limit(group.quota),
            used=use.total(below),
            waiting=sum(use.waiting[one] for one in below),
            running=sum(use.running[one] for one in below),
        )
        views.append(view)
    views += [
        QuotaView(
            id=one.id,
            name=one.name,
            kind="workspace",
            parent=one.group_id or ROOT,
            nominal=dict(one.quota.nominal) or None,
            limit=_limit(one.quota),
            used=use.total([one.id]),
            waiting=use.waiting[one.id],
            running=use.running[one.id],
            users={user: dict(amounts) for user, amounts in use.by_user.get(one.id, {}).items()},
        )
        for one in shown
    ]
    return views


def _use(connection: Connection) -> _Use:
    live = workloads.in_states(connection, {State.WAITING, *HOLDING})
    tasks = workloads.tasks_holding(connection)
    names = users.names(connection, {record.user_id for record in live})
    kinds = {node.name: tuple(node.devices) for node in nodes.list_nodes(connection)}
    found = _Use()
    for record in live:
        place = record.workspace_id
        if record.state is State.WAITING:
            found.waiting[place] += 1
            continue
        found.running[place] += 1
        amounts = _held(record, tasks.get(record.id, ()), kinds)
        found.used.setdefault(place, Counter()).update(amounts)
        user = names.get(record.user_id, record.user_id)
        found.by_user.setdefault(place, {}).setdefault(user, Counter()).update(amounts)
    return found


def _cluster(connection: Connection, use: _Use) -> QuotaView:
    total: Counter[str] = Counter()
    for node in nodes.list_nodes(connection):
        if node.desired == NodeDesired.GONE:
            continue
        total[CPU] += node.cpu - node.reserved_cpu
        total[MEMORY] += node.memory_mib - node.reserved_memory_mib
        total.update(dict(node.devices))
    return QuotaView(
        id=ROOT,
        name=ROOT,
        kind="cluster",
        parent=None,
        nominal=dict(total),
        limit=dict(total),
        used=use.total(list(use.used)),
        waiting=sum(use.waiting.values()),
        running=sum(use.running.values()),
    )


def _held(
    record: WorkloadRecord, tasks: Sequence[TaskRecord], kinds: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """What a workload's tasks hold; who named no type of device has the only one of its node."""
    roles = {role.name: role for role in record.spec.roles}
    amounts: Counter[str] = Counter()
    for task in tasks:
        role = roles[task.role]
        amounts[CPU] += round(role.cpu * 1000)
        amounts[MEMORY] += role.memory_mib
        if role.devices:
            kind = role.device or next(iter(kinds.get(task.node, ())), "devices")
            amounts[kind] += role.devices
    return dict(amounts)


def _limit(quota: Limits) -> dict[str, int] | None:
    """Nominal and what may be borrowed; a resource whose borrowing is not limited is not named."""
    return {name: quota.nominal.get(name, 0) + amount for name, amount in quota.borrow.items()} or None
