"""The conductor's part in pools: nodes that are coming, and what the scheduler asks for, written down before anybody buys it.

Buying is leader/pool_loop.py, beside the turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from trainyard.scheduling import Cycle, Node, NodeState, Scheduler
from trainyard.server.cluster import elastic_pools, scheduler_snapshot
from trainyard.server.cluster.elastic_pools import Elastic
from trainyard.server.cluster.snapshot_loader import load_pools
from trainyard.server.records.nodes import NodeDesired, NodeRecord
from trainyard.server.records.pools import MachineRecord
from trainyard.server.store import events
from trainyard.server.store.cluster import pools
from trainyard.server.store.database import Database
from trainyard.server.wakeups import EVENTS, POOLS, RECONCILER, Wakeups

if TYPE_CHECKING:
    from trainyard.server.leader.reconciler import Reconciler


class PoolDemand:
    """A cache of pools and their live machines, and the machines that this turn has decided on."""

    def __init__(self, wakeups: Wakeups) -> None:
        self.elastic = Elastic()
        self.has_news = False  # whoever buys has changed machines, nodes or pools
        self._wakeups = wakeups
        self._wanted: list[MachineRecord] = []
        self._promised: Mapping[str, object] = {}  # as the scheduler knows it
        self._changed: set[str] = set()  # machines that came or went

    def load(self, c: Connection, now: float) -> Elastic:
        """Read it for a new scheduler. What a turn decided and did not write is forgotten."""
        self._wanted, self._changed = [], set()
        self.elastic = load_pools(c)
        self._promised = self.elastic.promises(now)
        return self.elastic

    async def take_news(self, db: Database, now: float) -> bool:
        """Read it again; True: so much has changed that the scheduler must be made anew."""
        before, self.elastic = self.elastic.machines, await db.read(load_pools)
        self._changed |= before.keys() ^ self.elastic.machines.keys()
        return self.elastic.promises(now) != self._promised

    def take_changed(self) -> set[str]:
        """Nodes that the scheduler should hear of again."""
        changed, self._changed = self._changed, set()
        return changed

    def node(self, record: NodeRecord | None, name: str, now: float) -> Node | None:
        """A node as the scheduler sees it: coming, there, or gone."""
        coming = self.elastic.coming(name, record)
        if coming is not None:
            return coming
        return None if record is None else scheduler_snapshot.node_of(record, now)

    def order(self, cycle: Cycle, scheduler: Scheduler, now: float) -> None:
        """Decide on machines, each with its name. From now on the scheduler counts on them."""
        if not self.elastic.pools:
            return
        asked = {one for acquire in cycle.acquires for one in acquire.for_ids}
        gangs = {one for one in asked if _needs_several(scheduler, one)}
        ready = {node.name for node in scheduler.cluster.nodes if node.state is NodeState.READY}
        wanted = self.elastic.order(cycle.acquires, gangs, now, ready=ready)
        machines = {**self.elastic.machines, **{machine.name: machine for machine in wanted}}
        self.elastic = replace(self.elastic, machines=machines)
        self._wanted += wanted
        for machine in wanted:
            node = self.elastic.coming(machine.name)
            if node is not None:
                scheduler.add_node(node)

    def take_wanted(self) -> Sequence[MachineRecord]:
        """What is to be written with this turn."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def write(self, c: Connection, wanted: Sequence[MachineRecord], now: float) -> None:
        """Write it, before anybody can buy it."""
        pools.insert_machines(c, wanted)
        events.append_many(c, elastic_pools.told(wanted, now))

    def tell(self, wanted: Sequence[MachineRecord]) -> None:
        """Have it bought."""
        if wanted:
            self._wakeups.wake(POOLS, EVENTS)


class PoolChannel:
    """What those who buy and release may know of the conductor, and tell it."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler

    def look_again(self) -> None:
        """Nodes, pools or machines have changed."""
        self._reconciler.pool_demand.has_news = True
        self._reconciler.wakeups.wake(RECONCILER)

    def is_busy(self, node: str) -> bool:
        """Whether a job has a place there, or one is kept for it."""
        return self._has_work(node) or self._reconciler.memory.is_claimed(node)

    def _has_work(self, node: str) -> bool:
        return any(node in job.nodes for job in self._reconciler.memory.held.values())

    def is_awaited(self, jobs: Iterable[str]) -> bool:
        """Whether one of these jobs still waits."""
        return any(job in self._reconciler.memory.waiting for job in jobs)

    def is_left(self, node: str) -> bool:
        """Whether nothing runs there, and nothing will: it takes no new work, and the conductor knows that."""
        record = self._reconciler.node_cache.find(node)
        is_closed = record is None or record.desired != NodeDesired.READY
        return is_closed and not self._has_work(node)


def _needs_several(scheduler: Scheduler, workload: str) -> bool:
    entry = scheduler.entries.get(workload)
    return entry is not None and sum(role.least for role in entry.request.roles) > 1
