"""The scheduler with a memory: told what comes and ends, it decides in each cycle who starts.

A cycle: 1 raise the priority of those who waited long; 2 start those whose victims have gone; 3 look again at what may
fit now; 4 go through all lines in turn, by share: admit, reserve for the first that is blocked, let others pass only
where they do not delay it, preempt where that is allowed; 5 ask for nodes where a pool can grow. `schedule` in cycle.py
is the same from a snapshot. Why somebody waits is told in diagnosis.py.
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

# Calling others away is a long look, and the next cycle is near: only the first few look in each, and whoever found nobody
# lets others look until a victim would have gone.
PREEMPTING_LINES = 8
PREEMPTORS = 2  # of each line


class Outcome(Enum):
    """What became of one look at a waiting workload."""

    ADMITTED = "admitted"
    FIT = "fit"
    QUOTA = "quota"
    USER = "user"  # the user's own limit
    RESERVATION = "reservation"
    NODES = "nodes"  # they are coming, or asked for


@dataclass(slots=True)
class Cycle:
    """What one cycle decided, besides who waits."""

    now: float
    admits: list[Admit] = field(default_factory=list)
    preempts: list[Preempt] = field(default_factory=list)
    acquires: list[Acquire] = field(default_factory=list)


class _Shares(dict[Owner, float]):
    """Users' shares, worked out when somebody asks."""

    def __init__(self, scheduler: SchedulerState) -> None:
        super().__init__()
        self.scheduler = scheduler

    def __missing__(self, owner: Owner) -> float:
        share = self[owner] = self.scheduler.shares.share(owner, self.scheduler.now)
        return share


class _NoShares(dict[Owner, float]):
    """Where shares do not count."""

    def __missing__(self, owner: Owner) -> float:
        return 0.0


_NO_SHARES = _NoShares()


_devices = attrgetter("devices")


class Scheduler(SchedulerState):
    """Who runs next, where. The same events give the same decisions."""

    def __init__(self, snapshot: Snapshot, now: float = 0.0) -> None:
        super().__init__(snapshot, now)
        self.growth = Growth(self)
        self._cycle = Cycle(now)
        self._in_vain: dict[str, float] = {}  # who found nobody to call away → when it looks again
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
        """Let an elastic workload that runs leave for a larger start of its own; None: there is no room, or others wait.

        It keeps its places until `end` is called for it, and the larger ones stay free for it. Submitted again with them as
        its claim it is admitted before anybody else; whoever withdraws it lets them go.
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
        """Find the kinds for which something has changed; nothing is reserved yet."""
        kinds = {kind: None for line in self.lines.values() for kind in line.kinds}
        self._waiting = dict.fromkeys(
            sorted(kinds, key=_devices)
        )  # where the small do not fit, no larger one is asked
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
        if len(self.ledger.changes) > 100_000:  # nobody needs what happened long ago
            self.ledger.forget()
            for reservation in self.reservations:
                reservation.layout = -1
        if len(self.cluster.grown) > 100_000:
            self.cluster.grown.clear()
            self.kinds.forget()

    def _walk_lines(self) -> None:
        """Let the lines take turns. A line is prepared when its turn may come: most cycles change little."""
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
        """A walk over those who may fit, and those who want a reservation."""
        left = {} if self.policy.one_line else self.tree.headroom(self.tree.place(line.name))
        return QueuePass(line, self._owner_shares(line), left, self._passing, self._head, self.now)

    def _head(self, line: WorkspaceQueue, room: Room) -> QueueEntry | None:
        """Who of a line should get a reservation for this kind of room; None: nobody, or it may fit after all."""
        if not self._wants(line, room, strict=False):
            return None
        first = line.first(room, self._may_reserve)
        return first if first is not None and first.kind.failed_at >= 0 else None

    def _note_blocker(self, walk: QueuePass) -> None:
        if walk.blocked_by is not None:
            self.blockers[walk.line.name] = walk.blocked_by

    def _first_turn(self, line: WorkspaceQueue) -> tuple[object, ...]:
        """Not later than the turn of anybody in the line."""
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
        """Whether a blocked workload of this line that needs such room should get a reservation."""
        # Where the strategy says that a blocked one is skipped, nothing is kept for it.
        if line.strategy is not Strategy.BACKFILL and not (strict and line.strategy is not Strategy.BALANCE):
            return False
        most = self.policy.gang_reservations if room[2] else self.policy.reservations
        return self._reserved.get(self._counted(room), 0) < (most or self.policy.reservations)

    def _counted(self, room: Room) -> Room:
        """Where gangs have no reservations of their own, they are counted with the others."""
        return room if self.policy.gang_reservations else (room[0], room[1], False)

    def _is_hopeful(self, entry: QueueEntry) -> bool:
        return entry.kind.hopeless != self.cluster.layout

    def _may_reserve(self, entry: QueueEntry) -> bool:
        """Whether only room keeps it waiting: nothing is kept free for whom no room or no quota would help."""
        if not self._is_hopeful(entry):
            return False
        request = entry.request
        return self.tree.limit(self.tree.place(request.workspace), request.user, entry.kind.least) is None

    def everybody(self, line: WorkspaceQueue) -> Iterator[QueueEntry]:
        """All who stand in a line, in order."""
        return line.everybody(self._owner_shares(line))

    def in_turn(self, queues: Mapping[str, Sequence[QueueEntry]]) -> Iterator[QueueEntry]:
        """All who wait, in about the order of their turns: line by line one each, by share."""
        lines = sorted((line for line in self.lines.values() if line.size), key=self._first_turn)
        for round_ in zip_longest(*(queues[line.name] for line in lines)):
            for entry in round_:
                if entry is not None:
                    yield entry

    def _look(self, walk: QueuePass, entry: QueueEntry) -> None:
        """Look at one workload, and then at the next that may start."""
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
        """It does not fit, and whatever is larger does not either; where pools can grow, everybody is asked."""
        kind.fail(self.cluster)
        if kind.larger and not self.growth.can_grow():
            for other in kind.larger:
                if other.failed_at < 0:
                    other.fail(self.cluster)

    def _note_delay(self, kind: RequestClass, mode: Mode) -> None:
        """It would delay these, and whatever is larger would too, if it fits at all."""
        self._passing.delays(kind, mode)
        admitted = len(self._cycle.admits)
        for other in kind.larger:
            if other.failed_at < 0 and other in self._waiting:
                # Seen to fit, and nobody has been admitted since: no need to look again.
                if self._fitting.get(other) == admitted or would_fit(self.cluster, other.gang, self.spreads):
                    self._fitting[other] = admitted
                    self._passing.delays(other, mode)
                elif not self.growth.can_grow():
                    self._note_failure(other)

    def _spare(self, kind: RequestClass) -> int:
        """How many devices may be in use by those who passed a gang: none where they would block whole nodes."""
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
        """Let the first in each line call others away, where that makes room for it."""
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
        """Whether there could be victims for this line at all: a quick look before the long one."""
        if self.preemptible:
            return True
        if self.policy.one_line:
            return self.tree.guarantees
        return any(place_.nominal for place_ in self.tree.chain(self.tree.place(line.name)))

    def _heads(self, line: WorkspaceQueue) -> list[QueueEntry]:
        """The first few blocked ones of a line, each in want of another kind of room, who did not just look in vain."""
        if line.strict:
            firsts = [item[3] for item in line.strict[:1]]
        else:
            heads = [line.first(room, self._is_hopeful) for room in line.rooms]
            found = [(-first.level, first.order, first) for first in heads if first is not None]
            firsts = [first[2] for first in nsmallest(PREEMPTORS, found)]
        return [first for first in firsts if first.request.id not in self._in_vain]

    def _preempt(self, line: WorkspaceQueue, entry: QueueEntry) -> None:
        """Tell others to go where that lets this one start."""
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
        """How long a victim may take to go: as long as it needs, within what the policy allows."""
        return self.policy.grace if request.grace is None else min(request.grace, self.policy.longest_grace)

    def _tell(self, victim: Victim, entry: QueueEntry, leave_by: float) -> None:
        self._cycle.preempts.append(
            Preempt(victim.running.request.id, entry.request.id, leave_by, victim.reason(entry.request))
        )

    def _settle_claims(self, now: float) -> None:
        """Start those whose victims have gone; let those whose place is lost stand in line again."""
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
        """The claimed places, on whichever devices are free there."""
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
