"""Pools that grow, as the scheduler sees them: what they promise, what is coming, and what its orders become. Pure.

Buying, joining and releasing is leader/pool_loop.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.lib.ids import Serials
from trainyard.scheduling import Acquire, Node, NodeState, Pool, Taint
from trainyard.server.records.nodes import NODES, RUNS_IMAGES, NodeCondition, NodeRecord
from trainyard.server.records.pools import COMING, MachineRecord, PoolRecord
from trainyard.spec.events import Event, Subject

# Options of a pool that are a machine's, word for word; the others are ours.
MACHINE_OPTIONS = {
    "image": str,
    "image_type": str,
    "system_disk_gib": int,
    "data_disk_gib": int,
    "vpc_name": str,
    "shared_storage": bool,
    "with_driver": bool,
    "role": str,
    "max_hours": int,  # without a server for so long, the provider releases them
}
DECLARE_DEVICES = "declare_devices"  # nodes are said to have the devices of the catalogue, to try things out
OPTIONS = {**MACHINE_OPTIONS, DECLARE_DEVICES: bool}

MOST_NAMED = 20  # of the jobs that a machine is bought for

_serials = Serials()


@dataclass(frozen=True, slots=True)
class Elastic:
    """Pools and their live machines, by name."""

    pools: Mapping[str, PoolRecord] = field(default_factory=dict)
    machines: Mapping[str, MachineRecord] = field(default_factory=dict)

    def coming(self, name: str, record: NodeRecord | None = None) -> Node | None:
        """The node of a machine that is bought, or about to be, and not ready yet; None for all others."""
        machine = self.machines.get(name)
        if machine is None or machine.state not in COMING:
            return None
        if record is not None and record.state == NodeCondition.READY:
            return None
        pool = self.pools.get(machine.pool)
        return None if pool is None or not pool.is_active else _node(pool, name, NodeState.COMING)

    def nodes(self, records: Iterable[NodeRecord]) -> dict[str, Node]:
        """All that are coming, by name; `records` are the nodes there are."""
        known = {record.name: record for record in records}
        found = {name: self.coming(name, known.get(name)) for name in self.machines}
        return {name: node for name, node in found.items() if node is not None}

    def scheduled(self, nodes: Sequence[Node], now: float | None = None) -> tuple[Pool, ...]:
        """The pools of these nodes, and those that can grow. Without `now`, also those that could not buy lately."""
        sizes = Counter(node.pool for node in nodes)
        own = Counter(node.pool for node in nodes if node.name in self.machines)
        found = {name: Pool(name=name) for name in sizes}
        for pool in self.pools.values():
            promise = _node(pool, pool.name, NodeState.READY) if self._may_grow(pool, now) else None
            if promise is not None and pool.shape is not None:
                limit = pool.most + sizes[pool.name] - own[pool.name]
                found[pool.name] = Pool(name=pool.name, promise=promise, limit=limit, price=pool.shape.price)
        return tuple(found[name] for name in sorted(found))

    def promises(self, now: float) -> Mapping[str, object]:
        """What the scheduler is promised: while it stays the same, machines may come and go."""
        return {
            pool.name: (pool.shape, pool.most, pool.labels, pool.taints)
            for pool in self.pools.values()
            if self._may_grow(pool, now)
        }

    def size(self, pool: str) -> int:
        """How many machines a pool has, or is about to have."""
        return sum(machine.pool == pool for machine in self.machines.values())

    def order(
        self, acquires: Iterable[Acquire], gangs: Iterable[str], now: float, *, ready: Container[str] = ()
    ) -> list[MachineRecord]:
        """What to buy: what the scheduler asks for, and what a pool keeps in any case; never above its limit.

        `gangs` are workloads that need more than one node: an order for one of these alone is bought whole or not at all.
        `ready` are nodes that are there: what a pool has got but not looked at yet may be less than it was promised to
        be, and then more of the same is no use.
        """
        asked = {one.pool: one for one in acquires}
        several = set(gangs)
        unseen = {one.pool for one in self.machines.values() if one.state in COMING and one.name in ready}
        found: list[MachineRecord] = []
        for pool in self.pools.values():
            if pool.name in unseen or not self._may_grow(pool, now):
                continue
            size, acquire = self.size(pool.name), asked.get(pool.name)
            count = max(acquire.count if acquire else 0, pool.least - size)
            is_whole = acquire is not None and len(acquire.for_ids) == 1 and acquire.for_ids[0] in several
            jobs = acquire.for_ids[:MOST_NAMED] if acquire is not None else ()
            found += _records(pool, min(count, pool.most - size), now, is_whole=is_whole, jobs=jobs)
        return found

    def _may_grow(self, pool: PoolRecord, now: float | None) -> bool:
        is_waiting = now is not None and pool.retry_at is not None and pool.retry_at > now
        return pool.is_active and not is_waiting


def told(machines: Sequence[MachineRecord], now: float) -> list[Event]:
    """Events of machines that were decided on."""
    counts = Counter(machine.pool for machine in machines)
    return [
        Event(
            time=now,
            subject=Subject.POOL,
            subject_id=pool,
            code="machines_wanted",
            message=f"The queue needs {count} more machine{'s' if count > 1 else ''}.",
            data={"machines": [machine.name for machine in machines if machine.pool == pool]},
        )
        for pool, count in counts.items()
    ]


def _records(
    pool: PoolRecord, count: int, now: float, *, is_whole: bool, jobs: tuple[str, ...]
) -> list[MachineRecord]:
    order = f"{pool.name}-{_serials.new()}"
    return [
        MachineRecord(
            name=f"{order}-{number}",
            pool=pool.name,
            backend=pool.backend,
            wanted_at=now,
            is_spot=pool.is_spot,
            is_whole=is_whole,
            for_jobs=jobs,
        )
        for number in range(count)
    ]


def _node(pool: PoolRecord, name: str, state: NodeState) -> Node | None:
    shape = pool.shape
    if shape is None:
        return None
    return Node(
        name=name,
        pool=pool.name,
        cpu=shape.cpu,
        memory=shape.memory_mib,
        devices=dict(shape.devices),
        labels={**pool.labels, RUNS_IMAGES: "yes"} if shape.runs_images else dict(pool.labels),
        taints=tuple(Taint(*text.partition("=")[::2]) for text in pool.taints),
        engine=NODES,
        state=state,
    )
