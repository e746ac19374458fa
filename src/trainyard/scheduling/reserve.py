"""Reservations: when the blocked head of a line could start, on which nodes, and what must stay free there till then.

Work that ends before that moment may use the reserved nodes meanwhile; other work only what is left of them. That is
how small workloads fill gaps without making a large gang wait for ever.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from trainyard.scheduling.cluster import Cluster, Keep, Shape, bits, replicas
from trainyard.scheduling.model import Request
from trainyard.scheduling.placement import Gang, Part, Taken

BOOKS = 6  # shapes whose start times are kept up to date: the heads of the usual few pools
NO_KEEP = Keep()
OVERRUN = 60.0  # what has run past its limit is expected to be gone in a minute


class Running:
    """A workload that holds resources, as the engine keeps it."""

    __slots__ = (
        "amounts",
        "borrowed",
        "charge",
        "end",
        "leaving",
        "leaving_for",
        "request",
        "serial",
        "started",
        "taken",
    )

    def __init__(self, request: Request, taken: list[Taken], started: float, serial: int) -> None:
        self.request = request
        self.taken = taken
        self.started = started
        self.serial = serial
        self.end = 0.0  # estimated
        self.amounts: tuple[tuple[str, int], ...] = ()
        self.charge = 0
        self.borrowed = False
        self.leaving: float | None = None
        self.leaving_for = ""


def expected_end(running: Running, assumed: float, now: float) -> float:
    """When it ends: at its limit; without one, twice as long as it is known to run, and again."""
    limit = running.request.limit
    if running.leaving is not None:
        return max(running.leaving, now)
    if limit is not None:
        return max(running.started + limit, now + OVERRUN)
    span = assumed
    while running.started + span <= now:
        span *= 2
    return running.started + span


class Ledger:
    """Which room comes back when, node by node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.releases: dict[int, list[tuple[float, int, Taken]]] = {}
        self._serial = 0
        self._books: dict[Shape, Book] = {}

    def add(self, running: Running) -> None:
        """Note when a workload's room comes back."""
        for one in running.taken:
            self._serial += 1
            insort(self.releases.setdefault(one.node, []), (running.end, self._serial, one))
            self._mark(one.node)

    def drop(self, running: Running) -> None:
        """It has come back, or the estimate changes."""
        for one in running.taken:
            rows = self.releases[one.node]
            at = bisect_left(rows, (running.end,))
            while rows[at][2] is not one:
                at += 1
            del rows[at]
            self._mark(one.node)

    def _mark(self, node: int) -> None:
        for book in self._books.values():
            book.stale.add(node)

    def book(self, shape: Shape) -> Book:
        """The start times of replicas of this shape, up to date."""
        book = self._books.pop(shape, None)
        if book is None or book.layout != self.cluster.layout:
            self.cluster.refresh(shape)
            book = Book(self, shape)
        self._books[shape] = book  # the most recently used comes last
        while len(self._books) > BOOKS:
            del self._books[next(iter(self._books))]
        book.update()
        return book

    def times(self, shape: Shape, node: int) -> list[float]:
        """When the node has room for one, two, three … replicas of this shape."""
        cluster = self.cluster
        cpu, memory, shared = cluster.cpu[node], cluster.memory[node], cluster.shared[node]
        free = cluster.masks[shape.device][node] if shape.count and shape.device in cluster.masks else 0
        times: list[float] = []
        moment = 0.0
        releases = self.releases.get(node, ())
        at = 0
        while True:
            count = replicas(shape, cpu, memory, shared, free)
            if count > len(times):
                times += [moment] * (min(count, len(releases) + 64) - len(times))
            if at == len(releases):
                return times
            moment, _, one = releases[at]
            at += 1
            cpu += one.shape.cpu
            memory += one.shape.memory
            shared += one.shape.shared_memory
            if one.shape.device == shape.device:
                free |= one.devices


class Book:
    """All start times of one shape, sorted; nodes that change are looked at again."""

    def __init__(self, ledger: Ledger, shape: Shape) -> None:
        self.ledger = ledger
        self.shape = shape
        self.layout = ledger.cluster.layout
        self.stale: set[int] = set()
        self.times: dict[int, list[float]] = {}
        self.order: list[tuple[float, int]] = []
        for node in bits(shape.allowed):
            times = ledger.times(shape, node)
            self.times[node] = times
            self.order += [(moment, node) for moment in times]
        self.order.sort()

    def update(self) -> None:
        """Look again at what has changed."""
        for node in self.stale:
            if not self.shape.allowed >> node & 1:
                continue
            for moment in self.times.get(node, ()):
                del self.order[bisect_left(self.order, (moment, node))]
            times = self.times[node] = self.ledger.times(self.shape, node)
            for moment in times:
                insort(self.order, (moment, node))
        self.stale.clear()


@dataclass(slots=True)
class Reservation:
    """The blocked head's room to come."""

    id: str
    start: float  # inf: not before something changes
    keep: dict[int, Keep]
    number: int = 0


def reserve(ledger: Ledger, gang: Gang, request: Request, now: float) -> Reservation:
    """When and where the gang could start, if nothing else started, and what must stay free for that."""
    start = now
    chosen: list[tuple[Part, dict[int, int]]] = []
    for part in gang.parts:
        order = ledger.book(part.shape).order
        if len(order) < part.least:
            return Reservation(request.id, float("inf"), {})
        nodes: dict[int, int] = {}
        for moment, node in order[: part.least]:
            nodes[node] = nodes.get(node, 0) + 1
            start = max(start, moment)
        chosen.append((part, nodes))
    keep: dict[int, Keep] = {}
    for part, nodes in chosen:
        for node, count in nodes.items():
            keep[node] = _add(keep.get(node), _keep(ledger, part.shape, node, count, start))
    return Reservation(request.id, start, keep)


def _keep(ledger: Ledger, shape: Shape, node: int, count: int, start: float) -> Keep:
    """What of the node's free room must stay free, given what comes back until `start`."""
    cpu = memory = shared = devices = 0
    for end, _, one in ledger.releases.get(node, ()):
        if end > start:
            break
        cpu += one.shape.cpu
        memory += one.shape.memory
        shared += one.shape.shared_memory
        if one.shape.device == shape.device:
            devices += one.shape.count
    return Keep(
        max(0, count * shape.cpu - cpu),
        max(0, count * shape.memory - memory),
        max(0, count * shape.shared_memory - shared),
        {shape.device: max(0, count * shape.count - devices)} if shape.count else None,
    )


def _add(one: Keep | None, other: Keep) -> Keep:
    return other if one is None else merge(one, other)


def merge(one: Keep, other: Keep, sign: int = 1) -> Keep:
    """Both must stay free; with `sign` -1 the other no longer."""
    devices = dict(one.devices or {})
    for device, count in (other.devices or {}).items():
        devices[device] = devices.get(device, 0) + sign * count
        if not devices[device]:
            del devices[device]
    return Keep(
        one.cpu + sign * other.cpu,
        one.memory + sign * other.memory,
        one.shared_memory + sign * other.shared_memory,
        devices or None,
    )


def merge_all(reservations: list[dict[int, Keep]]) -> dict[int, Keep]:
    """Keep all of them."""
    total: dict[int, Keep] = {}
    for keeps in reservations:
        for node, keep in keeps.items():
            total[node] = merge(total[node], keep) if node in total else keep
    return total
