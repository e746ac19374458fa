"""The scheduler's state between cycles: queues, running workloads, claims.

Events change the state here; scheduler.py decides from it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError
from trainyard.scheduling.cluster import Cluster, Keep, add_node, first_device, slot_mask
from trainyard.scheduling.fair_share import Shares
from trainyard.scheduling.forecast import expected_run
from trainyard.scheduling.model import Holding, Node, Request, Role, Slot, Snapshot, Spread, Strategy
from trainyard.scheduling.placement import Taken
from trainyard.scheduling.quota import Amounts, QuotaTree
from trainyard.scheduling.request_classes import (
    RequestClass,
    RequestClasses,
    charge,
    is_unnamed,
    taken_amounts,
)
from trainyard.scheduling.reservations import (
    NO_KEEP,
    Cost,
    Ledger,
    Reservation,
    Running,
    cost_of,
    expected_end,
    merge,
    still_needed,
)
from trainyard.scheduling.workspace_queue import QueueEntry, WorkspaceQueue


@dataclass(slots=True)
class Claim:
    """Places that victims are leaving for a workload."""

    entry: QueueEntry
    taken: list[Taken]
    amounts: Amounts
    victims: set[str]
    keep: dict[int, Keep] = field(default_factory=dict)


class SchedulerState:
    """The waiting and running workloads and the free resources, updated by each event."""

    def __init__(self, snapshot: Snapshot, now: float = 0.0) -> None:
        self.policy = snapshot.policy
        self.cluster = Cluster(snapshot.nodes, snapshot.device_rules)
        self.tree = QuotaTree(snapshot.quotas)
        self.kinds = RequestClasses(self.cluster)
        self.ledger = Ledger(self.cluster)
        self.shares = Shares(self.policy.half_life, snapshot.past_use, snapshot.past_use_by_user, now)
        self.pools = {pool.name: pool for pool in snapshot.pools}
        for pool in snapshot.pools:
            for device in pool.promise.devices if pool.promise is not None else ():
                self.cluster.promise(device)
        self.spreads: dict[str, Spread] = {
            pool.name: pool.spread for pool in snapshot.pools if pool.spread is Spread.SPREAD
        }
        self.lines: dict[str, WorkspaceQueue] = {}
        self.entries: dict[str, QueueEntry] = {}
        self.running: dict[str, Running] = {}
        self.passers: dict[str, tuple[tuple[str, ...], int]] = {}  # who passed whom, holding so many devices
        self.passed: dict[str, int] = {}  # who was passed → devices held by those who did
        self.preemptible: Counter[str] = (
            Counter()
        )  # how much of each resource those hold that may be preempted
        self.by_cost: dict[
            str, list[tuple[Cost, Running]]
        ] = {}  # of each workspace, the cheapest victims first
        self.preemptible_by_cost: dict[str, list[tuple[Cost, Running]]] = {}
        self.claims: dict[str, Claim] = {}
        self.reservations: list[Reservation] = []
        self.blockers: dict[str, QueueEntry] = {}  # line → who blocks it
        self.now = now
        self.totals: dict[str, int] = {}
        self._serial = 0
        self._ends: list[tuple[float, int, Running]] = []  # heap of estimated ends
        self._hard: dict[int, Keep] = self.cluster.keep  # what stays free for claims
        self._measure()
        claimants = {request.id for request in snapshot.waiting if request.claim}
        for holding in snapshot.running:
            self._hold(holding, now, has_claimant=holding.leaving_for in claimants)
        for request in snapshot.waiting:
            self.submit(request, now=now)

    # -- what happens

    def submit(self, request: Request, *, now: float | None = None) -> None:
        """Add a workload to its queue. A preempted one keeps its old `submitted`."""
        if request.id in self.entries or request.id in self.running or request.id in self.claims:
            raise ConflictError(
                f"Workload {request.id!r} is already known.", hint="Give every workload an id of its own."
            )
        if not request.roles or any(role.replicas < 1 for role in request.roles):
            raise InvalidError(
                f"Workload {request.id!r} has no replicas.", hint="Give each role at least one."
            )
        for role in request.roles:
            if role.minimum is not None and not 0 <= role.minimum <= role.replicas:
                raise InvalidError(
                    f"Role {role.name!r} of workload {request.id!r} has a minimum of {role.minimum}, but {role.replicas} replicas.",
                    hint=f"Give a minimum from 0 to {role.replicas}.",
                )
        entry = self._entry(request)
        if request.claim and self._restore_claim(entry):
            return
        self._enqueue(entry, self.now if now is None else now)

    def _entry(self, request: Request) -> QueueEntry:
        self._serial += 1
        entry = QueueEntry(request, self.kinds.of(request), (self._due(request), self._serial))
        if request.expected is not None and self.policy.passing_runs > 0:
            entry.stay = min(entry.limit, self.policy.passing_runs * request.expected)
            if request.limit is None:
                entry.limit = entry.stay = request.expected  # the best that is known
        return entry

    def _due(self, request: Request) -> float:
        """What stands for time in the order: short ones are due sooner, and nobody is passed for ever."""
        policy = self.policy
        if not policy.short_first or self._line(request.workspace).strategy is not Strategy.BACKFILL:
            return request.submitted
        longest = max(policy.patience, policy.slowest_ageing)
        return request.submitted + min(expected_run(request, policy.assumed_run), longest)

    def _enqueue(self, entry: QueueEntry, now: float) -> None:
        request = entry.request
        line = self._line(request.workspace)
        self.entries[request.id] = entry
        line.add(entry, now)

    def withdraw(self, id: str) -> None:  # noqa: A002  # the noun everywhere
        """Take a waiting workload out of its queue."""
        claim = self.claims.pop(id, None)
        if claim is not None:
            request = claim.entry.request
            self.tree.use(self.tree.place(request.workspace), request.user, claim.amounts, -1)
            self.cluster.grown += claim.keep
            self._keep_for(claim, {})
            return
        entry = self.entries.pop(id, None)
        if entry is None:
            raise NotFoundError(f"Workload {id!r} is not waiting.", hint="Name one that waits.")
        self._line(entry.request.workspace).remove(entry)

    def end(self, id: str, now: float) -> None:  # noqa: A002
        """Free the room of a running workload or victim that has ended."""
        running = self.running.pop(id, None)
        if running is None:
            raise NotFoundError(f"Workload {id!r} is not running.", hint="Name one that was admitted.")
        _remove(self.by_cost[running.request.workspace], running)
        if running.request.preemptible:
            self.preemptible.subtract(dict(running.amounts))
            _remove(self.preemptible_by_cost[running.request.workspace], running)
        others, devices = self.passers.pop(id, ((), 0))
        for other in others:
            self.passed[other] -= devices
            if not self.passed[other]:
                del self.passed[other]
        self.ledger.drop(running)
        for one in running.taken:
            self.cluster.give(one.node, one.shape, one.devices)
            self.cluster.grown.append(one.node)
        request = running.request
        if running.is_charged:
            self.tree.use(self.tree.place(request.workspace), request.user, running.amounts, -1)
        self.shares.use(_accounts(request), -running.charge, now)
        claim = self.claims.get(running.leaving_for)
        if claim is not None:
            claim.victims.discard(id)
            self._keep_for(claim, self._needed(claim))

    def add_node(self, node: Node) -> None:
        """A node joins, or is ready at last."""
        if node.name in self.cluster.index:
            self.change_node(node)
            return
        self.cluster.add(node)
        self._measure()

    def change_node(self, node: Node) -> None:
        """A node's state, labels or health have changed. What it holds stays."""
        index = self.cluster.index.get(node.name)
        if index is None:
            raise NotFoundError(f"There is no node {node.name!r}.", hint="Add it first.")
        held: dict[str, int] = {}
        for _, _, one in self.ledger.releases.get(index, ()):
            if one.devices:
                held[one.shape.device] = held.get(one.shape.device, 0) | one.devices
        self.cluster.change(node, held)
        self._measure()

    def remove_node(self, name: str) -> None:
        """A node is gone. End what ran there first."""
        index = self.cluster.index.get(name)
        if index is None:
            raise NotFoundError(f"There is no node {name!r}.", hint="Name one that is there.")
        if self.ledger.releases.get(index):
            raise ConflictError(f"Workloads still hold node {name!r}.", hint="End them first.")
        self.cluster.remove(name)
        self._measure()

    # -- set-up

    def _measure(self) -> None:
        self.totals = self.cluster.totals()
        room = dict(self.totals)
        for pool in self.pools.values():
            if pool.promise is not None:
                add_node(room, pool.promise, max(0, pool.limit - self.pool_size(pool.name)))
        self.tree.capacity = room
        if self.kinds.mean_otherwise():
            self._resolve_again()

    def _resolve_again(self) -> None:
        """Who waits for devices without naming a type means another one now."""
        self.kinds.forget_unnamed()
        for entry in self.entries.values():
            if is_unnamed(entry.request.roles):
                line = self._line(entry.request.workspace)
                line.remove(entry)
                entry.kind = self.kinds.of(entry.request)
                line.add(entry, self.now)

    def pool_size(self, pool: str) -> int:
        """How many nodes the pool has, those that are coming among them."""
        return (self.cluster.by_pool.get(pool, 0) & self.cluster.present).bit_count()

    def _line(self, workspace: str) -> WorkspaceQueue:
        name = "" if self.policy.one_line else workspace
        line = self.lines.get(name)
        if line is None:
            quota = self.tree.places[workspace].quota if workspace in self.tree.places else None
            strategy = self.policy.strategy
            if quota is not None and quota.strategy is not None and not self.policy.one_line:
                strategy = quota.strategy
            line = self.lines[name] = WorkspaceQueue(name, strategy, self.policy)
        return line

    def _hold(self, holding: Holding, now: float, *, has_claimant: bool) -> None:
        """Take the resources that a running workload already holds. `has_claimant`: its places are claimed."""
        request = holding.request
        roles = {role.name: role for role in request.roles}
        taken = [self._taken(slot, roles, request.avoid) for slot in holding.slots]
        for one in taken:
            self.cluster.take(one.node, one.shape, one.devices)
        running = self._run(request, taken, holding.started, now)
        if holding.passed:
            self._pass(request.id, sum(one.shape.count for one in taken), holding.passed)
        if holding.leaving is not None:
            self._leave(running, holding.leaving, holding.leaving_for, now)
            if holding.leaving_for == request.id:
                has_claimant = bool(request.claim) and self._restore_claim(self._entry(request))
            if not has_claimant:  # nobody has its quota yet, and it has not gone: two would have it
                self._charge_again(running)
        if request.id in self.entries:
            raise ConflictError(f"Workload {request.id!r} waits and runs.", hint="Give it in one place only.")

    def _taken(self, slot: Slot, roles: dict[str, Role], avoid: frozenset[str]) -> Taken:
        if slot.node not in self.cluster.index:
            raise InvalidError(
                f"A workload runs on node {slot.node!r}, which is not there.", hint="Add the node, or end it."
            )
        index, role = self.cluster.index[slot.node], roles[slot.role]
        if slot.devices and not role.device:  # whatever it would get now: it has what is there
            role = replace(role, device=first_device(self.cluster.nodes[index]))
        return Taken(slot.role, self.kinds.shape(role, avoid), index, slot_mask(slot))

    def _run(
        self,
        request: Request,
        taken: list[Taken],
        started: float,
        now: float,
        kind: RequestClass | None = None,
    ) -> Running:
        """Count a workload whose room is taken as running; what `kind` says it needs is what it took, if one is given."""
        self._serial += 1
        running = Running(request, taken, started, self._serial)
        if kind is None:
            running.amounts = taken_amounts(taken)
            running.charge = charge(running.amounts, self.totals)
        else:
            running.amounts = kind.least
            running.charge = kind.charge(self.totals)
        self._estimate(running, now)
        place_ = self.tree.place(request.workspace)
        self.tree.use(place_, request.user, running.amounts)
        running.borrowed = place_.is_borrowing()
        self.shares.use(_accounts(request), running.charge, now)
        self.ledger.add(running)
        self.running[request.id] = running
        row = (cost_of(running), running)
        insort(self.by_cost.setdefault(request.workspace, []), row)
        if request.preemptible:
            self.preemptible.update(dict(running.amounts))
            insort(self.preemptible_by_cost.setdefault(request.workspace, []), row)
        return running

    def _expect(self) -> None:
        """Update the expected end of workloads that have run longer than expected."""
        while self._ends and self._ends[0][0] <= self.now:
            end, _, running = heappop(self._ends)
            if self.running.get(running.request.id) is running and running.end == end:
                self.ledger.drop(running)
                self._estimate(running, self.now)
                self.ledger.add(running)

    def _estimate(self, running: Running, now: float) -> None:
        expected = running.request.expected if self.policy.passing_runs > 0 else None
        running.end = expected_end(running, expected or self.policy.assumed_run, now)
        heappush(self._ends, (running.end, running.serial, running))

    def _pass(self, id: str, devices: int, others: tuple[str, ...]) -> None:  # noqa: A002
        """Remember which gangs it was allowed to overtake, until it ends."""
        self.passers[id] = (others, devices)
        for other in others:
            self.passed[other] = self.passed.get(other, 0) + devices

    def _leave(self, running: Running, leave_by: float, for_id: str, now: float) -> None:
        """Count a workload as leaving: its quota is free, its room not yet."""
        self.ledger.drop(running)
        running.leaving, running.leaving_for = leave_by, for_id
        self._estimate(running, now)
        self.ledger.add(running)
        request = running.request
        self.tree.use(self.tree.place(request.workspace), request.user, running.amounts, -1)
        running.is_charged = False

    def _charge_again(self, running: Running) -> None:
        request = running.request
        self.tree.use(self.tree.place(request.workspace), request.user, running.amounts)
        running.is_charged = True

    # -- claims

    def _restore_claim(self, entry: QueueEntry) -> bool:
        """Keep the claimed places again; False: they are not there any more."""
        roles = {role.name: role for role in entry.request.roles}
        known = [slot for slot in entry.request.claim if slot.node in self.cluster.index]
        victims = {id for id, running in self.running.items() if running.leaving_for == entry.request.id}  # noqa: A001
        if len(known) < len(entry.request.claim) or any(slot.role not in roles for slot in known):
            return False
        taken = [self._taken(slot, roles, entry.request.avoid) for slot in known]
        self._claim(entry, taken, victims)
        return True

    def _claim(self, entry: QueueEntry, taken: list[Taken], victims: set[str]) -> None:
        request = entry.request
        amounts = taken_amounts(taken)
        claim = self.claims[request.id] = Claim(entry, taken, amounts, victims)
        self.tree.use(self.tree.place(request.workspace), request.user, amounts)
        self._keep_for(claim, self._needed(claim))

    def _keep_for(self, claim: Claim, keep: dict[int, Keep]) -> None:
        """Let `keep` be what stays free for a claim; the cluster's sum follows."""
        for sign, keeps in ((-1, claim.keep), (1, keep)):
            for node, one in keeps.items():
                total = merge(self._hard.get(node, NO_KEEP), one, sign)
                if total == NO_KEEP:
                    self._hard.pop(node, None)
                else:
                    self._hard[node] = total
        claim.keep = keep

    def _needed(self, claim: Claim) -> dict[int, Keep]:
        """What must stay free for a claim, given what its victims still hold."""
        need: dict[int, list[Taken]] = {}
        for one in claim.taken:
            need.setdefault(one.node, []).append(one)
        going: dict[int, list[Taken]] = {}
        for victim in claim.victims:
            for one in self.running[victim].taken:
                going.setdefault(one.node, []).append(one)
        return {
            node: still_needed(((one.shape, 1) for one in parts), going.get(node, ()))
            for node, parts in need.items()
        }


def _remove(rows: list[tuple[Cost, Running]], running: Running) -> None:
    del rows[bisect_left(rows, (cost_of(running),))]


def _accounts(request: Request) -> tuple[object, ...]:
    return (request.workspace, (request.workspace, request.user))
