"""The line of one workspace: who is next, given priority, age and the users' shares.

Workloads with equal needs stand together, user by user: where one of them has no room, the others have none either, and
nobody asks again. What holds a workload is engine.py's business; this module keeps the order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from trainyard.scheduling.forecast import expected_run
from trainyard.scheduling.kinds import Kind, Room
from trainyard.scheduling.model import Policy, Request, Strategy

INFINITY = float("inf")
LAST = 1_000_000  # below every priority
OVERDUE = -1.0  # a share before all others
GANG_RUNS = 0.4  # of its expected run: what a gang waits for one level of priority
PASSED = 64  # so many who may not have room at all are passed by to find one who may

Owner = tuple[str, str]  # workspace and user
NOBODY: frozenset[Owner] = frozenset()
Shares = Mapping[Owner, float]
Key = tuple[int, float, tuple[float, int], "Entry"]  # orders a line: level, share, when it is due


class Entry:
    """One waiting workload in its line."""

    __slots__ = ("kind", "level", "limit", "order", "overdue", "request", "stay")

    def __init__(self, request: Request, kind: Kind, order: tuple[float, int]) -> None:
        self.request = request
        self.kind = kind
        self.order = order  # when it is due, then as they came
        self.level = request.priority  # with its age counted in
        self.limit = INFINITY if request.limit is None else request.limit  # how long it may run
        self.stay = self.limit  # the same with some certainty, where past runs are known
        self.overdue = False  # it has waited longer than anybody should

    def __lt__(self, other: Entry) -> bool:
        return self.order < other.order

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        return (self.request.workspace, self.request.user)


def level_of(
    request: Request, policy: Policy, strategy: Strategy, now: float, ageing: float
) -> tuple[int, float]:
    """A workload's priority with its age counted in, a level for every `ageing`, and when that rises next."""
    base = request.priority
    top = policy.top_priority
    if strategy is Strategy.INTELLIGENT:
        top = base if base >= policy.intelligent_high else policy.intelligent_high - 1
    elif strategy is not Strategy.BACKFILL:
        top = base
    if ageing <= 0 or base >= top:
        return base, INFINITY
    steps = int(max(0.0, now - request.submitted) // ageing)
    if request.submitted + (steps + 1) * ageing <= now:
        steps += 1  # the quotient was rounded down
    level = min(top, base + steps * policy.level)
    return level, INFINITY if level >= top else request.submitted + (steps + 1) * ageing


class Likes:
    """The entries of one kind in one line: by level, then by owner, oldest first."""

    __slots__ = ("levels", "shortest", "size")

    def __init__(self) -> None:
        self.levels: dict[int, dict[Owner, list[Entry]]] = {}
        self.shortest = INFINITY  # a bound of the members' stays
        self.size = 0

    def add(self, entry: Entry, owner: Owner) -> None:
        """Let an entry join. `owner` is the entry's, one object for all of theirs: it is kept as a key."""
        insort(self.levels.setdefault(entry.level, {}).setdefault(owner, []), entry)
        self.shortest = min(self.shortest, entry.stay)
        self.size += 1

    def remove(self, entry: Entry) -> None:
        """Take an entry out."""
        owners = self.levels[entry.level]
        mine = owners[entry.owner]
        del mine[bisect_left(mine, entry)]
        self.size -= 1
        if not mine:
            del owners[entry.owner]
            if not owners:
                del self.levels[entry.level]


class Line:
    """One workspace's queue (or, where all stand in one line, everybody's)."""

    def __init__(self, name: str, strategy: Strategy, policy: Policy) -> None:
        self.name = name
        self.strategy = strategy
        self.policy = policy
        self.kinds: dict[Kind, Likes] = {}
        self.strict: list[tuple[int, float, int, Entry]] = []  # where nobody overtakes: all, in order
        self.promotions: list[tuple[float, int, Entry]] = []
        self.heads: dict[Room, list[tuple[int, tuple[float, int], Entry]]] = {}  # kind of room → heap
        self._owners: dict[Owner, Owner] = {}
        self.size = 0
        self.departures: list[tuple[Owner, Kind]] = []  # who has left it, since a walk began
        self.head = ""
        self.head_since = 0.0

    def is_strict(self, priority: int) -> bool:
        """Whether a workload of this priority stands in the part of the line that nobody overtakes."""
        if self.strategy is Strategy.INTELLIGENT:
            return priority >= self.policy.intelligent_high
        return self.strategy in {Strategy.STRICT_FIFO, Strategy.BALANCE}

    def add(self, entry: Entry, now: float) -> None:
        """Let a workload join."""
        self.size += 1
        request = entry.request
        if self.is_strict(request.priority):
            insort(self.strict, self._strict_key(entry))
            return
        self._join(entry, self._age(entry, now))

    def _age(self, entry: Entry, now: float) -> int:
        """The level of an entry, and a note of when to look at it again."""
        ageing = self._ageing(entry)
        level, rises = level_of(entry.request, self.policy, self.strategy, now, ageing)
        if self.policy.fair_share and self.strategy is Strategy.BACKFILL:
            due = entry.request.submitted + self._patience(entry)
            entry.overdue = now >= due
            rises = rises if entry.overdue else min(rises, due)
        if rises != INFINITY:
            heappush(self.promotions, (rises, entry.order[1], entry))
        return level

    def _ageing(self, entry: Entry) -> float:
        """How long it waits for a level: long ones wait longer, since it matters less to them, and gangs not so long."""
        policy = self.policy
        if policy.ageing <= 0 or self.strategy is not Strategy.BACKFILL:
            return policy.ageing
        run = expected_run(entry.request, policy.assumed_run)
        if entry.kind.reserve_key[2] and policy.gang_ageing > 0:
            return max(policy.gang_ageing, min(GANG_RUNS * run, policy.slowest_gang_ageing))
        known = entry.request.limit is not None or entry.request.expected is not None
        return max(policy.ageing, min(run, policy.slowest_ageing)) if known else policy.ageing

    def _patience(self, entry: Entry) -> float:
        """How long it waits before it goes ahead of others of its priority, whatever their shares."""
        if entry.kind.reserve_key[2]:
            return self.policy.gang_patience
        policy = self.policy
        if policy.patient_runs <= 0:
            return policy.patience
        run = expected_run(entry.request, policy.assumed_run)
        return min(policy.patience, policy.patient_runs * run)

    def _strict_key(self, entry: Entry) -> tuple[int, float, int, Entry]:
        last = LAST if self.policy.preemptible_last and entry.request.preemptible else 0
        return (last - entry.request.priority, *entry.order, entry)

    def _join(self, entry: Entry, level: int) -> None:
        entry.level = level - LAST if self.policy.preemptible_last and entry.request.preemptible else level
        likes = self.kinds.get(entry.kind)
        if likes is None:
            likes = self.kinds[entry.kind] = Likes()
        owner = entry.owner
        likes.add(entry, self._owners.setdefault(owner, owner))
        heappush(self.heads.setdefault(entry.kind.reserve_key, []), (-entry.level, entry.order, entry))

    def first(self, room: Room, waits: Callable[[Entry], bool], may: Callable[[Entry], bool]) -> Entry | None:
        """Of those who need this kind of room and `may` have it, the oldest of the highest priority."""
        heap = self.heads.get(room, [])
        passed: list[tuple[int, tuple[float, int], Entry]] = []
        found: Entry | None = None
        while heap and len(passed) < PASSED:
            level, _, entry = heap[0]
            if -level != entry.level or not waits(entry):
                heappop(heap)  # it is gone, or has risen
            elif may(entry):
                found = entry
                break
            else:
                passed.append(heappop(heap))
        for item in passed:
            heappush(heap, item)
        if not heap:
            self.heads.pop(room, None)
        return found

    def is_behind(self, entry: Entry, blocker: Entry) -> bool:
        """Whether an entry is not looked at because the walk ended with `blocker`."""
        if not self.is_strict(entry.request.priority):
            return True
        return self._strict_key(blocker) < self._strict_key(entry)

    def remove(self, entry: Entry) -> None:
        """Take a workload out: it was admitted, withdrawn, or has a claim."""
        self.size -= 1
        self.departures.append((entry.owner, entry.kind))
        if self.is_strict(entry.request.priority):
            del self.strict[bisect_left(self.strict, self._strict_key(entry))]
            return
        likes = self.kinds[entry.kind]
        likes.remove(entry)
        if not likes.size:
            del self.kinds[entry.kind]

    def promote(self, now: float, waits: Callable[[Entry], bool]) -> None:
        """Raise the priority of those who have waited long enough."""
        while self.promotions and self.promotions[0][0] <= now:
            _, _, entry = heappop(self.promotions)
            if not waits(entry):
                continue  # it is gone
            self.kinds[entry.kind].remove(entry)
            self._join(entry, self._age(entry, now))

    def window(self, now: float) -> int:
        """How many of the strict part may be looked at."""
        if self.strategy is not Strategy.BALANCE or not self.strict:
            return 1
        head = self.strict[0][3].request
        if head.id != self.head:
            self.head = head.id
            self.head_since = head.submitted if head.head_since is None else head.head_since
        return 1 + int(max(0.0, now - self.head_since) // self.policy.balance_timeout)

    def everybody(self, shares: Shares) -> Iterator[Entry]:
        """All in the order in which they are looked at."""
        yield from (item[3] for item in self.strict)
        members: list[tuple[int, float, tuple[float, int], Entry]] = []
        for likes in self.kinds.values():
            for level, owners in likes.levels.items():
                for owner, entries in owners.items():
                    mine = shares[owner]
                    members += [
                        (-level, OVERDUE if entry.overdue else mine, entry.order, entry) for entry in entries
                    ]
        members.sort()
        yield from (member[3] for member in members)


class Cursor:
    """A place in the entries of one kind, during one walk."""

    __slots__ = ("kind", "known_at", "likes", "longest", "skipped", "users")

    def __init__(self, kind: Kind, likes: Likes) -> None:
        self.kind = kind
        self.likes = likes
        self.longest = INFINITY  # nobody longer is looked at any more
        self.skipped: dict[tuple[int, Owner], int] = {}  # how many were passed by
        self.users: frozenset[Owner] = NOBODY  # of whom nobody is looked at any more
        self.known_at = -1  # how many departures there had been when it was seen who is next; -1: look again

    def best(self, shares: Shares) -> Key | None:
        """Who is next among them, with the key that orders it among other kinds."""
        levels = self.likes.levels
        if not self.skipped and not self.users and self.longest == INFINITY:
            return self._top(max(levels), shares) if levels else None
        if self.longest < self.likes.shortest:
            return None
        for level in sorted(levels, reverse=True) if len(levels) > 1 else levels:
            first: Entry | None = None
            least = INFINITY
            for owner, entries in levels[level].items():
                if owner in self.users:
                    continue
                at = self.skipped.get((level, owner), 0) if self.skipped else 0
                if self.longest != INFINITY:
                    while at < len(entries) and entries[at].stay > self.longest:
                        at += 1
                    self.skipped[level, owner] = at
                if at >= len(entries):
                    continue
                mine = OVERDUE if entries[at].overdue else shares[owner]
                if first is None or mine < least or (mine == least and entries[at].order < first.order):
                    first, least = entries[at], mine
            if first is not None:
                return (-level, least, first.order, first)
        return None

    def _top(self, level: int, shares: Shares) -> Key | None:
        """The same while nobody was passed by."""
        first: Entry | None = None
        least = INFINITY
        for owner, entries in self.likes.levels[level].items():
            entry = entries[0]
            mine = OVERDUE if entry.overdue else shares[owner]
            if first is None or mine < least or (mine == least and entry.order < first.order):
                first, least = entry, mine
        return None if first is None else (-level, least, first.order, first)

    def skip(self, entry: Entry) -> None:
        """Pass one by: another of the same kind may still start."""
        key = (entry.level, entry.owner)
        self.skipped[key] = self.skipped.get(key, 0) + 1
        self.known_at = -1

    def skip_longer(self, entry: Entry, longest: float) -> None:
        """Pass one by, and all who may run longer than that."""
        self.skip(entry)
        self.longest = min(self.longest, longest)

    def skip_owner(self, owner: Owner) -> None:
        """Pass all of one user by."""
        self.users |= {owner}
        self.known_at = -1

    def skip_workspace(self, workspace: str) -> None:
        """Pass all of one workspace by."""
        self.known_at = -1
        self.users = self.users.union(
            owner for owners in self.likes.levels.values() for owner in owners if owner[0] == workspace
        )


class Walk:
    """One pass over a line in order. `peek` shows who is next; then say what became of it."""

    def __init__(
        self, line: Line, shares: Shares, now: float, kinds: Iterable[Kind], blocked: list[Entry]
    ) -> None:
        self.line = line
        line.departures.clear()
        self.shares = shares
        self.window = line.window(now)
        self.at = 0  # in the strict part
        self.blocked_by: Entry | None = None  # who ends the walk
        # NB: not later: when shares are asked for decides how they are rounded, and so who of two equals comes first.
        self._heap: list[tuple[Key, Cursor]] = []
        for kind in kinds:
            likes = line.kinds.get(kind)
            if likes is not None:
                cursor = Cursor(kind, likes)
                best = cursor.best(shares)
                if best is not None:
                    cursor.known_at = 0
                    self._heap.append((best, cursor))
        # Those known not to fit, who are shown for the sake of a reservation only.
        self._blocked: list[tuple[int, float, tuple[float, int], Entry]] = sorted(
            (
                (-entry.level, OVERDUE if entry.overdue else shares[entry.owner], entry.order, entry)
                for entry in blocked
            ),
            reverse=True,
        )
        heapify(self._heap)

    def peek(self) -> Entry | None:
        """Who is next; None: nobody more in this cycle."""
        if self.blocked_by is not None:
            return None
        if self.at < min(self.window, len(self.line.strict)):
            return self.line.strict[self.at][3]
        departures = self.line.departures
        while self._heap:
            key, cursor = self._heap[0]
            if cursor.kind.failed_at >= 0:
                heappop(self._heap)  # it was seen not to fit, perhaps in another line
                continue
            if cursor.known_at != len(departures):
                best = cursor.best(self.shares) if self._may_differ(key, cursor) else key
                if best is None:
                    heappop(self._heap)
                    continue
                cursor.known_at = len(departures)
                if best != key:
                    heapreplace(self._heap, (best, cursor))
                    continue
            return self._blocked[-1][3] if self._blocked and self._blocked[-1] < key else key[3]
        return self._blocked[-1][3] if self._blocked else None

    def _may_differ(self, key: Key, cursor: Cursor) -> bool:
        """Whether somebody else may be next in a kind: one of the kind has left, or the one's user has got more."""
        if cursor.known_at < 0:
            return True
        owner = key[3].owner  # shares only rise within a cycle, by who is admitted
        return any(
            kind is cursor.kind or gone == owner for gone, kind in self.line.departures[cursor.known_at :]
        )

    def pass_blocked(self, entry: Entry) -> bool:
        """If it was shown for the sake of a reservation, go on to the next."""
        if self._blocked and self._blocked[-1][3] is entry:
            self._blocked.pop()
            return True
        return False

    @property
    def cursor(self) -> Cursor:
        """The kind that `peek` has shown."""
        return self._heap[0][1]

    def drop(self) -> None:
        """Nobody of the kind that was shown is looked at any more."""
        heappop(self._heap)

    def pass_strict(self, entry: Entry) -> None:
        """The strict part's candidate does not fit: look at the next one in the window, or stop."""
        self.at += 1
        if self.at >= self.window:
            self.blocked_by = entry
