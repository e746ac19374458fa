"""The queue of one workspace, ordered by priority, age and the users' shares.

Workloads with equal needs are kept together, user by user: if one of them has no room, the others have none either and
are not checked again. This module only keeps the order; scheduler.py decides whether a workload may start.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice

from trainyard.scheduling.forecast import expected_run
from trainyard.scheduling.model import Policy, Request, Strategy
from trainyard.scheduling.request_classes import RequestClass, Room

INFINITY = float("inf")
LAST = 1_000_000  # below every priority
OVERDUE = -1.0  # a share before all others
GANG_RUNS = 0.4  # the part of its expected run that a gang waits for one level of priority
PASSED = 64  # so many workloads without room are skipped to find one that may have room

Owner = tuple[str, str]  # workspace and user
Shares = Mapping[Owner, float]


class QueueEntry:
    """One waiting workload in its queue."""

    __slots__ = ("kind", "level", "limit", "order", "overdue", "owner", "request", "stay")

    def __init__(self, request: Request, kind: RequestClass, order: tuple[float, int]) -> None:
        self.request = request
        self.owner: Owner = (
            request.workspace,
            request.user,
        )  # whose it is; in a line, one object for all of theirs
        self.kind = kind
        self.order = order  # when it is due, then as they came
        self.level = request.priority  # with its age counted in
        self.limit = INFINITY if request.limit is None else request.limit  # how long it may run
        self.stay = self.limit  # the same with some certainty, where past runs are known
        self.overdue = False  # it has waited longer than a workload should

    def __lt__(self, other: QueueEntry) -> bool:
        return self.order < other.order


def level_of(
    request: Request, policy: Policy, strategy: Strategy, now: float, ageing: float
) -> tuple[int, float]:
    """Return a workload's level (its priority plus one for every `ageing`), and when the level rises next."""
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


Rank = tuple[
    int, float, tuple[float, int], QueueEntry
]  # of the first of a kind: level, whether overdue, when it is due


def rank_of(entry: QueueEntry) -> Rank:
    """Return a rank that is never behind the real one. Shares are looked up later and are not below 0."""
    return (-entry.level, OVERDUE if entry.overdue else 0.0, entry.order, entry)


class EqualRequests:
    """The entries of one request class in one queue: by level, then by owner, oldest first."""

    __slots__ = ("levels", "shortest", "size", "top")

    def __init__(self) -> None:
        self.levels: dict[int, dict[Owner, list[QueueEntry]]] = {}
        self.shortest = INFINITY  # a bound of the members' stays
        self.size = 0
        self.top: QueueEntry | None = (
            None  # of the owners' first ones on the highest level: overdue ones, then the oldest
        )

    def add(self, entry: QueueEntry) -> None:
        """Let an entry join."""
        owner = entry.owner
        owners = self.levels.get(entry.level)
        if owners is None:
            owners = self.levels[entry.level] = {}
        mine = owners.get(owner)
        if mine is None:
            owners[owner] = [entry]
        else:
            insort(mine, entry)
        self.shortest = min(self.shortest, entry.stay)
        self.size += 1
        if mine is None or mine[0] is entry:
            if mine is not None and mine[1] is self.top:
                self.top = self._find_top()
            elif self.top is None or rank_of(entry) < rank_of(self.top):
                self.top = entry

    def remove(self, entry: QueueEntry) -> None:
        """Take an entry out."""
        owners = self.levels[entry.level]
        owner = entry.owner
        mine = owners[owner]
        at = bisect_left(mine, entry)
        del mine[at]
        self.size -= 1
        if not mine:
            del owners[owner]
            if not owners:
                del self.levels[entry.level]
        if entry is self.top:
            self.top = self._find_top()
        elif at == 0 and mine and self.top is not None and rank_of(mine[0]) < rank_of(self.top):
            self.top = mine[0]

    def _find_top(self) -> QueueEntry | None:
        if not self.levels:
            return None
        top: QueueEntry | None = None
        for mine in self.levels[max(self.levels)].values():
            entry = mine[0]
            if top is None or (top.overdue, entry.order) < (entry.overdue, top.order):
                top = entry
        return top

    def firsts(self) -> Iterator[QueueEntry]:
        """The first of each owner on each level."""
        for level in sorted(self.levels, reverse=True):
            for mine in self.levels[level].values():
                yield mine[0]


class WorkspaceQueue:
    """The queue of one workspace, or of all workspaces if the policy has one queue."""

    def __init__(self, name: str, strategy: Strategy, policy: Policy) -> None:
        self.name = name
        self.strategy = strategy
        self.policy = policy
        self.kinds: dict[RequestClass, EqualRequests] = {}
        # The strict part, in which no workload overtakes another.
        self.strict: list[tuple[int, float, int, QueueEntry]] = []
        self.promotions: list[tuple[float, int, QueueEntry]] = []
        self.tops: list[Rank] = []  # the first of each kind, in order
        self.rooms: dict[Room, int] = {}  # kind of room → how many kinds need it
        self.overdue = 0  # how many have waited longer than they should
        self._owners: dict[Owner, Owner] = {}
        self.size = 0
        self.departures: list[tuple[Owner, RequestClass]] = []  # who left since a pass began
        self.head = ""
        self.head_since = 0.0

    def is_strict(self, priority: int) -> bool:
        """Return whether a workload of this priority is in the strict part, in which none overtakes another."""
        if self.strategy is Strategy.INTELLIGENT:
            return priority >= self.policy.intelligent_high
        return self.strategy in {Strategy.STRICT_FIFO, Strategy.BALANCE}

    def add(self, entry: QueueEntry, now: float) -> None:
        """Let a workload join."""
        self.size += 1
        request = entry.request
        if self.is_strict(request.priority):
            insort(self.strict, self._strict_key(entry))
            return
        self._join(entry, self._age(entry, now))

    def _age(self, entry: QueueEntry, now: float) -> int:
        """Return the level of an entry and note when to check it again."""
        ageing = self._ageing(entry)
        level, rises = level_of(entry.request, self.policy, self.strategy, now, ageing)
        if self.policy.fair_share and self.strategy is Strategy.BACKFILL:
            due = entry.request.submitted + self._patience(entry)
            entry.overdue = now >= due
            rises = rises if entry.overdue else min(rises, due)
        if rises != INFINITY:
            heappush(self.promotions, (rises, entry.order[1], entry))
        return level

    def _ageing(self, entry: QueueEntry) -> float:
        """Return how long it waits for a level: long workloads wait longer, gangs not so long."""
        policy = self.policy
        if policy.ageing <= 0 or self.strategy is not Strategy.BACKFILL:
            return policy.ageing
        run = expected_run(entry.request, policy.assumed_run)
        if entry.kind.reserve_key[2] and policy.gang_ageing > 0:
            return max(policy.gang_ageing, min(GANG_RUNS * run, policy.slowest_gang_ageing))
        known = entry.request.limit is not None or entry.request.expected is not None
        return max(policy.ageing, min(run, policy.slowest_ageing)) if known else policy.ageing

    def _patience(self, entry: QueueEntry) -> float:
        """Return how long it waits before it precedes others of its priority, whatever their shares."""
        if entry.kind.reserve_key[2]:
            return self.policy.gang_patience
        policy = self.policy
        if policy.patient_runs <= 0:
            return policy.patience
        run = expected_run(entry.request, policy.assumed_run)
        return min(policy.patience, policy.patient_runs * run)

    def _strict_key(self, entry: QueueEntry) -> tuple[int, float, int, QueueEntry]:
        last = LAST if self.policy.preemptible_last and entry.request.preemptible else 0
        return (last - entry.request.priority, *entry.order, entry)

    def _join(self, entry: QueueEntry, level: int) -> None:
        entry.level = level - LAST if self.policy.preemptible_last and entry.request.preemptible else level
        kind = entry.kind
        likes = self.kinds.get(kind)
        if likes is None:
            likes = self.kinds[kind] = EqualRequests()
            self.rooms[kind.reserve_key] = self.rooms.get(kind.reserve_key, 0) + 1
        entry.owner = self._owners.setdefault(entry.owner, entry.owner)
        before = likes.top
        likes.add(entry)
        self.overdue += entry.overdue
        if likes.top is not before:
            self._replace_top(before, likes.top)

    def _part(self, entry: QueueEntry) -> EqualRequests:
        """Take an entry out of its class. The class stays even if it is empty."""
        likes = self.kinds[entry.kind]
        before = likes.top
        likes.remove(entry)
        self.overdue -= entry.overdue
        if likes.top is not before:
            self._replace_top(before, likes.top)
        return likes

    def _replace_top(self, before: QueueEntry | None, after: QueueEntry | None) -> None:
        if before is not None:
            del self.tops[bisect_left(self.tops, rank_of(before))]
        if after is not None:
            insort(self.tops, rank_of(after))

    def first(self, room: Room, may: Callable[[QueueEntry], bool]) -> QueueEntry | None:
        """Return the first workload that needs this kind of room and that `may` accepts."""
        kinds: list[RequestClass] = []
        for rank in self.tops:
            top = rank[3]
            if top.kind.reserve_key == room:
                if may(top):
                    return top
                kinds.append(top.kind)
                if len(kinds) > PASSED:
                    break
        # The first of a class may be held by the limit of its user or workspace, so the ones behind it are checked too.
        others = (entry for kind in kinds for entry in self.kinds[kind].firsts())
        return min((entry for entry in islice(others, PASSED) if may(entry)), key=rank_of, default=None)

    def is_behind(self, entry: QueueEntry, blocker: QueueEntry) -> bool:
        """Return whether an entry is not considered because the pass ended with `blocker`."""
        if not self.is_strict(entry.request.priority):
            return True
        return self._strict_key(blocker) < self._strict_key(entry)

    def remove(self, entry: QueueEntry) -> None:
        """Take a workload out: it was admitted, withdrawn, or has a claim."""
        self.size -= 1
        self.departures.append((entry.owner, entry.kind))
        if self.is_strict(entry.request.priority):
            del self.strict[bisect_left(self.strict, self._strict_key(entry))]
            return
        if not self._part(entry).size:
            room = entry.kind.reserve_key
            del self.kinds[entry.kind]
            self.rooms[room] -= 1
            if not self.rooms[room]:
                del self.rooms[room]

    def promote(self, now: float, waits: Callable[[QueueEntry], bool]) -> None:
        """Raise the priority of workloads that have waited long enough."""
        while self.promotions and self.promotions[0][0] <= now:
            _, _, entry = heappop(self.promotions)
            if not waits(entry):
                continue  # it is gone
            self._part(entry)
            self._join(entry, self._age(entry, now))

    def window(self, now: float) -> int:
        """Return how many workloads of the strict part may be considered."""
        if self.strategy is not Strategy.BALANCE or not self.strict:
            return 1
        head = self.strict[0][3].request
        if head.id != self.head:
            self.head = head.id
            self.head_since = head.submitted if head.head_since is None else head.head_since
        return 1 + int(max(0.0, now - self.head_since) // self.policy.balance_timeout)

    def everybody(self, shares: Shares) -> Iterator[QueueEntry]:
        """Yield all workloads in the order in which they are considered."""
        yield from (item[3] for item in self.strict)
        members: list[tuple[int, float, tuple[float, int], QueueEntry]] = []
        for likes in self.kinds.values():
            for level, owners in likes.levels.items():
                for owner, entries in owners.items():
                    mine = shares[owner]
                    members += [
                        (-level, OVERDUE if entry.overdue else mine, entry.order, entry) for entry in entries
                    ]
        members.sort()
        yield from (member[3] for member in members)
