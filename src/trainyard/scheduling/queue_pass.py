"""One pass over a line in a cycle: who is next, until nobody more may start.

A kind joins the walk when its first may be next, and is left out where none of it can start: most kinds of most lines
end there. The order is workspace_queue.py's; what becomes of whoever is next is engine.py's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from trainyard.scheduling.request_classes import RequestClass, Room
from trainyard.scheduling.workspace_queue import (
    INFINITY,
    OVERDUE,
    EqualRequests,
    Owner,
    QueueEntry,
    Shares,
    WorkspaceQueue,
)

NOBODY: frozenset[Owner] = frozenset()
Key = tuple[int, float, tuple[float, int], QueueEntry]  # orders a line: level, share, when it is due


class Bounds(Protocol):
    """How long whoever is looked at may stay (backfill.py)."""

    version: int  # rises whenever a bound may have fallen
    whole: bool  # limits count, not how long anybody will probably stay

    def longest(self, kind: RequestClass) -> float:
        """At most so long, of this kind."""


class Cursor:
    """A place in the entries of one kind, during one walk."""

    __slots__ = ("checked", "kind", "known_at", "likes", "longest", "skipped", "users", "whole")

    def __init__(self, kind: RequestClass, likes: EqualRequests, bounds: Bounds) -> None:
        self.kind = kind
        self.likes = likes
        self.longest = bounds.longest(kind)  # nobody longer is looked at any more
        self.whole = bounds.whole  # by their limits; else by how long they will probably stay
        self.checked = bounds.version
        self.skipped: dict[tuple[int, Owner], int] = {}  # how many were passed by
        self.users: frozenset[Owner] = NOBODY  # of whom nobody is looked at any more
        self.known_at = -1  # how many departures there had been when it was seen who is next; -1: look again

    def best(self, shares: Shares) -> Key | None:
        """Who is next among them, with the key that orders it among other kinds."""
        if not self.skipped and not self.users:
            top = self.likes.top
            if top is not None and top.overdue and not self.is_too_long(top):
                return (-top.level, OVERDUE, top.order, top)
            if self.longest == INFINITY:
                return None if top is None else self._top(top.level, shares)
        levels = self.likes.levels
        if self.longest < self.likes.shortest:
            return None
        for level in sorted(levels, reverse=True) if len(levels) > 1 else levels:
            found = self._first_of(level, shares)
            if found is not None:
                return found
        return None

    def _first_of(self, level: int, shares: Shares) -> Key | None:
        """The same of one level, without those who were passed by or would stay too long."""
        first: QueueEntry | None = None
        least = INFINITY
        for owner, entries in self.likes.levels[level].items():
            if owner in self.users:
                continue
            at = self.skipped.get((level, owner), 0) if self.skipped else 0
            if self.longest != INFINITY:
                while at < len(entries) and self.is_too_long(entries[at]):
                    at += 1
                self.skipped[level, owner] = at
            if at >= len(entries):
                continue
            mine = OVERDUE if entries[at].overdue else shares[owner]
            if first is None or mine < least or (mine == least and entries[at].order < first.order):
                first, least = entries[at], mine
        return None if first is None else (-level, least, first.order, first)

    def _top(self, level: int, shares: Shares) -> Key | None:
        """The same while nobody was passed by."""
        first: QueueEntry | None = None
        least = INFINITY
        for owner, entries in self.likes.levels[level].items():
            entry = entries[0]
            mine = OVERDUE if entry.overdue else shares[owner]
            if first is None or mine < least or (mine == least and entry.order < first.order):
                first, least = entry, mine
        return None if first is None else (-level, least, first.order, first)

    def skip(self, entry: QueueEntry) -> None:
        """Pass one by: another of the same kind may still start."""
        key = (entry.level, entry.owner)
        self.skipped[key] = self.skipped.get(key, 0) + 1
        self.known_at = -1

    def is_too_long(self, entry: QueueEntry) -> bool:
        """Whether it would delay those who have a reservation."""
        return (entry.limit if self.whole else entry.stay) > self.longest

    def check(self, entry: QueueEntry, bounds: Bounds) -> None:
        """See whether there is more to keep off since; `entry` is who was next."""
        self.checked = bounds.version
        longest = bounds.longest(self.kind)
        if longest < self.longest or bounds.whole > self.whole:
            self.longest, self.whole = min(longest, self.longest), bounds.whole
            if self.is_too_long(entry):
                self.known_at = -1

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


class QueuePass:
    """One pass over a line in order. `peek` shows who is next; then say what became of it."""

    def __init__(
        self,
        line: WorkspaceQueue,
        shares: Shares,
        left: Mapping[str, int],
        bounds: Bounds,
        head: Callable[[WorkspaceQueue, Room], QueueEntry | None],
        now: float,
    ) -> None:
        self.line = line
        line.departures.clear()
        self.shares = shares
        self.window = line.window(now)
        self.at = 0  # in the strict part
        self.blocked_by: QueueEntry | None = None  # who ends the walk
        self._left = left  # of the line's quota
        self._bounds = bounds
        self._head = head  # who would get a reservation for this kind of room, known not to fit
        self._tops = (
            line.tops.copy()
        )  # whoever leaves meanwhile makes the first of a kind later, never sooner
        self._next = 0  # of them
        self._heap: list[tuple[Key, Cursor]] = []
        # Those known not to fit, who are shown for the sake of a reservation only; the first one last.
        self._blocked: list[Key] = []
        for room in list(line.rooms):
            self._show(room)

    def _show(self, room: Room) -> None:
        """Let the head for this kind of room be shown in its turn, if it wants a reservation."""
        entry = self._head(self.line, room)
        if entry is not None and all(entry is not key[3] for key in self._blocked):
            share = OVERDUE if entry.overdue else self.shares[entry.owner]
            self._blocked.append((-entry.level, share, entry.order, entry))
            self._blocked.sort(reverse=True)

    def peek(self) -> QueueEntry | None:
        """Who is next; None: nobody more in this cycle."""
        if self.blocked_by is not None:
            return None
        if self.at < min(self.window, len(self.line.strict)):
            return self.line.strict[self.at][3]
        while True:
            key = self._first()
            if self._blocked and (key is None or self._blocked[-1] < key):
                key = self._blocked[-1]
            if not self._join(key):
                return None if key is None else key[3]

    def _join(self, key: Key | None) -> bool:
        """Let the next kind join whose first may come before `key`; whether there is one, or somebody more to show."""
        tops, bounds, last = self._tops, self._bounds, len(self._tops)
        while self._next < last:
            top = tops[self._next]
            if key is not None and key < top:
                return False
            kind = top[3].kind
            self._next += 1
            if kind.failed_at >= 0:
                shown = len(self._blocked)
                self._show(kind.reserve_key)
                if len(self._blocked) > shown:
                    return True
                continue
            likes = self.line.kinds.get(kind)
            if likes is None or likes.shortest > bounds.longest(kind):
                continue
            if self._left and not kind.is_within(self._left):
                continue
            cursor = Cursor(kind, likes, bounds)
            best = cursor.best(self.shares)
            if best is not None:
                cursor.known_at = len(self.line.departures)
                heappush(self._heap, (best, cursor))
                return True
        return False

    def _first(self) -> Key | None:
        """Who is next of the kinds that have joined."""
        departures, bounds = self.line.departures, self._bounds
        while self._heap:
            key, cursor = self._heap[0]
            if cursor.kind.failed_at >= 0:
                heappop(self._heap)  # it was seen not to fit, perhaps in another line
                self._show(cursor.kind.reserve_key)
                continue
            if cursor.checked != bounds.version:
                cursor.check(key[3], bounds)
            if cursor.known_at != len(departures):
                best = cursor.best(self.shares) if self._may_differ(key, cursor) else key
                if best is None:
                    heappop(self._heap)
                    continue
                cursor.known_at = len(departures)
                if best != key:
                    heapreplace(self._heap, (best, cursor))
                    continue
            return key
        return None

    def _may_differ(self, key: Key, cursor: Cursor) -> bool:
        """Whether somebody else may be next in a kind: one of the kind has left, or the one's user has got more."""
        if cursor.known_at < 0:
            return True
        owner = key[3].owner  # shares only rise within a cycle, by who is admitted
        for gone, kind in self.line.departures[cursor.known_at :]:  # asked at every look
            if kind is cursor.kind or gone == owner:
                return True
        return False

    def pass_blocked(self, entry: QueueEntry) -> bool:
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

    def pass_strict(self, entry: QueueEntry) -> None:
        """The strict part's candidate does not fit: look at the next one in the window, or stop."""
        self.at += 1
        if self.at >= self.window:
            self.blocked_by = entry
