"""One pass over a queue in a cycle: yields the next workload until no more can start.

A request class joins the pass when its first workload may be next. It is left out if none of its workloads can start,
which is so for most classes. workspace_queue.py defines the order; scheduler.py decides about the next workload.
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
    """The longest run that does not delay reservations (backfill.py)."""

    version: int  # rises whenever a bound may have fallen
    whole: bool  # limits count, not expected runs

    def longest(self, kind: RequestClass) -> float:
        """Return the longest run that a workload of this class may have."""


class Cursor:
    """A position in the entries of one request class during a pass."""

    __slots__ = ("checked", "kind", "known_at", "likes", "longest", "skipped", "users", "whole")

    def __init__(self, kind: RequestClass, likes: EqualRequests, bounds: Bounds) -> None:
        self.kind = kind
        self.likes = likes
        self.longest = bounds.longest(kind)  # longer workloads are not considered any more
        self.whole = bounds.whole  # by their limits; else by how long they will probably stay
        self.checked = bounds.version
        self.skipped: dict[tuple[int, Owner], int] = {}  # how many were passed by
        self.users: frozenset[Owner] = NOBODY  # owners whose workloads are not considered any more
        self.known_at = -1  # how many departures there had been when it was seen who is next; -1: look again

    def best(self, shares: Shares) -> Key | None:
        """Return the key of the next workload of this class; the key orders it among other classes."""
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
        """Return the same for one level, without skipped workloads and those that would run too long."""
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
        """Return the same while no workload has been skipped."""
        first: QueueEntry | None = None
        least = INFINITY
        for owner, entries in self.likes.levels[level].items():
            entry = entries[0]
            mine = OVERDUE if entry.overdue else shares[owner]
            if first is None or mine < least or (mine == least and entry.order < first.order):
                first, least = entry, mine
        return None if first is None else (-level, least, first.order, first)

    def skip(self, entry: QueueEntry) -> None:
        """Skip one workload. Another of the same class may still start."""
        key = (entry.level, entry.owner)
        self.skipped[key] = self.skipped.get(key, 0) + 1
        self.known_at = -1

    def is_too_long(self, entry: QueueEntry) -> bool:
        """Return whether the workload would delay a reservation."""
        return (entry.limit if self.whole else entry.stay) > self.longest

    def check(self, entry: QueueEntry, bounds: Bounds) -> None:
        """Take new reservations into account. `entry` was the next workload."""
        self.checked = bounds.version
        longest = bounds.longest(self.kind)
        if longest < self.longest or bounds.whole > self.whole:
            self.longest, self.whole = min(longest, self.longest), bounds.whole
            if self.is_too_long(entry):
                self.known_at = -1

    def skip_owner(self, owner: Owner) -> None:
        """Skip all workloads of one user."""
        self.users |= {owner}
        self.known_at = -1

    def skip_workspace(self, workspace: str) -> None:
        """Skip all workloads of one workspace."""
        self.known_at = -1
        self.users = self.users.union(
            owner for owners in self.likes.levels.values() for owner in owners if owner[0] == workspace
        )


class QueuePass:
    """One pass over a queue in order. `peek` shows the next workload; the caller then reports its decision."""

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
        self.blocked_by: QueueEntry | None = None  # the workload that ends the pass
        self._left = left  # of the line's quota
        self._bounds = bounds
        self._head = head  # who would get a reservation for this kind of room, known not to fit
        self._tops = (
            line.tops.copy()
        )  # a workload that leaves meanwhile can only move the first of a class back
        self._next = 0  # of them
        self._heap: list[tuple[Key, Cursor]] = []
        # Workloads that are known not to fit and are shown only to get a reservation; the first one is last.
        self._blocked: list[Key] = []
        for room in list(line.rooms):
            self._show(room)

    def _show(self, room: Room) -> None:
        """Show the first workload for this kind of room in its turn, if it wants a reservation."""
        entry = self._head(self.line, room)
        if entry is not None and all(entry is not key[3] for key in self._blocked):
            share = OVERDUE if entry.overdue else self.shares[entry.owner]
            self._blocked.append((-entry.level, share, entry.order, entry))
            self._blocked.sort(reverse=True)

    def peek(self) -> QueueEntry | None:
        """Return the next workload, or None if there is no more in this cycle."""
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
        """Let the next class join whose first workload may come before `key`. Returns False if there is none."""
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
        """Return the next workload of the classes that have joined."""
        departures, bounds = self.line.departures, self._bounds
        while self._heap:
            key, cursor = self._heap[0]
            if cursor.kind.failed_at >= 0:
                heappop(self._heap)  # it was found not to fit, perhaps in another queue
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
        """Return whether the next workload of a class may have changed: one has left, or its user's share has grown."""
        if cursor.known_at < 0:
            return True
        owner = key[3].owner  # shares only rise within a cycle, when workloads are admitted
        for gone, kind in self.line.departures[cursor.known_at :]:  # asked at every look
            if kind is cursor.kind or gone == owner:
                return True
        return False

    def pass_blocked(self, entry: QueueEntry) -> bool:
        """Go on to the next workload if this one was shown only to get a reservation."""
        if self._blocked and self._blocked[-1][3] is entry:
            self._blocked.pop()
            return True
        return False

    @property
    def cursor(self) -> Cursor:
        """The kind that `peek` has shown."""
        return self._heap[0][1]

    def drop(self) -> None:
        """Drop the class of the workload that was shown."""
        heappop(self._heap)

    def pass_strict(self, entry: QueueEntry) -> None:
        """Go on to the next workload in the window of the strict part, or stop, because this one does not fit."""
        self.at += 1
        if self.at >= self.window:
            self.blocked_by = entry
