"""Backfill: a workload may overtake a reservation if it ends before that starts, or if the reservation can spare its room.

Within a cycle room only shrinks and reservations are only added, so results stay true until the cycle ends, and a workload
that delays some reservations also delays any larger set of them. Between cycles a request class remembers which ones it
would delay, until a node gets room. reservations.py makes reservations.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from operator import sub

from trainyard.scheduling.cluster import NONE_CLOSED, Cluster, Keep
from trainyard.scheduling.model import Policy
from trainyard.scheduling.request_classes import RequestClass
from trainyard.scheduling.reservations import Reservation, merge_all
from trainyard.scheduling.workspace_queue import INFINITY, QueueEntry

Mode = tuple[int, ...]  # numbers of reservations
REMEMBERED = 8  # sets of reservations that a kind is known to delay


class Backfill:
    """What the reservations of one cycle leave to others."""

    def __init__(self, cluster: Cluster, policy: Policy, passed: Mapping[str, int]) -> None:
        self.cluster = cluster
        self.policy = policy
        self.passed = passed  # overtaken gang → devices held by the workloads that overtook it
        self.now = 0.0
        self.made: list[Reservation] = []  # all there are, in the order of their making
        self.whole = False  # whether one of them waits for whole nodes
        self.version = 0  # rises whenever another workload may have to wait
        self._alive: set[int] = set()
        self._hard = cluster.keep  # what stays free for claims
        self._starts: list[float] = []  # of those that keep room, rising
        self._modes: list[Mode] = [()]  # by how many of these are outlived
        self._places: dict[int, int] = {}  # number of a reservation → how many must be outlived to delay it
        self._keeps: dict[Mode, tuple[dict[int, Keep], Mapping[str, list[int]]]] = {}
        self._spares: dict[Mode, tuple[int, int]] = {}  # devices that may still pass them
        self._sound: set[tuple[RequestClass, Mode]] = set()  # what was remembered, and is still true
        self._longest: dict[RequestClass, float] = {}

    def begin(self, now: float) -> None:
        """Start a cycle without reservations."""
        self.now = now
        self._alive = {one.number for one in self.made}  # these may be made again, as they were
        self.made = []
        self.whole = False
        self.version += 1
        self._starts, self._modes, self._places = [], [()], {}
        self.cluster.closed = self.cluster.closed_by(self._hard)
        self._keeps = {(): (self._hard, self.cluster.closed)}
        self._spares = {}
        self._sound = set()
        self._longest = {}

    def note(self, reservation: Reservation) -> None:
        """Add a reservation."""
        self.made.append(reservation)
        if not reservation.keep:
            return
        self.whole = self.whole or reservation.whole
        insort(self._starts, reservation.start)
        keeping = [one for one in self.made if one.keep]
        self._modes = [
            (),
            *(tuple(one.number for one in keeping if one.start <= end) for end in self._starts),
        ]
        self._places = {one.number: bisect_left(self._starts, one.start) + 1 for one in keeping}
        self._longest = {}
        self.version += 1

    def mode(self, entry: QueueEntry) -> Mode:
        """Return the reservations that a workload would outlive."""
        # One workload that stays on a node blocks a gang that waits for the whole node, so limits count there.
        return self._modes[bisect_left(self._starts, self.now + (entry.limit if self.whole else entry.stay))]

    def keep(self, mode: Mode) -> None:
        """Keep the needs of these reservations free, besides those of claims, until the next call."""
        kept = self._keeps.get(mode)
        if kept is None:
            keep = merge_all([self._hard, *(one.keep for one in self.made if one.number in mode)])
            kept = self._keeps[mode] = (keep, self.cluster.closed_by(keep))
        self.cluster.keep, self.cluster.closed = kept

    def end(self) -> None:
        """End the cycle's backfill. From now on there may be more room again."""
        self.cluster.closed = NONE_CLOSED

    def may_pass(self, kind: RequestClass, mode: Mode, *, is_brief: bool) -> bool:
        """Return whether all delayed reservations can spare the devices of this class. They spare more for brief runs."""
        if not kind.devices:
            return False
        spares = self._spares.get(mode)
        if spares is None:
            spares = self._spares[mode] = self._spared(mode)
        return kind.devices <= spares[is_brief]

    def _spared(self, mode: Mode) -> tuple[int, int]:
        delayed = [one for one in self.made if one.number in mode]
        held = [self.passed.get(one.id, 0) for one in delayed]
        spare = [one.spare for one in delayed]
        brief = [int(self.policy.brief_spare * one.spare) for one in delayed]
        return min(map(sub, spare, held)), min(map(sub, brief, held))

    def was_passed(self) -> None:
        """Note that a workload overtook, so that there are fewer devices to spare."""
        self._spares = {}
        self._longest = {}
        self.version += 1

    def longest(self, kind: RequestClass) -> float:
        """Return the longest run of this class that, as far as is known, delays no reservation."""
        longest = self._longest.get(kind)
        if longest is None:
            longest = self._longest[kind] = self._find_longest(kind) if self._starts else INFINITY
        return longest

    def _find_longest(self, kind: RequestClass) -> float:
        place = INFINITY
        for mode in list(kind.delays):
            last = self._last_place(mode)
            if last is None:
                del kind.delays[mode]
            elif last < place and self._is_sound(kind, mode):
                place = last
        if place == INFINITY:
            return INFINITY
        bounds = [self._bound(kind, int(place), is_brief=is_brief) for is_brief in (False, True)]
        soonest = self._starts[int(place) - 1] - self.now
        return max(soonest, bounds[0], min(bounds[1], self.policy.brief))

    def _bound(self, kind: RequestClass, place: int, *, is_brief: bool) -> float:
        """Return until when workloads that delay the first `place` reservations or more may use spared devices."""
        for outlived in range(place, len(self._modes)):
            if not self.may_pass(kind, self._modes[outlived], is_brief=is_brief):
                return self._starts[outlived - 1] - self.now
        return INFINITY

    def _last_place(self, mode: Mode) -> float | None:
        """Return how many reservations must be outlived to delay all of these.

        Infinite if one is not made yet; None if one no longer exists.
        """
        last: float = 0
        for number in mode:
            place = self._places.get(number)
            if place is None:
                if number not in self._alive:
                    return None
                return INFINITY
            last = max(last, place)
        return last

    def _is_sound(self, kind: RequestClass, mode: Mode) -> bool:
        """Return whether no node has got room since that would let the class fit without delaying these."""
        if (kind, mode) in self._sound:
            return True
        seen, layout = kind.delays[mode]
        if layout != self.cluster.layout or seen > len(self.cluster.grown):
            del kind.delays[mode]
            return False
        self.keep(mode)
        changed = kind.has_grown(self.cluster, seen)
        self.keep(())
        if not changed:
            kind.delays[mode] = (len(self.cluster.grown), layout)
            self._sound.add((kind, mode))
        return not changed

    def delays(self, kind: RequestClass, mode: Mode) -> None:
        """Remember that the class fits only by delaying these."""
        if len(kind.delays) >= REMEMBERED:
            del kind.delays[next(iter(kind.delays))]
        kind.delays[mode] = (len(self.cluster.grown), self.cluster.layout)
        self._sound.add((kind, mode))
        self._longest.pop(kind, None)
        self.version += 1
