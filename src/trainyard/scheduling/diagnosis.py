"""Finds for each waiting workload exactly one reason, with figures. explain.py has the sentences for people.

The reasons are computed after a cycle from its state. Workloads with equal needs share one, so that a hundred thousand
of them take a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainyard.scheduling.cluster import (
    Cluster,
    Shape,
    bits,
    carries,
    first_device,
    healthy_masks,
    replicas,
    rings,
    tolerates,
)
from trainyard.scheduling.estimate import estimate
from trainyard.scheduling.model import Node, NodeState, Wait
from trainyard.scheduling.placement import Part
from trainyard.scheduling.reasons import Code, Figure, Reason
from trainyard.scheduling.request_classes import RequestClass
from trainyard.scheduling.scheduler import Scheduler
from trainyard.scheduling.workspace_queue import QueueEntry, WorkspaceQueue


def waits(scheduler: Scheduler) -> Iterator[Wait]:
    """Yield one decision for every workload that waits after a cycle, queue by queue."""
    diagnosis = Diagnosis(scheduler)
    queues = {line.name: list(scheduler.everybody(line)) for line in scheduler.lines.values()}
    starts = estimate(scheduler, queues)
    for id, claim in scheduler.claims.items():  # noqa: A001
        if id in scheduler.running:
            continue  # it does not wait: it stops only to start larger
        slots = tuple(one.slot(scheduler.cluster) for one in claim.taken)
        yield Wait(id, 1, diagnosis.of_claim(id), starts.get(id), slots)
    for line in scheduler.lines.values():
        for position, entry in enumerate(queues[line.name], 1):
            id = entry.request.id  # noqa: A001
            reason = diagnosis.of(line, entry)
            yield Wait(id, position, reason, starts.get(id) if is_possible(reason) else None)


def is_possible(reason: Reason) -> bool:
    """Return whether waiting helps: the workload is not larger than the cluster or than the limit that holds it."""
    too_large = float(reason.figures.get("wanted", 0)) > float(reason.figures.get("limit", 0))
    return reason.code is not Code.NEVER_FITS and not too_large


def wait_of(scheduler: Scheduler, id: str) -> Wait:  # noqa: A002
    """Return the decision for one workload."""
    return next(wait for wait in waits(scheduler) if wait.id == id)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What one node lacks for one replica."""

    node: str
    what: str  # devices, ring, cpu, memory, shared_memory, taint, selector, state …
    has: int = 0
    needs: int = 0


class Diagnosis:
    """Reasons after one cycle."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._classes = classes_of(scheduler.cluster)
        self._nevers: dict[RequestClass, Reason | None] = {}
        self._fits: dict[RequestClass, Reason | None] = {}
        self._limits: dict[tuple[RequestClass, str, str], Reason | None] = {}
        self._delays = [
            (
                one,
                Reason(
                    Code.RESERVATION,
                    one.id,
                    "",
                    {"start": one.start, "window": max(0.0, one.start - scheduler.now)},
                ),
            )
            for one in scheduler.reservations
        ]

    def of_claim(self, id: str) -> Reason:  # noqa: A002
        """Return the reason of a workload whose victims are leaving."""
        victims = self.scheduler.claims[id].victims
        last = max(
            (self.scheduler.running[victim].leaving or 0.0 for victim in victims), default=self.scheduler.now
        )
        return Reason(Code.PREEMPTING, "", "", {"victims": len(victims), "until": last})

    def of(self, line: WorkspaceQueue, entry: QueueEntry) -> Reason:
        """Return the reason of a workload in a queue."""
        scheduler, id = self.scheduler, entry.request.id  # noqa: A001
        if id in scheduler.growth.asked:
            return Reason(Code.ACQUIRING, scheduler.growth.asked[id], "", {"replicas": _least(entry.kind)})
        blocker = scheduler.blockers.get(line.name)
        if blocker is not None and line.is_behind(entry, blocker):
            return Reason(Code.STRATEGY, blocker.request.id, "", {"strategy": line.strategy.value})
        return (
            self._never(entry.kind)
            or self._limit(entry)
            or self._fit(entry.kind)
            or self._reserved(line, entry)
        )

    def _never(self, kind: RequestClass) -> Reason | None:
        """Return the reason if it could not start even with nothing else running, else None."""
        if kind not in self._nevers:
            self._nevers[kind] = None
            for part in kind.gang.parts:
                self.scheduler.cluster.refresh(part.shape)
                if empty_room(self.scheduler, part, self._classes) < part.least or self._is_odd(part):
                    self._nevers[kind] = self._told(Code.NEVER_FITS, part)
        return self._nevers[kind]

    def _is_odd(self, part: Part) -> bool:
        """Whether the device type is never given out in such numbers."""
        rule = self.scheduler.cluster.rules.get(part.shape.device)
        return rule is not None and not rule.gives(part.shape.count, part.least)

    def _limit(self, entry: QueueEntry) -> Reason | None:
        request = entry.request
        key = (entry.kind, request.workspace, request.user)
        if key not in self._limits:
            place = self.scheduler.tree.place(request.workspace)
            self.scheduler.growth.charge(1)  # what was asked for in this cycle is spoken for
            found = self.scheduler.tree.limit(place, request.user, entry.kind.least)
            self.scheduler.growth.charge(-1)
            self._limits[key] = None if found is None else found[1]
        return self._limits[key]

    def _fit(self, kind: RequestClass) -> Reason | None:
        if kind not in self._fits:
            fits = kind.failed_at < 0 and not self._is_short(kind)
            self._fits[kind] = None if fits else self._no_room(kind)
        return self._fits[kind]

    def _is_short(self, kind: RequestClass) -> bool:
        return any(
            room_now(self.scheduler.cluster, part, part.least) < part.least for part in kind.gang.parts
        )

    def _no_room(self, kind: RequestClass) -> Reason:
        cluster = self.scheduler.cluster
        for part in kind.gang.parts:
            now = room_now(cluster, part, part.least)
            if now < part.least:
                return self._told(Code.GANG if now else Code.NODE_FIT, part)
        strict = kind.gang.same_switch or any(self._has_rule(part) for part in kind.gang.parts)
        return self._told(Code.TOPOLOGY if strict else Code.GANG, kind.gang.parts[0])

    def _has_rule(self, part: Part) -> bool:
        rule = self.scheduler.cluster.rules.get(part.shape.device)
        return rule is not None and bool(rule.whole_when_many)

    def _told(self, code: Code, part: Part) -> Reason:
        cluster, shape = self.scheduler.cluster, part.shape
        figures: dict[str, Figure] = {
            "replicas": part.least,
            "room": room_now(cluster, part, part.least),
            "nodes": shape.allowed.bit_count(),
            "devices": shape.count,
        }
        figures.update(shortages(cluster, shape))
        if shape.count:
            figures["largest"] = largest(cluster, shape)
        absent = sorted(name for name in shape.key[2] if name not in cluster.index)
        if absent:
            figures["absent"] = ", ".join(absent[:3]) + (" …" if len(absent) > 3 else "")
        return Reason(code, part.role, shape.device, figures)

    def _reserved(self, line: WorkspaceQueue, entry: QueueEntry) -> Reason:
        end = self.scheduler.now + entry.limit
        for reservation, reason in self._delays:
            if reservation.id != entry.request.id and reservation.start < end:
                return reason
        # Only its turn: what was called away for somebody ahead has freed more than that one takes.
        claims = self.scheduler.claims
        mine = [id for id, one in claims.items() if one.entry.request.workspace == entry.request.workspace]  # noqa: A001
        ahead = (mine or [*claims] or [""])[-1]
        return Reason(Code.STRATEGY, ahead, "", {"strategy": line.strategy.value})


def room_now(cluster: Cluster, part: Part, enough: int) -> int:
    """How many replicas have room now, counted up to `enough`."""
    cluster.refresh(part.shape)
    total = 0
    for index in bits(cluster.roomy(part.shape)):
        total += cluster.fits(index, part.shape)
        if total >= enough:
            return enough
    return total


def empty_room(scheduler: Scheduler, part: Part, classes: list[tuple[Node, int]]) -> int:
    """How many replicas would have room if nothing ran, pools that can grow included; counted up to enough."""
    shape = part.shape
    pool, selector, names, tolerations, avoid, first = shape.key
    cluster = scheduler.cluster
    if names or avoid:
        wanted = names or cluster.index.keys()
        classes = [
            (cluster.nodes[cluster.index[name]], 1)
            for name in wanted
            if name in cluster.index and name not in avoid
        ]
    total: dict[str, int] = {}  # by engine: a workload lies on the nodes of one
    for node, count in classes:
        if (not pool or node.pool == pool) and (not first or first_device(node) == first):
            room = count * empty_node(node, shape, selector, tolerations)
            total[node.engine] = total.get(node.engine, 0) + room
    for one in scheduler.pools.values():
        if one.promise is not None and pool in {"", one.name} and not names:
            more = max(0, one.limit - scheduler.pool_size(one.name))
            room = more * empty_node(one.promise, shape, selector, tolerations)
            total[one.promise.engine] = total.get(one.promise.engine, 0) + room
    return min(max(total.values(), default=0), part.least)


def classes_of(cluster: Cluster) -> list[tuple[Node, int]]:
    """One node of each class, and how many there are of it."""
    found: dict[object, tuple[Node, int]] = {}
    for node in cluster.nodes:
        if node.name:
            key = (node.pool, node.engine, node.cpu, node.memory, node.reserved_cpu, node.reserved_memory, node.shared_memory,
                   node.taints, tuple(node.devices.items()), tuple(node.labels.items()))  # fmt: skip
            found[key] = (node, found[key][1] + 1 if key in found else 1)
    return list(found.values())


def empty_node(
    node: Node, shape: Shape, selector: tuple[tuple[str, str], ...], tolerations: tuple[object, ...]
) -> int:
    """How many replicas one empty node has room for, unhealthy devices counted as if they were repaired."""
    if not shape.possible or not carries(node, selector) or not tolerates(node, tolerations):
        return 0
    free = healthy_masks(replace(node, unhealthy={})).get(shape.device, 0)
    shared = node.memory if node.shared_memory is None else node.shared_memory
    return replicas(shape, node.cpu - node.reserved_cpu, node.memory - node.reserved_memory, shared, free)


def shortages(cluster: Cluster, shape: Shape) -> dict[str, Figure]:
    """On how many of the allowed nodes each resource is short for one replica: the first that is, on each."""
    allowed = shape.allowed
    counts: dict[str, Figure] = {}
    enough = allowed
    if shape.count:
        enough = 0
        for at in cluster.by_free.get(shape.device, [])[shape.count :]:
            enough |= at
        enough &= allowed
        lacking = (allowed & ~enough).bit_count()
        if lacking:
            counts["short_of_devices"] = lacking
    for index in bits(enough):
        what = short_of(cluster, index, shape)
        if what is not None:
            name = f"short_of_{what[0]}"
            counts[name] = int(counts.get(name, 0)) + 1
    closed = (cluster.present & ~cluster.ready).bit_count()
    if closed:
        counts["not_ready"] = closed
    return counts


def short_of(cluster: Cluster, index: int, shape: Shape) -> tuple[str, int, int] | None:
    """What a node lacks for one replica: the resource, how much it has free, how much is needed."""
    if shape.count:
        free = cluster.masks[shape.device][index] if shape.device in cluster.masks else 0
        if free.bit_count() < shape.count:
            return "devices", free.bit_count(), shape.count
        if shape.ring and all(part.bit_count() < shape.count for part in rings(free, shape.ring)):
            return "ring", max(part.bit_count() for part in rings(free, shape.ring)), shape.count
    for what, has, needs in (
        ("cpu", cluster.cpu[index], shape.cpu),
        ("memory", cluster.memory[index], shape.memory),
        ("shared_memory", cluster.shared[index], shape.shared_memory),
    ):
        if has < needs:
            return what, has, needs
    return None


def largest(cluster: Cluster, shape: Shape) -> int:
    """The most devices that one replica could have now, with CPU and memory in proportion."""
    sets = cluster.by_free.get(shape.device, [])
    for count in range(min(shape.count, len(sets) - 1), 0, -1):
        for free in range(count, len(sets)):
            for index in bits(sets[free] & shape.allowed):
                if (
                    cluster.cpu[index] * shape.count >= shape.cpu * count
                    and cluster.memory[index] * shape.count >= shape.memory * count
                ):
                    return count
    return 0


def node_report(scheduler: Scheduler, id: str) -> list[Shortage]:  # noqa: A002
    """Node by node, what is missing for one replica of the first role that has no room."""
    entry = scheduler.entries[id]
    cluster = scheduler.cluster
    for part in entry.kind.gang.parts:
        if room_now(cluster, part, part.least) < part.least:
            return [_shortage(cluster, index, part.shape) for index in bits(cluster.present)]
    return []


def _shortage(cluster: Cluster, index: int, shape: Shape) -> Shortage:
    node = cluster.nodes[index]
    if node.state is not NodeState.READY:
        return Shortage(node.name, node.state.value)
    if not shape.allowed >> index & 1:
        pool, selector, names, tolerations, avoid, _ = shape.key
        if pool and node.pool != pool:
            return Shortage(node.name, "pool")
        if (names and node.name not in names) or node.name in avoid:
            return Shortage(node.name, "not_named")
        if not carries(node, selector):
            return Shortage(node.name, "selector")
        if not tolerates(node, tolerations):
            return Shortage(node.name, "taint")
        return Shortage(node.name, "devices", 0, shape.count)
    short = short_of(cluster, index, shape)
    if short is None:
        return Shortage(node.name, "nothing")
    return Shortage(node.name, *short)


def _least(kind: RequestClass) -> int:
    return sum(part.least for part in kind.gang.parts)
