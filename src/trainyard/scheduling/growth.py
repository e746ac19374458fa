"""Pools that can grow: what to acquire for those who wait, the cheapest first.

Room on nodes that are coming, and on nodes asked for in this cycle, is held on trial until the cycle ends, so that two
workloads do not count on the same new node. Getting the nodes is the platform's work.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trainyard.scheduling.cluster import Cluster, healthy_masks
from trainyard.scheduling.kinds import taken_amounts
from trainyard.scheduling.model import Acquire, Node, NodeState, Pool
from trainyard.scheduling.placement import Gang, Part, Taken, least_of, place, release

if TYPE_CHECKING:
    from trainyard.scheduling.engine import Cycle
    from trainyard.scheduling.lanes import Entry
    from trainyard.scheduling.state import State


@dataclass(slots=True)
class _Order:
    """Nodes of one pool asked for in this cycle."""

    cluster: Cluster
    count: int = 0
    ids: list[str] = field(default_factory=list)


class Growth:
    """What to acquire, decided anew in each cycle."""

    def __init__(self, scheduler: State) -> None:
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

    def ask(self, entry: Entry) -> bool:
        """Hold room that is coming for a blocked workload, or ask for more; False: no pool could hold it."""
        scheduler = self.scheduler
        if not self.can_grow():
            return False
        taken = place(scheduler.cluster, least_of(entry.kind.gang), scheduler.spreads, wide=True)
        pool = ""
        if taken is not None:
            self._trial += taken
            amounts = taken_amounts(taken)
        else:
            best = self._cheapest(entry.kind.gang)
            if best is None:
                return False
            pool, count = best
            self._order(pool, entry, count)
            amounts = entry.kind.least
        request = entry.request
        scheduler.tree.use(scheduler.tree.place(request.workspace), request.user, amounts)
        self._charged.append((request.workspace, request.user, amounts))
        self.asked[request.id] = pool
        return True

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
            if (extra or order.count) and _fits(trial, gang):
                return extra
        return None

    def _order(self, name: str, entry: Entry, count: int) -> None:
        pool = self.scheduler.pools[name]
        order = self._orders.setdefault(name, _Order(Cluster((), self.scheduler.cluster.rules)))
        for node in _nodes(pool, count, order.count):
            order.cluster.add(node)
        order.count += count
        order.ids.append(entry.request.id)
        place(order.cluster, _unbound(least_of(entry.kind.gang)), {})

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
        for workspace, user, amounts in self._charged:
            scheduler.tree.use(scheduler.tree.place(workspace), user, amounts, -1)
        self._charged = []


def _nodes(pool: Pool, count: int, first: int) -> list[Node]:
    if pool.promise is None:
        return []
    return [
        replace(pool.promise, name=f"{pool.name}+{first + at}", pool=pool.name, state=NodeState.READY)
        for at in range(count)
    ]


def _unbound(gang: Gang) -> Gang:
    """The same gang with shapes of its own, since a shape remembers one cluster's nodes."""
    return Gang(tuple(Part(part.role, part.shape.copy(), part.least, part.most) for part in gang.parts))


def _fits(cluster: Cluster, gang: Gang) -> bool:
    taken = place(cluster, _unbound(least_of(gang)), {})
    if taken is None:
        return False
    release(cluster, taken)
    return True


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
