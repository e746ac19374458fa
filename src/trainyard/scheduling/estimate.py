"""Estimates when waiting workloads start, by playing the queue forward with the limits of running workloads.

The estimate is pessimistic: workloads end at their limits, and none overtakes another. It counts devices of a type (or
CPU) over the whole cluster, not node by node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from trainyard.scheduling.request_classes import RequestClass
from trainyard.scheduling.scheduler import Scheduler
from trainyard.scheduling.workspace_queue import QueueEntry


def estimate(scheduler: Scheduler, queues: Mapping[str, Sequence[QueueEntry]]) -> dict[str, float]:
    """Workload → estimated start, from each line in order; one that is never in sight is left out."""
    now = scheduler.now
    free = {device: scheduler.cluster.free_devices(device) for device in scheduler.cluster.by_free}
    free["cpu"] = sum(max(0, cpu) for cpu in scheduler.cluster.cpu)
    releases: dict[str, list[tuple[float, int]]] = {}
    for running in scheduler.running.values():
        for resource, amount in running.amounts:
            releases.setdefault(resource, []).append((max(running.end, now), amount))
    for rows in releases.values():
        heapify(rows)
    starts = {reservation.id: reservation.start for reservation in scheduler.reservations}
    clock: dict[str, float] = {}
    found: dict[str, float] = {}
    for entry in scheduler.in_turn(queues):
        resource, amount = scarce(entry.kind)
        moment = max(now, clock.get(resource, now))
        rows = releases.setdefault(resource, [])
        left = free.get(resource, 0)
        while left < amount and rows:
            end, back = heappop(rows)
            left += back
            moment = max(moment, end)
        free[resource] = left
        if left < amount:
            continue
        run = scheduler.policy.assumed_run if entry.limit == float("inf") else entry.limit
        heappush(rows, (moment + run, amount))
        free[resource] = left - amount
        clock[resource] = moment
        start = max(moment, starts.get(entry.request.id, moment))
        if start < float("inf"):
            found[entry.request.id] = start
    for id, claim in scheduler.claims.items():  # noqa: A001
        found[id] = max(
            (max(now, scheduler.running[one].leaving or now) for one in claim.victims), default=now
        )
    return found


def scarce(kind: RequestClass) -> tuple[str, int]:
    """The resource that decides: devices where it wants any, else the first it wants."""
    return (
        kind.least[-1]
        if kind.least and kind.least[-1][0] != "memory"
        else (kind.least[0] if kind.least else ("cpu", 0))
    )
