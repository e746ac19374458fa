"""Decides how many nodes to acquire for waiting workloads in pools that can grow, the cheapest first.

Room on nodes that are coming, and on nodes asked for in this cycle, is held on trial until the cycle ends, so that two
workloads do not count on the same new node. Getting the nodes is the platform's work.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trainyard.scheduling.cluster import Cluster, healthy_masks
from trainyard.scheduling.model import Acquire, Node, NodeState, Pool
from trainyard.scheduling.placement import Gang, Part, Taken, least_of, place, release, would_fit

if TYPE_CHECKING:
    from trainyard.scheduling.scheduler import Cycle
    from trainyard.scheduling.scheduler_state import SchedulerState
    from trainyard.scheduling.workspace_queue import QueueEntry


@dataclass(slots=True)
class _Order:
    """Nodes of one pool asked for in this cycle."""

    cluster: Cluster
    count: int = 0
    ids: list[str] = field(default_factory=list)


class Growth:
    """The nodes to acquire, decided anew in each cycle."""

    def __init__(self, scheduler: SchedulerState) -> None:
        self.scheduler = scheduler
        self.asked: dict[str, str] = {}  # workload → pool it waits for, "" for nodes that are already coming
        self._trial: list[Taken] = []
        self._charged: list[tuple[str, str, tuple[tuple[str, int], ...]]] = []
        self._orders: dict[str, _Order] = {}

    def can_grow(self) -> bool:
        """Whether anything is coming, or could be asked for."""
        return bool(self.scheduler.cluster.coming) or any(
            pool.promise for pool in self.scheduler.pools.values()
        )

    def begin(self) -> None:
        """Start a cycle with nothing asked for."""
        self.asked = {}
        self._orders = {}
        self._charged = []

    def ask(self, entry: QueueEntry) -> bool:
        """Hold room that is coming for a blocked workload, or ask for more; False: no pool could hold it."""
        scheduler = self.scheduler
        if not self.can_grow():
            return False
        gang = least_of(entry.kind.gang)
        taken = place(scheduler.cluster, gang, scheduler.spreads, wide=True)
        pool = ""
        if taken is None:
            taken = self._there(gang)
            rest = _without(gang, len(taken))
            best = self._cheapest(rest)
            if best is None:
                release(scheduler.cluster, taken)
                return False
            pool, count = best
            self._order(pool, entry, rest, count)
        self._trial += taken
        request = entry.request
        amounts = entry.kind.least
        scheduler.tree.use(scheduler.tree.place(request.workspace), request.user, amounts)
        self._charged.append((request.workspace, request.user, amounts))
        self.asked[request.id] = pool
        return True

    def _there(self, gang: Gang) -> list[Taken]:
        """Room for a part of the gang on nodes that are there or coming, taken on trial."""
        cluster, part = self.scheduler.cluster, gang.parts[0]
        rule = cluster.rules.get(part.shape.device)
        if len(gang.parts) > 1 or gang.same_switch or part.least < 2 or (rule and rule.whole_when_many):
            return []
        some = Gang((Part(part.role, part.shape, 1, part.least - 1),))
        return place(cluster, some, self.scheduler.spreads, wide=True) or []

    def _cheapest(self, gang: Gang) -> tuple[str, int] | None:
        """The pool that holds the whole gang on new nodes for the least money, and how many more it takes."""
        best: tuple[float, str, int] | None = None
        for pool in self.scheduler.pools.values():
            if pool.promise is None or any(part.shape.key[0] not in {"", pool.name} for part in gang.parts):
                continue
            count = self._needed(pool, gang)
            if count is not None and (best is None or (count * pool.price, pool.name) < best[:2]):
                best = (count * pool.price, pool.name, count)
        return None if best is None else (best[1], best[2])

    def _needed(self, pool: Pool, gang: Gang) -> int | None:
        """How many nodes beyond those already ordered the gang needs; None: the pool's limit is below that."""
        order = self._orders.get(pool.name) or _Order(Cluster((), self.scheduler.cluster.rules))
        left = pool.limit - self.scheduler.pool_size(pool.name) - order.count
        least = sum(part.least for part in gang.parts)
        trial = Cluster(_nodes(pool, order.count, 0), self.scheduler.cluster.rules)
        _copy(order.cluster, trial)
        for extra in range(min(left, least) + 1):
            if extra:
                trial.add(*_nodes(pool, 1, order.count + extra - 1))
            if (extra or order.count) and would_fit(trial, _unbound(gang), {}):
                return extra
        return None

    def _order(self, name: str, entry: QueueEntry, gang: Gang, count: int) -> None:
        pool = self.scheduler.pools[name]
        order = self._orders.setdefault(name, _Order(Cluster((), self.scheduler.cluster.rules)))
        for node in _nodes(pool, count, order.count):
            order.cluster.add(node)
        order.count += count
        order.ids.append(entry.request.id)
        place(order.cluster, _unbound(gang), {})

    def finish(self, cycle: Cycle) -> None:
        """Say what to acquire, and give back what was held on trial."""
        scheduler = self.scheduler
        for name, order in self._orders.items():
            if order.count:
                price = scheduler.pools[name].price * order.count
                cycle.acquires.append(Acquire(name, order.count, tuple(order.ids), price))
        release(scheduler.cluster, self._trial)
        scheduler.cluster.grown += {one.node: None for one in self._trial}
        self._trial = []
        self.charge(-1)

    def charge(self, sign: int) -> None:
        """Count what those who wait for nodes will use, or with -1 no longer."""
        tree = self.scheduler.tree
        for workspace, user, amounts in self._charged:
            tree.use(tree.place(workspace), user, amounts, sign)


def _nodes(pool: Pool, count: int, first: int) -> list[Node]:
    if pool.promise is None:
        return []
    return [
        replace(pool.promise, name=f"{pool.name}+{first + at}", pool=pool.name, state=NodeState.READY)
        for at in range(count)
    ]


def _without(gang: Gang, count: int) -> Gang:
    """The gang without so many replicas of its only role."""
    if not count:
        return gang
    part = gang.parts[0]
    return Gang((Part(part.role, part.shape, part.least - count, part.least - count),))


def _unbound(gang: Gang) -> Gang:
    """The same gang with shapes of its own, since a shape remembers one cluster's nodes."""
    return Gang(tuple(Part(part.role, part.shape.copy(), part.least, part.most) for part in gang.parts))


def _copy(source: Cluster, target: Cluster) -> None:
    """Take from `target` what is taken in `source`, node by node."""
    for index, node in enumerate(source.nodes):
        target._shift(  # noqa: SLF001  # one trial copied from another
            index,
            source.cpu[index] - target.cpu[index],
            source.memory[index] - target.memory[index],
            source.shared[index] - target.shared[index],
        )
        for device in healthy_masks(node):
            target._set_mask(device, index, source.masks[device][index])  # noqa: SLF001
