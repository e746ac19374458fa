"""Reservations: when and where the first blocked workload of a queue can start, and what must stay free until then.

Work that ends before that moment may use the reserved nodes meanwhile; other work only what is left of them. That is
how small workloads fill gaps without making a large gang wait for ever.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappush, heapreplace
from itertools import chain

from trainyard.scheduling.cluster import NONE_CLOSED, Cluster, Keep, Shape, bits, replicas
from trainyard.scheduling.model import Request
from trainyard.scheduling.placement import Gang, Taken, least_of, place, release

MANY = 1024  # replicas of one gang on one node, at most counted
NO_KEEP = Keep()
UNSORTED = 1 << 60  # more changes than there ever are
FEW_CHANGES = 256  # nodes that are sorted by themselves, rather than all again
OVERRUN = 5.0  # what has run past its limit is about to be gone; much longer, and short work would pass a head for ever


class Running:
    """A workload that holds resources, as the scheduler keeps it."""

    __slots__ = (
        "amounts",
        "borrowed",
        "charge",
        "end",
        "is_charged",
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
        self.is_charged = True  # its quota: not any more when others have claimed its room
        self.borrowed = False
        self.leaving: float | None = None
        self.leaving_for = ""


Cost = tuple[int, float, int]


def cost_of(running: Running) -> Cost:
    """The smaller, the less it costs to stop it: a low priority, and a short time lost."""
    return (running.request.priority, -running.started, -running.serial)


def expected_end(running: Running, assumed: float, now: float) -> float:
    """When it ends: at its limit; without one, when it is assumed to, or twice as late, and again."""
    limit = running.request.limit
    if running.leaving is not None:
        return running.leaving if running.leaving > now else now + OVERRUN
    if limit is not None:
        end = running.started + limit
        return end if end > now else now + OVERRUN
    span = assumed
    while running.started + span <= now:
        span *= 2
    return running.started + span


class Ledger:
    """The future releases of resources, node by node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.releases: dict[int, list[tuple[float, int, Taken]]] = {}
        self.changes: list[int] = []  # nodes whose releases have changed, in order
        self.soonest: dict[int, float] = {}  # node → when the first of its releases comes
        self.latest: dict[int, float] = {}  # node → when the last of its devices comes back
        self._orders: list[tuple[int, list[int]]] = [
            (UNSORTED, []),
            (UNSORTED, []),
        ]  # nodes by `soonest` and by `latest`, and how many changes they know
        self._serial = 0

    def add(self, running: Running) -> None:
        """Record when a workload's resources are released."""
        for one in running.taken:
            self._serial += 1
            rows = self.releases.get(one.node)
            if rows is None:
                rows = self.releases[one.node] = []
            insort(rows, (running.end, self._serial, one))
            self._note(one.node, rows)

    def drop(self, running: Running) -> None:
        """Remove a workload's releases, because they have happened or their estimate changes."""
        for one in running.taken:
            rows = self.releases[one.node]
            at = bisect_left(rows, (running.end,))
            while rows[at][2] is not one:
                at += 1
            del rows[at]
            self._note(one.node, rows)

    def _note(self, node: int, rows: list[tuple[float, int, Taken]]) -> None:
        self.changes.append(node)
        if not rows:
            del self.releases[node], self.soonest[node], self.latest[node]
            return
        self.soonest[node] = rows[0][0]
        last = rows[-1]
        if last[2].devices:
            self.latest[node] = last[0]
        else:
            self.latest[node] = next((end for end, _, one in reversed(rows) if one.devices), 0.0)

    def forget(self) -> None:
        """Nobody asks any more for changes so far."""
        self.changes.clear()
        self._orders = [(UNSORTED, []), (UNSORTED, [])]

    def going(self, node: int, until: float) -> list[Taken]:
        """Return the resources that are released on a node until then."""
        return [one for end, _, one in self.releases.get(node, ()) if end <= until]

    def earliest(self, shape: Shape, count: int, spoken_for: int = 0) -> list[tuple[float, int]]:
        """The first `count` moments at which a replica of this shape has room somewhere else, with the nodes."""
        self.cluster.refresh(shape)
        # NB: room that claims keep is freed again, so others may wait for it.
        now = self.cluster.roomy(shape, with_closed=True) & ~spoken_for
        # A heap of the best so far, the worst on top: the latest, and of those the node that joined last.
        found: list[tuple[float, int]] = []
        for node in bits(now):
            self._collect(found, shape, node, count)
        allowed = shape.allowed & ~now & ~spoken_for
        latest = -found[0][0] if len(found) == count else float("inf")
        is_whole = self._is_whole(shape)
        moments = self.latest if is_whole else self.soonest
        changed, order = self._in_order(is_whole=is_whole)
        for node in chain(changed, order):
            moment = moments.get(node)
            if moment is None or (moment > latest and node in changed):
                continue
            if moment > latest:
                break  # after a few nodes none of the others can be better
            if allowed >> node & 1 and (is_whole or self._frees(shape, node, latest)):
                allowed &= ~(1 << node)
                self._collect(found, shape, node, count)
                if len(found) == count:
                    latest = -found[0][0]
        return sorted((-moment, -node) for moment, node in found)

    def _in_order(self, *, is_whole: bool) -> tuple[set[int], list[int]]:
        """Nodes with something to come back, the soonest first, and before them those whose turn may have changed."""
        seen, order = self._orders[is_whole]
        if not 0 <= len(self.changes) - seen <= FEW_CHANGES:
            moments = self.latest if is_whole else self.soonest
            seen, order = len(self.changes), sorted(moments, key=moments.__getitem__)
            self._orders[is_whole] = (seen, order)
        return set(self.changes[seen:]), order

    def _is_whole(self, shape: Shape) -> bool:
        """Whether a replica takes all devices of a node, of the only type there is: all who hold any must have gone."""
        sets = self.cluster.by_free
        return len(sets) == 1 and shape.device in sets and shape.count == len(sets[shape.device]) - 1

    def _collect(self, found: list[tuple[float, int]], shape: Shape, node: int, count: int) -> None:
        until = -found[0][0] if len(found) == count else float("inf")
        for moment in self.times(shape, node, until):
            if len(found) < count:
                heappush(found, (-moment, -node))
            elif (-moment, -node) > found[0]:
                heapreplace(found, (-moment, -node))
            else:
                break

    def times(self, shape: Shape, node: int, until: float) -> list[float]:
        """When, up to `until`, the node has room for one, two, three … replicas of this shape."""
        cluster = self.cluster
        free = cluster.masks[shape.device][node] if shape.count and shape.device in cluster.masks else 0
        releases = self.releases.get(node, ())
        cpu, memory, shared = cluster.cpu[node], cluster.memory[node], cluster.shared[node]
        times = [0.0] * min(replicas(shape, cpu, memory, shared, free), MANY)
        for moment, _, one in releases:
            if moment > until:
                break
            other = one.shape
            cpu += other.cpu
            memory += other.memory
            shared += other.shared_memory
            if other.device == shape.device:
                free |= one.devices
            if free.bit_count() < shape.count * (len(times) + 1):
                continue  # not enough for one more
            count = replicas(shape, cpu, memory, shared, free)
            if count > len(times):
                times += [moment] * (min(count, MANY) - len(times))
        return times

    def _frees(self, shape: Shape, node: int, until: float) -> bool:
        """Whether the devices for one replica come back by then: on most nodes they do not, and that is all to ask."""
        device, count = shape.device, shape.count
        if not count:
            return True
        free = self.cluster.masks[device][node] if device in self.cluster.masks else 0
        for moment, _, one in self.releases[node]:
            if moment > until:
                return False
            if one.shape.device == device:
                free |= one.devices
                if free.bit_count() >= count:
                    return True
        return False


@dataclass(slots=True)
class Reservation:
    """The future room of a blocked workload."""

    id: str
    start: float
    keep: dict[int, Keep]
    number: int = 0
    spare: int = 0  # devices that those who pass it may hold
    whole: bool = True  # it waits for whole nodes, or for much of one
    spoken_for: int = 0  # nodes of those who came before it
    seen: int = 0  # how many changes of the ledger it knows
    layout: int = -1


def still_holds(ledger: Ledger, gang: Gang, last: Reservation, now: float, others: list[Reservation]) -> bool:
    """Whether nothing has changed that could move a reservation of the cycle before."""
    news = ledger.changes[last.seen :]
    if last.layout != ledger.cluster.layout or last.start <= now or len(news) > 64:
        return False
    if last.spoken_for != _nodes_of(others):
        return False
    shape = gang.parts[0].shape
    for node in set(news):
        if len(gang.parts) > 1 or node in last.keep:
            return False
        if shape.allowed >> node & 1 and ledger.times(shape, node, last.start):
            return False
    last.seen = len(ledger.changes)
    return True


def _nodes_of(reservations: list[Reservation]) -> int:
    nodes = 0
    for reservation in reservations:
        for node in reservation.keep:
            nodes |= 1 << node
    return nodes


def reserve(
    ledger: Ledger, gang: Gang, request: Request, now: float, others: list[Reservation]
) -> Reservation | None:
    """Return when and where the gang can start if nothing else starts, and what must stay free. None: never."""
    found = _reserve(ledger, gang, request, now, _nodes_of(others))
    if found is not None:
        found.spoken_for, found.seen, found.layout = (
            _nodes_of(others),
            len(ledger.changes),
            ledger.cluster.layout,
        )
    return found


def _reserve(ledger: Ledger, gang: Gang, request: Request, now: float, spoken_for: int) -> Reservation | None:
    first = gang.parts[0]
    rule = ledger.cluster.rules.get(first.shape.device)
    is_bound = first.least > 1 and len(ledger.cluster.by_engine) > 1  # to the nodes of one engine
    if len(gang.parts) > 1 or gang.same_switch or is_bound or (rule is not None and rule.whole_when_many):
        return _reserve_by_trial(ledger, gang, request, now)
    order = ledger.earliest(first.shape, first.least, spoken_for)
    if len(order) < first.least:
        order = ledger.earliest(first.shape, first.least)
    if len(order) < first.least:
        return None
    start = now
    nodes: dict[int, int] = {}
    for moment, node in order:
        nodes[node] = nodes.get(node, 0) + 1
        start = max(start, moment)
    keep = {
        node: still_needed(((first.shape, count),), ledger.going(node, start))
        for node, count in nodes.items()
    }
    return Reservation(request.id, start, keep)


def _reserve_by_trial(ledger: Ledger, gang: Gang, request: Request, now: float) -> Reservation | None:
    """Reserve for dependent replicas: release resources on trial, in order of their ends, until the gang fits."""
    cluster = ledger.cluster
    kept, cluster.keep = cluster.keep, {}
    closed, cluster.closed = cluster.closed, NONE_CLOSED
    trial = _Trial(ledger, least_of(gang))
    found = trial.earliest()
    trial.move(0)
    cluster.keep, cluster.closed = kept, closed
    if found is None:
        return None
    end, taken = found
    start = max(now, end)
    need: dict[int, list[Taken]] = {}
    for one in taken:
        need.setdefault(one.node, []).append(one)
    keep = {
        node: still_needed(((one.shape, 1) for one in many), ledger.going(node, start))
        for node, many in need.items()
    }
    return Reservation(request.id, start, keep)


class _Trial:
    """The cluster as it will be, end by end."""

    def __init__(self, ledger: Ledger, gang: Gang) -> None:
        self.cluster = ledger.cluster
        self.gang = gang
        for part in gang.parts:
            self.cluster.refresh(part.shape)
        rows = (row for node in ledger.releases for row in ledger.releases[node])
        self.rows = sorted(
            row for row in rows if any(part.shape.allowed >> row[2].node & 1 for part in gang.parts)
        )
        self.at = 0

    def move(self, to: int) -> None:
        """Let the first `to` replicas have ended, and no others."""
        while self.at < to:
            one = self.rows[self.at][2]
            self.cluster.give(one.node, one.shape, one.devices)
            self.at += 1
        while self.at > to:
            self.at -= 1
            one = self.rows[self.at][2]
            self.cluster.take(one.node, one.shape, one.devices)

    def places(self, at: int) -> list[Taken] | None:
        """Where the gang fits after so many ends."""
        self.move(at)
        taken = place(self.cluster, self.gang, {})
        if taken is not None:
            release(self.cluster, taken)
        return taken

    def earliest(self) -> tuple[float, list[Taken]] | None:
        """The first end after which the gang fits, and where: in steps that double, then by halving."""
        low, high = -1, 0
        while (taken := self.places(high)) is None:
            if high == len(self.rows):
                return None
            low, high = high, min(len(self.rows), max(1, 2 * high))
        while high - low > 1:
            middle = (low + high) // 2
            here = self.places(middle)
            if here is None:
                low = middle
            else:
                high, taken = middle, here
        return (self.rows[high - 1][0] if high else 0.0), taken


def still_needed(parts: Iterable[tuple[Shape, int]], going: Iterable[Taken]) -> Keep:
    """What so many replicas need on a node beyond what those who are going will give back there."""
    cpu = memory = shared = 0
    devices: dict[str, int] = {}
    for shape, count in parts:
        cpu += count * shape.cpu
        memory += count * shape.memory
        shared += count * shape.shared_memory
        if shape.count:
            devices[shape.device] = devices.get(shape.device, 0) + count * shape.count
    for one in going:
        shape = one.shape
        cpu -= shape.cpu
        memory -= shape.memory
        shared -= shape.shared_memory
        if shape.device in devices:
            devices[shape.device] -= shape.count
    kept = {device: count for device, count in devices.items() if count > 0}
    return Keep(max(0, cpu), max(0, memory), max(0, shared), kept or None)


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
