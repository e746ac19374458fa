"""The class Scheduler: learns of submitted and ended workloads and decides in each cycle which ones start.

A cycle: 1 raise the priority of workloads that have waited long; 2 start those whose victims have gone; 3 find the classes
that may fit now; 4 go through all queues in turn, by share: admit, reserve for the first blocked workload, let others
overtake only if they do not delay it, preempt if that is allowed; 5 ask for nodes if a pool can grow. `schedule` in
cycle.py does the same from a snapshot. diagnosis.py finds the reasons of waiting workloads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heapify, heappop, heappushpop, nsmallest
from itertools import islice, zip_longest
from operator import attrgetter, itemgetter

from trainyard.scheduling.backfill import Backfill, Mode
from trainyard.scheduling.elastic_jobs import affordable, at_most, more_room
from trainyard.scheduling.model import (
    Acquire,
    Admit,
    Enlarge,
    Preempt,
    Request,
    Snapshot,
    Strategy,
)
from trainyard.scheduling.placement import Gang, Taken, place, release, would_fit
from trainyard.scheduling.pool_growth import Growth
from trainyard.scheduling.preemption import Victim, find_victims
from trainyard.scheduling.queue_pass import QueuePass
from trainyard.scheduling.reasons import Code
from trainyard.scheduling.request_classes import RequestClass, Room
from trainyard.scheduling.reservations import Reservation, reserve, still_holds
from trainyard.scheduling.scheduler_state import SchedulerState
from trainyard.scheduling.workspace_queue import OVERDUE, Owner, QueueEntry, Shares, WorkspaceQueue

# The search for victims is slow, so only the first few workloads search in each cycle. A workload without success
# lets others search until a victim would have gone.
PREEMPTING_LINES = 8
PREEMPTORS = 2  # of each line


class Outcome(Enum):
    """The result of considering one waiting workload."""

    ADMITTED = "admitted"
    FIT = "fit"
    QUOTA = "quota"
    USER = "user"  # the user's own limit
    RESERVATION = "reservation"
    NODES = "nodes"  # they are coming, or asked for


@dataclass(slots=True)
class Cycle:
    """The decisions of one cycle, except those to wait."""

    now: float
    admits: list[Admit] = field(default_factory=list)
    preempts: list[Preempt] = field(default_factory=list)
    acquires: list[Acquire] = field(default_factory=list)


class _Shares(dict[Owner, float]):
    """The users' shares, computed on demand."""

    def __init__(self, scheduler: SchedulerState) -> None:
        super().__init__()
        self.scheduler = scheduler

    def __missing__(self, owner: Owner) -> float:
        share = self[owner] = self.scheduler.shares.share(owner, self.scheduler.now)
        return share


class _NoShares(dict[Owner, float]):
    """Stands in where shares do not count."""

    def __missing__(self, owner: Owner) -> float:
        return 0.0


_NO_SHARES = _NoShares()


_devices = attrgetter("devices")


class Scheduler(SchedulerState):
    """Decides which workload runs next, and where. The same events give the same decisions."""

    def __init__(self, snapshot: Snapshot, now: float = 0.0) -> None:
        super().__init__(snapshot, now)
        self.growth = Growth(self)
        self._cycle = Cycle(now)
        self._in_vain: dict[str, float] = {}  # workload that found no victims → when it searches again
        self._waiting: dict[RequestClass, None] = {}  # kinds, as the cycle began
        self._shares = _Shares(self)  # of users, as they stand in this cycle
        self._workspace_shares: dict[str, float] = {}  # likewise
        self._passing = Backfill(self.cluster, self.policy, self.passed)
        self._reserved: dict[Room, int] = {}
        self._fitting: dict[
            RequestClass, int
        ] = {}  # which would fit but for reservations → after so many admissions
        self._last: dict[
            object, Reservation
        ] = {}  # the same reservation keeps its number from cycle to cycle
        self._numbers = 0

    def cycle(self, now: float) -> Cycle:
        """Decide who starts now. Admitted workloads run from `now`; victims leave when `end` is called for them."""
        self.now = max(now, self.now)
        self._cycle = Cycle(self.now)
        self._expect()
        for line in self.lines.values():
            line.promote(self.now, self._waits)
        self._settle_claims(self.now)
        self._look_again()
        self._walk_lines()
        self._passing.end()
        self._preempt_lines()
        self.growth.finish(self._cycle)
        self._forget()
        return self._cycle

    def enlarge(self, id: str, now: float, *, grace: float) -> Enlarge | None:  # noqa: A002  # the noun everywhere
        """Stop a running elastic workload so that it starts again larger. None if there is no room or others wait.

        It keeps its places until `end` is called for it, and the larger ones stay free for it. When it is submitted again with
        them as its claim, it is admitted first. Withdrawing it frees them.
        """
        running = self.running.get(id)
        if running is None or running.leaving is not None:
            return None
        taken = more_room(self, running)
        if taken is None:
            return None
        leave_by = now + grace
        self._leave(running, leave_by, id, now)
        self._claim(self._entry(running.request), taken, {id})
        return Enlarge(id, len(running.taken), tuple(one.slot(self.cluster) for one in taken), leave_by)

    def _waits(self, entry: QueueEntry) -> bool:
        return self.entries.get(entry.request.id) is entry

    def _look_again(self) -> None:
        """Find the classes for which something has changed. Nothing is reserved yet."""
        kinds = {kind: None for line in self.lines.values() for kind in line.kinds}
        self._waiting = dict.fromkeys(
            sorted(kinds, key=_devices)
        )  # if a small class does not fit, larger ones are not checked
        self._passing.begin(self.now)
        for kind in self._waiting:
            if kind.may_fit(self.cluster):
                kind.forget()
            else:
                for other in kind.larger:
                    if other.failed_at >= 0:
                        other.fail(self.cluster)
        self.growth.begin()
        self._shares.clear()
        self._workspace_shares = {}
        self._last = {reservation.id: reservation for reservation in self.reservations}
        self.reservations = self._passing.made
        self._reserved = {}
        self._fitting = {}
        self.blockers = {}

    def _forget(self) -> None:
        if len(self.ledger.changes) > 100_000:  # old changes are not needed
            self.ledger.forget()
            for reservation in self.reservations:
                reservation.layout = -1
        if len(self.cluster.grown) > 100_000:
            self.cluster.grown.clear()
            self.kinds.forget()

    def _walk_lines(self) -> None:
        """Process the queues in turn. A queue is prepared only when its turn may come, since most cycles change little."""
        turns: list[tuple[tuple[object, ...], int, QueuePass | None]] = []
        lines = list(self.lines.values())
        for number, line in enumerate(lines):
            if line.size:
                turns.append((self._first_turn(line), number, None))
        heapify(turns)
        item = heappop(turns) if turns else None
        while item is not None:
            turn, number, walk = item
            if walk is None:
                walk = self._walk(lines[number])
            entry = walk.peek()
            if entry is None:
                self._note_blocker(walk)
                item = heappop(turns) if turns else None
                continue
            now_turn = self._turn(entry)
            item = (now_turn, number, walk)
            if not (turns and now_turn > turn and item > turns[0]):  # no two have the same number
                self._look(walk, entry)
            item = heappushpop(turns, item)

    def _walk(self, line: WorkspaceQueue) -> QueuePass:
        """Begin a pass over the workloads that may fit and those that want a reservation."""
        left = {} if self.policy.one_line else self.tree.headroom(self.tree.place(line.name))
        return QueuePass(line, self._owner_shares(line), left, self._passing, self._head, self.now)

    def _head(self, line: WorkspaceQueue, room: Room) -> QueueEntry | None:
        """Return the workload of a queue that should get a reservation for this kind of room, or None."""
        if not self._wants(line, room, strict=False):
            return None
        first = line.first(room, self._may_reserve)
        return first if first is not None and first.kind.failed_at >= 0 else None

    def _note_blocker(self, walk: QueuePass) -> None:
        if walk.blocked_by is not None:
            self.blockers[walk.line.name] = walk.blocked_by

    def _first_turn(self, line: WorkspaceQueue) -> tuple[object, ...]:
        """Return a turn that is not later than that of any workload in the queue."""
        if line.strict or not line.tops:
            return () if self.policy.one_line else (False, self._workspace_share(line.name))
        level, share, order, _ = line.tops[0]
        if self.policy.one_line:
            return (level,)
        borrows = self.tree.guarantees and self._all_borrow(line)
        if not line.overdue:
            return (borrows, self._workspace_share(line.name), level)
        return (borrows, OVERDUE, level, *order) if share == OVERDUE else (borrows, OVERDUE, level)

    def _all_borrow(self, line: WorkspaceQueue) -> bool:
        """Whether even one more device would be above the workspace's guarantee, for all who stand in the line."""
        place_ = self.tree.place(line.name)
        for room in line.rooms:  # noqa: SIM110  # asked of every line, twice a cycle
            if not room[0] or not self.tree.borrows(place_, ((room[0], 1),)):
                return False
        return True

    def _turn(self, entry: QueueEntry) -> tuple[object, ...]:
        """The smaller, the earlier its turn: within the guarantee, then by share, then priority and time."""
        if self.policy.one_line:
            return (-entry.level, *entry.order)
        workspace = entry.request.workspace
        borrows = self.tree.guarantees and self.tree.borrows(self.tree.place(workspace), entry.kind.least)
        share = OVERDUE if entry.overdue else self._workspace_share(workspace)
        return (borrows, share, -entry.level, *entry.order)

    def _workspace_share(self, workspace: str) -> float:
        if not self.policy.fair_share:
            return 0.0
        share = self._workspace_shares.get(workspace)
        if share is None:
            weight = self.tree.place(workspace).quota.weight
            share = self._workspace_shares[workspace] = self.shares.share(workspace, self.now, weight)
        return share

    def _owner_shares(self, line: WorkspaceQueue) -> Shares:
        if not self.policy.fair_share or line.strategy is not Strategy.BACKFILL:
            return _NO_SHARES
        return self._shares

    def _wants(self, line: WorkspaceQueue, room: Room, *, strict: bool) -> bool:
        """Return whether a blocked workload of this queue that needs such room should get a reservation."""
        # If the strategy skips blocked workloads, they get no reservation.
        if line.strategy is not Strategy.BACKFILL and not (strict and line.strategy is not Strategy.BALANCE):
            return False
        most = self.policy.gang_reservations if room[2] else self.policy.reservations
        return self._reserved.get(self._counted(room), 0) < (most or self.policy.reservations)

    def _counted(self, room: Room) -> Room:
        """Count gangs with other workloads if the policy has no separate reservations for gangs."""
        return room if self.policy.gang_reservations else (room[0], room[1], False)

    def _is_hopeful(self, entry: QueueEntry) -> bool:
        return entry.kind.hopeless != self.cluster.layout

    def _may_reserve(self, entry: QueueEntry) -> bool:
        """Return whether only room is missing. A workload that lacks quota or can never fit gets no reservation."""
        if not self._is_hopeful(entry):
            return False
        request = entry.request
        return self.tree.limit(self.tree.place(request.workspace), request.user, entry.kind.least) is None

    def everybody(self, line: WorkspaceQueue) -> Iterator[QueueEntry]:
        """Yield all workloads of a queue in order."""
        return line.everybody(self._owner_shares(line))

    def in_turn(self, queues: Mapping[str, Sequence[QueueEntry]]) -> Iterator[QueueEntry]:
        """Yield all waiting workloads, about in the order of their turns: one from each queue, by share."""
        lines = sorted((line for line in self.lines.values() if line.size), key=self._first_turn)
        for round_ in zip_longest(*(queues[line.name] for line in lines)):
            for entry in round_:
                if entry is not None:
                    yield entry

    def _look(self, walk: QueuePass, entry: QueueEntry) -> None:
        """Consider one workload, and then the next one that may start."""
        line, kind = walk.line, entry.kind
        if walk.pass_blocked(entry):
            if self._wants(line, kind.reserve_key, strict=False) and self._may_reserve(entry):
                self._reserve(entry)
            return
        strict = line.is_strict(entry.request.priority)
        known = kind.failed_at >= 0 and not kind.may_fit(self.cluster)
        outcome = Outcome.FIT if known else self._attempt(line, entry)
        if outcome is Outcome.ADMITTED:
            return
        if outcome is Outcome.FIT and self._wants(line, kind.reserve_key, strict=strict):
            self._reserve(entry)
        if strict:
            walk.pass_strict(entry)
        elif outcome is Outcome.FIT:
            walk.drop()
        elif outcome is Outcome.NODES or outcome is Outcome.RESERVATION:
            walk.cursor.skip(entry)
        elif outcome is Outcome.QUOTA:
            walk.cursor.skip_workspace(entry.request.workspace)
        elif outcome is Outcome.USER:
            walk.cursor.skip_owner(entry.owner)

    def _attempt(self, line: WorkspaceQueue, entry: QueueEntry) -> Outcome:
        request, kind = entry.request, entry.kind
        place_ = self.tree.place(request.workspace)
        gang = kind.gang
        limited = self.tree.limit(place_, request.user, kind.most)
        if limited is not None and kind.least != kind.most:
            limited = self.tree.limit(place_, request.user, kind.least)
            if limited is None:
                gang = affordable(self, place_, request.user, gang)
        if limited is not None:
            return Outcome.USER if limited[1].code is Code.USER_LIMIT else Outcome.QUOTA
        mode = outlived = self._passing.mode(entry)
        if mode and self._passing.may_pass(kind, mode, is_brief=entry.stay <= self.policy.brief):
            mode = ()
        taken = self._place(gang, mode)
        if taken is not None:
            line.remove(entry)
            del self.entries[request.id]
            passed = tuple(one.id for one in self.reservations if one.number in outlived) if not mode else ()
            self._start(entry, taken, self.now, passed)
            return Outcome.ADMITTED
        if mode and would_fit(self.cluster, gang, self.spreads):  # but for the reservations
            self._note_delay(kind, mode)
            return Outcome.RESERVATION
        if self.growth.ask(entry):
            return Outcome.NODES
        self._note_failure(kind)
        return Outcome.FIT

    def _note_failure(self, kind: RequestClass) -> None:
        """Note that a class and all larger ones do not fit. If pools can grow, each class is checked by itself."""
        kind.fail(self.cluster)
        if kind.larger and not self.growth.can_grow():
            for other in kind.larger:
                if other.failed_at < 0:
                    other.fail(self.cluster)

    def _note_delay(self, kind: RequestClass, mode: Mode) -> None:
        """Note that a class and all larger ones would delay these reservations."""
        self._passing.delays(kind, mode)
        admitted = len(self._cycle.admits)
        for other in kind.larger:
            if other.failed_at < 0 and other in self._waiting:
                # It was found to fit, and nothing was admitted since, so it is not checked again.
                if self._fitting.get(other) == admitted or would_fit(self.cluster, other.gang, self.spreads):
                    self._fitting[other] = admitted
                    self._passing.delays(other, mode)
                elif not self.growth.can_grow():
                    self._note_failure(other)

    def _spare(self, kind: RequestClass) -> int:
        """Return how many devices may be held by workloads that overtook a gang; none if they would block whole nodes."""
        if not kind.reserve_key[2] or self._is_whole(kind.gang):
            return 0
        return int(kind.devices * self.policy.gang_spare)

    def _is_whole(self, gang: Gang) -> bool:
        """Whether replicas are so large that a single device taken from a node may be one too many."""
        shape = gang.parts[0].shape
        node = len(self.cluster.by_free.get(shape.device, ())) - 1
        return len(gang.parts) > 1 or shape.count * 4 > node

    def _note(self, reservation: Reservation, kind: RequestClass) -> None:
        """Let a reservation count from now on."""
        key = self._counted(kind.reserve_key)
        self._reserved[key] = self._reserved.get(key, 0) + 1
        self._passing.note(reservation)

    def _place(self, gang: Gang, mode: Mode) -> list[Taken] | None:
        if not mode:
            return place(self.cluster, gang, self.spreads)
        self._passing.keep(mode)
        taken = place(self.cluster, gang, self.spreads)
        self._passing.keep(())
        return taken

    def _start(self, entry: QueueEntry, taken: list[Taken], now: float, passed: tuple[str, ...] = ()) -> None:
        request = entry.request
        if request.claim or request.head_since is not None:
            request = replace(request, claim=(), head_since=None)
        kind = entry.kind
        is_usual = len(kind.gang.parts) == 1 and kind.least == kind.most
        running = self._run(request, taken, now, now, kind if is_usual else None)
        self._workspace_shares.pop(request.workspace, None)
        self._shares.pop(entry.owner, None)
        slots = tuple(one.slot(self.cluster) for one in taken)
        if passed:
            self._pass(request.id, kind.devices, passed)
            self._passing.was_passed()
        self._cycle.admits.append(Admit(request.id, slots, running.borrowed, passed))

    def _reserve(self, entry: QueueEntry) -> None:
        """Keep room for a blocked workload, as long as its kind of room has reservations left."""
        last = self._last.get(entry.request.id)
        if last is not None and still_holds(self.ledger, entry.kind.gang, last, self.now, self.reservations):
            self._note(last, entry.kind)
            return
        made = reserve(self.ledger, entry.kind.gang, entry.request, self.now, self.reservations)
        if made is None:
            entry.kind.hopeless = self.cluster.layout
            return
        made.spare, made.whole = self._spare(entry.kind), self._is_whole(entry.kind.gang)
        if last is None or (last.start, last.keep) != (made.start, made.keep):
            self._numbers += 1
            made.number = self._numbers
            last = made
        last.spoken_for, last.seen, last.layout = made.spoken_for, made.seen, made.layout
        self._note(last, entry.kind)

    def _preempt_lines(self) -> None:
        """Preempt for the first workloads of each queue, if that makes room for them."""
        if not self.policy.preemption or not (self.preemptible or self.tree.guarantees):
            return
        self._in_vain = {name: until for name, until in self._in_vain.items() if until > self.now}
        lines = [line for line in self.lines.values() if line.size and self._may_preempt(line)]
        lines.sort(key=self._first_turn)
        looking = ((line, self._heads(line)) for line in lines)
        heads = [
            (self._turn(entry), number, line, entry)
            for number, (line, entries) in enumerate(islice(filter(itemgetter(1), looking), PREEMPTING_LINES))
            for entry in entries
        ]
        heads.sort(key=itemgetter(0, 1))
        for _, _, line, entry in heads:
            if entry.request.id not in self.growth.asked:
                self._preempt(line, entry)

    def _may_preempt(self, line: WorkspaceQueue) -> bool:
        """Check quickly whether there could be victims for this queue at all."""
        if self.preemptible:
            return True
        if self.policy.one_line:
            return self.tree.guarantees
        return any(place_.nominal for place_ in self.tree.chain(self.tree.place(line.name)))

    def _heads(self, line: WorkspaceQueue) -> list[QueueEntry]:
        """Return the first blocked workloads of a queue, one per kind of room, except those that just searched in vain."""
        if line.strict:
            firsts = [item[3] for item in line.strict[:1]]
        else:
            heads = [line.first(room, self._is_hopeful) for room in line.rooms]
            found = [(-first.level, first.order, first) for first in heads if first is not None]
            firsts = [first[2] for first in nsmallest(PREEMPTORS, found)]
        return [first for first in firsts if first.request.id not in self._in_vain]

    def _preempt(self, line: WorkspaceQueue, entry: QueueEntry) -> None:
        """Preempt other workloads if that lets this one start."""
        found = find_victims(self, entry, self.tree.place(entry.request.workspace))
        if found is None:
            self._in_vain[entry.request.id] = self.now + self.policy.grace
            return
        victims, taken = found
        line.remove(entry)
        del self.entries[entry.request.id]
        for victim in victims:
            leave_by = self.now + self._grace(victim.running.request)
            self._leave(victim.running, leave_by, entry.request.id, self.now)
            self._tell(victim, entry, leave_by)
        self._claim(entry, taken, {victim.running.request.id for victim in victims})

    def _grace(self, request: Request) -> float:
        """Return how long a victim may take to end: as long as it needs, up to the policy's bound."""
        return self.policy.grace if request.grace is None else min(request.grace, self.policy.longest_grace)

    def _tell(self, victim: Victim, entry: QueueEntry, leave_by: float) -> None:
        self._cycle.preempts.append(
            Preempt(victim.running.request.id, entry.request.id, leave_by, victim.reason(entry.request))
        )

    def _settle_claims(self, now: float) -> None:
        """Start the workloads whose victims have gone. Those that lost their places go back to the queue."""
        for claim in [claim for claim in self.claims.values() if not claim.victims]:
            request = claim.entry.request
            del self.claims[request.id]
            self.cluster.grown += claim.keep
            self._keep_for(claim, {})
            self.tree.use(self.tree.place(request.workspace), request.user, claim.amounts, -1)
            taken = self._exactly(claim.taken)
            if taken is None:
                gang = at_most(claim.entry.kind.gang, Counter(one.role for one in claim.taken))
                taken = place(self.cluster, gang, self.spreads)
            if taken is None:
                self._enqueue(claim.entry, now)
            else:
                self._start(claim.entry, taken, now)

    def _exactly(self, wanted: list[Taken]) -> list[Taken] | None:
        """Take the claimed places, on any free devices there."""
        taken: list[Taken] = []
        for one in wanted:
            ready = self.cluster.ready >> one.node & 1
            if not ready or not self.cluster.fits(one.node, one.shape):
                release(self.cluster, taken)
                return None
            devices = self.cluster.pick(one.node, one.shape)
            self.cluster.take(one.node, one.shape, devices)
            taken.append(Taken(one.role, one.shape, one.node, devices))
        return taken
