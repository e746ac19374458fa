"""The nodes as the leader knows them: who is there, who is silent since when, who is avoided, who is to go.

What runs on them is the conductor's; how they are reached is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import Connection

from trainyard.engines.api import (
    FENCE_MARGIN_SECONDS,
    DeclaredNodes,
    Engine,
    NodeDiscovered,
    NodeLost,
    NodeSeen,
    NodesListed,
)
from trainyard.lib.clock import Deadlines
from trainyard.lib.errors import Error
from trainyard.server.cluster.node_addresses import address_of
from trainyard.server.leader.leader_lease import LeaderTerm
from trainyard.server.records.nodes import NodeCondition, NodeDesired, NodeRecord
from trainyard.server.store import events
from trainyard.server.store.cluster import nodes
from trainyard.spec.events import Event, Subject

# Starts that failed in a row before a node is avoided, and for how long: doubled each time, up to a day.
FAILURES = 3
AVOID_SECONDS = 600.0
LONGEST_AVOID_SECONDS = 86400.0
# A node whose clock is this bad gets no new work; one whose disk is full says so itself.
MOST_SKEW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NodeWrites:
    """What one turn writes of nodes."""

    discovered: Mapping[str, NodeRecord]  # rows that are new
    records: Mapping[str, NodeRecord | None]  # None: removed
    events: list[Event]


class NodeCache:
    """A cache of the table `nodes`, and what changes in it."""

    def __init__(self, term: LeaderTerm, engine: Engine, *, cpu_overcommit: float = 1.0) -> None:
        self._overcommit = cpu_overcommit
        self._term = term
        self._engine = engine
        self._records: dict[str, NodeRecord] = {}
        # By the clock that never steps: set forward, the other one would end a fence before the node does.
        self._lost_since: dict[str, float] = {}
        self._pauses = Deadlines(term.clock, longest=LONGEST_AVOID_SECONDS)
        self._writes: dict[str, NodeRecord | None] = {}
        self._events: list[Event] = []
        self._changed: set[str] = set()
        self._discovered: dict[str, NodeRecord] = {}  # to be written as new rows
        self._vanished: set[str] = set()  # discovered earlier, and not there any more
        self._left: set[str] = set()  # removed from the table, and still watched over

    async def load(self, given: Mapping[str, Iterable[tuple[str, str]]]) -> None:
        """Read all nodes, and have the engine watch over them; `given` is what each was given to run earlier."""
        for node, tasks in given.items():
            self._engine.expect(node, tasks)
        await self.reload()

    async def reload(self) -> None:
        """Read all nodes again; those that people added or took away join or leave the engine."""
        records = {one.name: one for one in await self._term.db.read(nodes.list_nodes)}
        self._writes.clear()
        self._discovered.clear()
        unusable = []
        for name in self._records.keys() - records.keys():
            self._changed.add(name)
            await self._leave(name)
        for name, record in records.items():
            known = self._records.get(name)
            if known != record:
                self._changed.add(name)
            if known is None or (known.address, known.fence_seconds) != (
                record.address,
                record.fence_seconds,
            ):
                unusable += await self._join(record)
        self._records = records
        for lost in unusable:
            self.lose(lost, self._term.clock.now().timestamp())

    async def _join(self, record: NodeRecord) -> list[NodeLost]:
        """Have its engine watch over a node. One that no engine can have is lost, and keeps no other from joining."""
        try:
            if isinstance(self._engine, DeclaredNodes):
                await self._engine.add_node(address_of(record))
        except Error as error:
            return [NodeLost(record.name, error.message, error.hint, is_refused=True)]
        return []

    async def _leave(self, name: str) -> None:
        if isinstance(self._engine, DeclaredNodes):
            await self._engine.remove_node(name)

    async def release(self) -> None:
        """Let go of nodes that this leader has removed."""
        left, self._left = self._left, set()
        for name in left - self._records.keys():
            await self._leave(name)

    def records(self) -> Sequence[NodeRecord]:
        """All nodes, for the scheduler."""
        return list(self._records.values())

    def names(self) -> Sequence[str]:
        """All names."""
        return list(self._records)

    def find(self, name: str) -> NodeRecord | None:
        """One node, if it is known."""
        return self._records.get(name)

    def device_of(self, name: str) -> str:
        """The type of a node's devices; of several, the first."""
        record = self._records.get(name)
        return next(iter(record.devices), "") if record is not None else ""

    def binds_peers(self, name: str) -> bool:
        """Whether tasks there hear of their peers only after all have started."""
        record = self._records.get(name)
        return record is not None and bool(record.facts.get("binds_peers"))

    # -- what happens

    def discover(self, found: NodeDiscovered, now: float) -> None:
        """An engine has a node that nobody declared. A declared one of the same name stays what it is."""
        self._vanished.discard(found.node)
        if found.node in self._records:
            return
        address = {"backend": found.engine, "discovered": True}
        record = NodeRecord(
            name=found.node, created_at=now, engine=found.engine, address=address, pool=found.pool
        )
        self._discovered[found.node] = record
        self._tell(record, now, "node_discovered", f"The engine {found.engine} has the node.")
        self._save(record)

    def keep_listed(self, found: NodesListed) -> None:
        """An engine has these nodes and no others: of its own, the rest is to go. Declared ones stay."""
        for record in self._records.values():
            if record.engine == found.engine and record.address.get("discovered"):
                if record.name in found.nodes:
                    self._vanished.discard(record.name)
                else:
                    self._vanished.add(record.name)

    def see(self, seen: NodeSeen, now: float) -> None:
        """A node has answered."""
        record = self._records.get(seen.node)
        if record is None:
            return
        self._lost_since.pop(seen.node, None)
        facts = asdict(seen.facts)
        found = {kind: len(indices) for kind, indices in seen.facts.devices.items()}
        problem = _problem(seen)
        changed = replace(
            record,
            state=NodeCondition.REFUSED if problem else NodeCondition.READY,
            reason=problem,
            boot_id=seen.incarnation,
            facts=facts,
            cpu=record.cpu
            if record.simulated and record.cpu
            else round(seen.facts.cpu_milli * self._overcommit),
            memory_mib=record.memory_mib if record.simulated and record.memory_mib else seen.facts.memory_mib,
            devices=record.devices if record.simulated else found,
            seen_at=now,
        )
        if changed.state != record.state:
            self._tell(
                changed, now, "node_ready" if not problem else "node_refused", problem or "The node answers."
            )
        known = record.facts.get("notices") or ()
        for notice in seen.facts.notices:
            if notice not in known:
                self._tell(changed, now, "node_notice", notice)
        self._save(changed)

    def lose(self, lost: NodeLost, now: float) -> bool:
        """A node is silent, or cannot be one. True where that is news."""
        record = self._records.get(lost.node)
        state = NodeCondition.REFUSED if lost.is_refused else NodeCondition.LOST
        self._lost_since.setdefault(lost.node, self._term.clock.monotonic())
        if record is None or (record.state == state and record.reason == lost.reason):
            return False
        changed = replace(record, state=state, reason=lost.reason)
        if record.state != state:
            self._tell(changed, now, f"node_{state.value}", lost.reason)
        self._save(changed)
        return True

    def blame(self, name: str, why: str, now: float) -> None:
        """A start failed on it; after a few in a row it is avoided for a while."""
        record = self._records.get(name)
        if record is None:
            return
        failures = record.failures + 1
        changed = replace(record, failures=failures)
        if failures >= FAILURES:
            pause = min(AVOID_SECONDS * 2 ** (failures - FAILURES), LONGEST_AVOID_SECONDS)
            changed = replace(
                changed, avoid_until=now + pause, reason=f"Avoided after {failures} failed starts: {why}"
            )
            self._tell(changed, now, "node_avoided", changed.reason)
        self._save(changed)

    def praise(self, name: str) -> None:
        """A start worked on it."""
        record = self._records.get(name)
        if record is not None and record.failures:
            self._save(replace(record, failures=0, avoid_until=None, reason=""))

    # -- what follows from it

    def is_due(self, now: float) -> bool:
        """Whether time alone has changed something."""
        return (
            bool(self._vanished)
            or any(self._is_over(one, now) for one in self._records.values())
            or any(True for _ in self._fenced())
        )

    def buried(self) -> list[tuple[str, str]]:
        """Nodes whose tasks have certainly ended, and why."""
        gone = [
            (one.name, "Its node was declared gone.")
            for one in self._records.values()
            if one.desired == NodeDesired.GONE
        ]
        gone += [(name, "Its engine does not have the node any more.") for name in self._vanished]
        return gone + [
            (name, "Its node was silent, and has ended it by its fence.") for name in self._fenced()
        ]

    def draining(self) -> list[str]:
        """Nodes that work is to leave."""
        return [one.name for one in self._records.values() if one.desired == NodeDesired.DRAINED]

    def take_changed(self, now: float, *, is_busy: Callable[[str], bool]) -> set[str]:
        """Nodes that the scheduler should hear of again."""
        for record in list(self._records.values()):
            if self._is_over(record, now):
                self._tell(record, now, "node_ready", "It is tried again.")
                self._save(replace(record, avoid_until=None, reason=""))
            is_gone = record.desired == NodeDesired.GONE or record.name in self._vanished
            if is_gone and not is_busy(record.name):
                self._tell(record, now, "node_removed", "The node was taken away.")
                self._remove(record.name)
        changed, self._changed = self._changed, set()
        return changed

    def _is_over(self, record: NodeRecord, now: float) -> bool:
        """Whether it was avoided for long enough."""
        return record.avoid_until is not None and self._pauses.is_past(record.name, record.avoid_until, now)

    def _fenced(self) -> Iterable[str]:
        now = self._term.clock.monotonic()
        for name, since in self._lost_since.items():
            record = self._records.get(name)
            fence = record.fence_seconds if record is not None else 0
            # The agent counts from the last word it had, we from when we noticed, which is later.
            if fence and now >= since + fence + 2 * FENCE_MARGIN_SECONDS:
                yield name

    # -- writing

    def take_writes(self) -> NodeWrites | None:
        """What is to be written with this turn."""
        if not self._writes and not self._events:
            return None
        taken = NodeWrites(self._discovered, self._writes, self._events)
        self._discovered, self._writes, self._events = {}, {}, []
        return taken

    def write(self, c: Connection, taken: NodeWrites | None) -> None:
        """Write it. People's columns are theirs: of rows that are there, only what nodes say is written here."""
        if taken is None:
            return
        for record in taken.discovered.values():
            nodes.insert_node(c, record)
        nodes.save_seen(c, [record for record in taken.records.values() if record is not None])
        for name in [name for name, record in taken.records.items() if record is None]:
            nodes.remove(c, name)
        events.append_many(c, taken.events)

    def _save(self, record: NodeRecord) -> None:
        self._records[record.name] = record
        self._writes[record.name] = record
        self._changed.add(record.name)

    def _remove(self, name: str) -> None:
        self._records.pop(name, None)
        self._vanished.discard(name)
        self._left.add(name)
        self._writes[name] = None
        self._changed.add(name)

    def _tell(self, record: NodeRecord, now: float, code: str, message: str) -> None:
        self._events.append(
            Event(
                time=now,
                subject=Subject.NODE,
                subject_id=record.name,
                code=code,
                message=message,
                state=record.state,
            )
        )


def _problem(seen: NodeSeen) -> str:
    facts = seen.facts
    if facts.refusal:
        return f"{facts.refusal[0].upper()}{facts.refusal[1:]}."
    if abs(facts.clock_skew_seconds) > MOST_SKEW_SECONDS:
        return f"Its clock is off by {facts.clock_skew_seconds:.0f} s."
    return ""
