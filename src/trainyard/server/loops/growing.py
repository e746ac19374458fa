"""The conductor's part in pools: nodes that are coming, and what the scheduler asks for, written down before anybody buys it.

Buying is loops/pools.py, beside the turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from trainyard.scheduling import Cycle, Node, Scheduler
from trainyard.server import elastic, snapshot
from trainyard.server.elastic import Elastic
from trainyard.server.services.hints import EVENTS, POOLS, Hints
from trainyard.server.store import events, pools
from trainyard.server.store.nodes import NodeRecord
from trainyard.server.store.pools import MachineRecord


class Growing:
    """A cache of pools and their live machines, and the machines that this turn has decided on."""

    def __init__(self, hints: Hints) -> None:
        self.elastic = Elastic()
        self.has_news = False  # whoever buys has changed machines, nodes or pools
        self._hints = hints
        self._wanted: list[MachineRecord] = []

    def load(self, c: Connection) -> Elastic:
        """Read it anew. What a turn decided and did not write is forgotten."""
        self._wanted = []
        self.elastic = elastic.load(c)
        return self.elastic

    def node(self, record: NodeRecord | None, name: str, now: float) -> Node | None:
        """A node as the scheduler sees it: coming, there, or gone."""
        coming = self.elastic.coming(name, record)
        if coming is not None:
            return coming
        return None if record is None else snapshot.node_of(record, now)

    def order(self, cycle: Cycle, scheduler: Scheduler, now: float) -> None:
        """Decide on machines, each with its name. From now on the scheduler counts on them."""
        if not self.elastic.pools:
            return
        asked = {one for acquire in cycle.acquires for one in acquire.for_ids}
        gangs = {one for one in asked if _needs_several(scheduler, one)}
        wanted = self.elastic.order(cycle.acquires, gangs, now)
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
        events.append_many(c, elastic.told(wanted, now))

    def tell(self, wanted: Sequence[MachineRecord]) -> None:
        """Have it bought."""
        if wanted:
            self._hints.wake(POOLS, EVENTS)


def _needs_several(scheduler: Scheduler, workload: str) -> bool:
    entry = scheduler.entries.get(workload)
    return entry is not None and sum(role.least for role in entry.request.roles) > 1
