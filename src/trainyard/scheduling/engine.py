"""The scheduler with a memory: told what comes and ends, it decides in each cycle who starts.

A cycle: 1 raise the priority of those who waited long; 2 start those whose victims have gone; 3 look again at what may
fit now; 4 go through all lines in turn, by share: admit, reserve for the first that is blocked, let others pass only
where they do not delay it, preempt where that is allowed; 5 ask for nodes where a pool can grow. `schedule` in cycle.py
is the same from a snapshot. Why somebody waits is told in diagnosis.py.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heapify, heappop, heappushpop, nsmallest
from itertools import zip_longest
from operator import itemgetter

from trainyard.scheduling.cluster import Keep
from trainyard.scheduling.growth import Growth
from trainyard.scheduling.kinds import Kind, Room
from trainyard.scheduling.lanes import OVERDUE, Entry, Likes, Line, Owner, Shares, Walk
from trainyard.scheduling.model import (
    Acquire,
    Admit,
    Preempt,
    Snapshot,
    Strategy,
)
from trainyard.scheduling.placement import Gang, Taken, least_of, place, release, would_fit
from trainyard.scheduling.preemption import Victim, find_victims
from trainyard.scheduling.reasons import Code
from trainyard.scheduling.reserve import Reservation, merge_all, reserve, still_holds
from trainyard.scheduling.state import State

# Calling others away is a long look, and the next cycle is near: only the first few look in each.
PREEMPTING_LINES = 8
PREEMPTORS = 2  # of each line


Mode = tuple[int, ...]  # numbers of reservations


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

    def __init__(self, scheduler: State) -> None:
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


class Scheduler(State):
    """Who runs next, where. The same events give the same decisions."""

    def __init__(self, snapshot: Snapshot, now: float = 0.0) -> None:
        super().__init__(snapshot, now)
        self.growth = Growth(self)
        self._cycle = Cycle(now)
        self._possible: list[Kind] = []
        self._blocked: list[Kind] = []
        self._shares = _Shares(self)  # of users, as they stand in this cycle
        self._workspace_shares: dict[str, float] = {}  # likewise
        self._keeps: dict[Mode, dict[int, Keep]] = {}
        self._starts: list[float] = []  # of the reservations that keep room, rising
        self._modes: list[Mode] = [()]  # by how many of these are outlived
        self._latest = 0.0  # start of any reservation
        self._whole = False  # whether one of them waits for whole nodes
        self._spares: dict[Mode, int] = {}  # devices that may still pass them
        self._delaying: dict[Kind, set[Mode]] = {}  # known in this cycle
        self._reserved: dict[Room, int] = {}
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
        self._preempt_lines()
        self.growth.finish(self._cycle)
        self._forget()
        return self._cycle

    def _waits(self, entry: Entry) -> bool:
        return self.entries.get(entry.request.id) is entry

    def _look_again(self) -> None:
        """Find the kinds for which something has changed; nothing is reserved yet."""
        waiting = {kind: None for line in self.lines.values() for kind in line.kinds}
        self._possible = [kind for kind in waiting if kind.may_fit(self.cluster)]
        for kind in self._possible:
            kind.forget()
        self._blocked = [kind for kind in waiting if kind.failed_at >= 0]
        self.growth.begin()
        self._shares.clear()
        self._workspace_shares = {}
        self._last = {reservation.id: reservation for reservation in self.reservations}
        self.reservations = []
        self._reserved = {}
        self._keeps = {(): self._hard}
        self._starts, self._modes, self._latest, self._delaying = [], [()], 0.0, {}
        self._spares = {}
        self._whole = False
        self.blockers = {}

    def _forget(self) -> None:
        if len(self.ledger.changes) > 100_000:  # nobody needs what happened long ago
            self.ledger.changes.clear()
            for reservation in self.reservations:
                reservation.layout = -1
        if len(self.cluster.grown) > 100_000:
            self.cluster.grown.clear()
            for kind in self._blocked:
                kind.forget()

    def _walk_lines(self) -> None:
        """Let the lines take turns. A line is prepared when its turn may come: most cycles change little."""
        turns: list[tuple[tuple[object, ...], int, Walk | None]] = []
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

    def _walk(self, line: Line) -> Walk:
        """The kinds to look at: those that may fit, and those that want a reservation."""
        kinds = [kind for kind in self._possible if kind.failed_at < 0 and kind in line.kinds]
        blocked = []
        for room in list(line.heads):
            if self._wants(line, room, strict=False):
                first = line.first(room, self._waits, self._may_reserve)
                if first is not None and first.kind.failed_at >= 0:
                    blocked.append(first)
        if self.reservations:
            kinds = [kind for kind in kinds if not self._all_delay(kind, line.kinds[kind])]
        if not self.policy.one_line:
            left = self.tree.headroom(self.tree.place(line.name))
            if left:
                kinds = [kind for kind in kinds if kind.is_within(left)]
        return Walk(line, self._owner_shares(line), self.now, kinds, blocked)

    def _all_delay(self, kind: Kind, likes: Likes) -> bool:
        """Whether all of a kind are known to be too long to pass those who have a reservation."""
        return likes.shortest > self._latest - self.now and self._is_delaying(kind, self._modes[-1])

    def _is_delaying(self, kind: Kind, mode: Mode) -> bool:
        """Whether it was seen to fit only by delaying these reservations, and nothing has changed since."""
        # Within a cycle room only shrinks: what is delaying stays so.
        return mode in self._delaying.get(kind, ()) or self._looks_delaying(kind, mode)

    def _looks_delaying(self, kind: Kind, mode: Mode) -> bool:
        seen = kind.delays.get(mode)
        if seen is None or seen[1] != self.cluster.layout:
            return False
        if seen[0] > len(self.cluster.grown):
            return False
        self.cluster.keep = self._keep(mode)
        changed = kind.has_grown(self.cluster, seen[0])
        self.cluster.keep = self._hard
        if not changed:
            self._delaying.setdefault(kind, set()).add(mode)
        return not changed

    def _note_blocker(self, walk: Walk) -> None:
        if walk.blocked_by is not None:
            self.blockers[walk.line.name] = walk.blocked_by

    def _first_turn(self, line: Line) -> tuple[object, ...]:
        """Not later than the turn of anybody in the line."""
        if self.policy.one_line:
            return ()
        borrows = self.tree.guarantees and not line.strict and self._all_borrow(line)
        return (borrows, OVERDUE if self._has_overdue(line) else self._workspace_share(line.name))

    def _has_overdue(self, line: Line) -> bool:
        """Whether somebody in the line may have waited longer than anybody should."""
        return self.policy.fair_share and any(heap[0][2].overdue for heap in line.heads.values() if heap)

    def _all_borrow(self, line: Line) -> bool:
        """Whether even one more device would be above the workspace's guarantee, for all who stand in the line."""
        place_ = self.tree.place(line.name)
        return all(room[0] and self.tree.borrows(place_, ((room[0], 1),)) for room in line.heads)

    def _turn(self, entry: Entry) -> tuple[object, ...]:
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

    def _owner_shares(self, line: Line) -> Shares:
        if not self.policy.fair_share or line.strategy is not Strategy.BACKFILL:
            return _NO_SHARES
        return self._shares

    def _wants(self, line: Line, room: Room, *, strict: bool) -> bool:
        """Whether a blocked workload of this line that needs such room should get a reservation."""
        # Where the strategy says that a blocked one is skipped, nothing is kept for it.
        if line.strategy is not Strategy.BACKFILL and not (strict and line.strategy is not Strategy.BALANCE):
            return False
        most = self.policy.gang_reservations if room[2] else self.policy.reservations
        return self._reserved.get(self._counted(room), 0) < (most or self.policy.reservations)

    def _counted(self, room: Room) -> Room:
        """Where gangs have no reservations of their own, they are counted with the others."""
        return room if self.policy.gang_reservations else (room[0], room[1], False)

    def _is_hopeful(self, entry: Entry) -> bool:
        return entry.kind.hopeless != self.cluster.layout

    def _may_reserve(self, entry: Entry) -> bool:
        """Whether only room keeps it waiting: nothing is kept free for whom no room or no quota would help."""
        if not self._is_hopeful(entry):
            return False
        request = entry.request
        return self.tree.limit(self.tree.place(request.workspace), request.user, entry.kind.least) is None

    def everybody(self, line: Line) -> Iterator[Entry]:
        """All who stand in a line, in order."""
        return line.everybody(self._owner_shares(line))

    def in_turn(self, queues: Mapping[str, Sequence[Entry]]) -> Iterator[Entry]:
        """All who wait, in about the order of their turns: line by line one each, by share."""
        lines = sorted((line for line in self.lines.values() if line.size), key=self._first_turn)
        for round_ in zip_longest(*(queues[line.name] for line in lines)):
            for entry in round_:
                if entry is not None:
                    yield entry

    def _look(self, walk: Walk, entry: Entry) -> None:
        """Look at one workload, and then at the next that may start."""
        line, kind = walk.line, entry.kind
        if walk.pass_blocked(entry):
            if self._wants(line, kind.reserve_key, strict=False) and self._may_reserve(entry):
                self._reserve(entry)
            return
        strict = line.is_strict(entry.request.priority)
        if not strict and kind.failed_at < 0 and self._is_too_long(walk, entry):
            return  # the commonest outcome by far, told apart before anything else is looked at
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
        elif outcome is Outcome.NODES:
            walk.cursor.skip(entry)
        elif outcome is Outcome.QUOTA:
            walk.cursor.skip_workspace(entry.request.workspace)
        elif outcome is Outcome.USER:
            walk.cursor.skip_owner(entry.owner)
        elif outcome is Outcome.RESERVATION:
            self._pass_longer(walk, entry, self._outlived(entry))

    def _is_too_long(self, walk: Walk, entry: Entry) -> bool:
        """Whether it is known to delay those whom it would outlive; then the walk passes it and all who are longer by."""
        outlived = self._outlived(entry)
        if not outlived or not self._must_wait(entry.kind, self._modes[outlived]):
            return False
        self._pass_longer(walk, entry, outlived)
        return True

    def _must_wait(self, kind: Kind, mode: Mode) -> bool:
        """Whether it is known to delay those whom it would outlive, and they cannot spare what it takes."""
        return self._is_delaying(kind, mode) and not (kind.devices and self._may_pass(kind, mode))

    def _pass_longer(self, walk: Walk, entry: Entry, outlived: int) -> None:
        """Whoever of the kind outlives the same reservations, or more, would delay them too."""
        walk.cursor.skip_longer(entry, self._starts[outlived - 1] - self.now)

    def _attempt(self, line: Line, entry: Entry) -> Outcome:
        request, kind = entry.request, entry.kind
        place_ = self.tree.place(request.workspace)
        gang = kind.gang
        limited = self.tree.limit(place_, request.user, kind.most)
        if limited is not None and kind.least != kind.most:
            limited = self.tree.limit(place_, request.user, kind.least)
            gang = least_of(gang)
        if limited is not None:
            return Outcome.USER if limited[1].code is Code.USER_LIMIT else Outcome.QUOTA
        mode = outlived = self._modes[self._outlived(entry)]
        if mode and kind.devices and self._may_pass(kind, mode):
            mode = ()
        if mode and self._is_delaying(kind, mode):
            return Outcome.RESERVATION
        taken = self._place(gang, mode)
        if taken is not None:
            line.remove(entry)
            del self.entries[request.id]
            passed = tuple(one.id for one in self.reservations if one.number in outlived) if not mode else ()
            self._start(entry, taken, self.now, passed)
            return Outcome.ADMITTED
        if mode and would_fit(self.cluster, gang, self.spreads):  # but for the reservations
            if len(kind.delays) > 8:
                kind.delays.clear()
                self._delaying.pop(kind, None)
            kind.delays[mode] = (len(self.cluster.grown), self.cluster.layout)
            self._delaying.setdefault(kind, set()).add(mode)
            return Outcome.RESERVATION
        if self.growth.ask(entry):
            return Outcome.NODES
        kind.fail(self.cluster)
        return Outcome.FIT

    def _may_pass(self, kind: Kind, mode: Mode) -> bool:
        """Whether all whom it would delay can spare what it takes."""
        spare = self._spares.get(mode)
        if spare is None:
            delayed = [one for one in self.reservations if one.number in mode]
            spare = self._spares[mode] = min(one.spare - self.passed.get(one.id, 0) for one in delayed)
        return kind.devices <= spare

    def _spare(self, kind: Kind) -> int:
        """How many devices may be in use by those who passed a gang: none where they would block whole nodes."""
        if not kind.reserve_key[2] or self._is_whole(kind.gang):
            return 0
        return int(kind.devices * self.policy.gang_spare)

    def _outlived(self, entry: Entry) -> int:
        """How many of the reservations, the earliest first, a workload would outlive."""
        # A node is lost to whoever waits for all of it by a single one that stays: there limits count.
        return bisect_left(self._starts, self.now + (entry.limit if self._whole else entry.stay))

    def _is_whole(self, gang: Gang) -> bool:
        """Whether replicas are so large that a single device taken from a node may be one too many."""
        shape = gang.parts[0].shape
        node = len(self.cluster.by_free.get(shape.device, ())) - 1
        return len(gang.parts) > 1 or shape.count * 4 > node

    def _note(self, reservation: Reservation, kind: Kind) -> None:
        """Let a reservation count from now on."""
        key = self._counted(kind.reserve_key)
        self._reserved[key] = self._reserved.get(key, 0) + 1
        self.reservations.append(reservation)
        self._latest = max(self._latest, reservation.start)
        if reservation.keep:
            self._whole = self._whole or reservation.whole
            insort(self._starts, reservation.start)
            keeping = [one for one in self.reservations if one.keep]
            self._modes = [
                (),
                *(tuple(one.number for one in keeping if one.start <= end) for end in self._starts),
            ]

    def _keep(self, mode: Mode) -> dict[int, Keep]:
        keep = self._keeps.get(mode)
        if keep is None:
            chosen = [one.keep for one in self.reservations if one.number in mode]
            keep = self._keeps[mode] = merge_all([self._hard, *chosen])
        return keep

    def _place(self, gang: Gang, mode: Mode) -> list[Taken] | None:
        self.cluster.keep = self._keep(mode)
        taken = place(self.cluster, gang, self.spreads)
        self.cluster.keep = self._hard
        return taken

    def _start(self, entry: Entry, taken: list[Taken], now: float, passed: tuple[str, ...] = ()) -> None:
        request = entry.request
        if request.claim or request.head_since is not None:
            request = replace(request, claim=(), head_since=None)
        kind = entry.kind
        is_usual = len(kind.gang.parts) == 1 and kind.least == kind.most
        running = self._run(request, taken, now, now, kind.least if is_usual else None)
        self._workspace_shares.pop(request.workspace, None)
        self._shares.pop(entry.owner, None)
        slots = tuple(one.slot(self.cluster) for one in taken)
        if passed:
            self._pass(request.id, kind.devices, passed)
            self._spares = {}
        self._cycle.admits.append(Admit(request.id, slots, running.borrowed, passed))

    def _reserve(self, entry: Entry) -> None:
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
        lines = [line for line in self.lines.values() if line.size and self._may_preempt(line)]
        heads = [
            (self._turn(entry), number, line, entry)
            for number, line in enumerate(nsmallest(PREEMPTING_LINES, lines, key=self._first_turn))
            for entry in self._heads(line)
        ]
        heads.sort(key=itemgetter(0, 1))
        for _, _, line, entry in heads:
            if entry.request.id not in self.growth.asked:
                self._preempt(line, entry)

    def _may_preempt(self, line: Line) -> bool:
        """Whether there could be victims for this line at all: a quick look before the long one."""
        if self.preemptible:
            return True
        if self.policy.one_line:
            return self.tree.guarantees
        return any(place_.nominal for place_ in self.tree.chain(self.tree.place(line.name)))

    def _heads(self, line: Line) -> list[Entry]:
        """The first few blocked ones of a line, each in want of another kind of room."""
        if line.strict:
            return [item[3] for item in line.strict[:1]]
        firsts = [line.first(room, self._waits, self._is_hopeful) for room in list(line.heads)]
        found = [(-first.level, first.order, first) for first in firsts if first is not None]
        return [first[2] for first in nsmallest(PREEMPTORS, found)]

    def _preempt(self, line: Line, entry: Entry) -> None:
        """Tell others to go where that lets this one start."""
        found = find_victims(self, entry, self.tree.place(entry.request.workspace))
        if found is None:
            return
        victims, taken = found
        line.remove(entry)
        del self.entries[entry.request.id]
        leave_by = self.now + self.policy.grace
        for victim in victims:
            self._leave(victim.running, leave_by, entry.request.id, self.now)
            self._tell(victim, entry, leave_by)
        self._claim(entry, taken, {victim.running.request.id for victim in victims})

    def _tell(self, victim: Victim, entry: Entry, leave_by: float) -> None:
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
                taken = place(self.cluster, least_of(claim.entry.kind.gang), self.spreads)
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
