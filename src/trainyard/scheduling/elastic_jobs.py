"""Finds room for more replicas of elastic workloads, within their quota, that no other workload waits for.

placement.py finds room for waiting workloads; pool_growth.py gets more nodes. The platform decides when to ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.scheduling.placement import Gang, Taken, place, release, retake
from trainyard.scheduling.request_classes import amounts_of

if TYPE_CHECKING:
    from trainyard.scheduling.quota import QuotaPlace
    from trainyard.scheduling.reservations import Running
    from trainyard.scheduling.scheduler_state import SchedulerState


def affordable(scheduler: SchedulerState, place_: QuotaPlace, user: str, gang: Gang) -> Gang:
    """The same gang with no more replicas than quotas leave room for, though never fewer than must start."""
    parts = list(gang.parts)

    def is_within() -> bool:
        amounts = amounts_of((part.shape, part.most) for part in parts)
        return scheduler.tree.limit(place_, user, amounts) is None

    for at in reversed(range(len(parts))):  # the first role is the last to be cut
        part = parts[at]
        if part.least == part.most or is_within():
            continue
        low, high = part.least, part.most - 1
        while low < high:
            middle = (low + high + 1) // 2
            parts[at] = replace(part, most=middle)
            low, high = (middle, high) if is_within() else (low, middle - 1)
        parts[at] = replace(part, most=low)
    return Gang(tuple(parts), gang.same_switch)


def at_most(gang: Gang, counts: Mapping[str, int]) -> Gang:
    """The same gang with no more replicas of each role than these, though never fewer than must start."""
    parts = (replace(part, most=max(part.least, counts.get(part.role, 0))) for part in gang.parts)
    return Gang(tuple(parts), gang.same_switch)


def more_room(scheduler: SchedulerState, running: Running) -> list[Taken] | None:
    """Where a running workload would have more replicas, and no fewer of any role; None: nowhere, or others wait for it.

    What it has now is counted as free, for it leaves that first. Nothing stays taken.
    """
    request, cluster = running.request, scheduler.cluster
    gang = scheduler.kinds.of(request).gang
    have = Counter(one.role for one in running.taken)
    wanting = [part for part in gang.parts if part.most > have[part.role]]
    for part in wanting:
        cluster.refresh(part.shape)
    # A quick look before the long one: one replica more must have room beside those there are.
    if not any(cluster.has_room(part.shape, 1, cluster.roomy(part.shape)) for part in wanting):
        return None
    parts = (
        replace(part, least=max(part.least, have[part.role]), most=max(part.most, have[part.role]))
        for part in gang.parts
    )
    place_ = scheduler.tree.place(request.workspace)
    release(cluster, running.taken)
    scheduler.tree.use(place_, request.user, running.amounts, -1)
    larger = affordable(scheduler, place_, request.user, Gang(tuple(parts), gang.same_switch))
    found = None
    for wish in _wishes(larger):
        taken = place(cluster, wish, scheduler.spreads)
        release(cluster, taken or [])
        if taken is not None and len(taken) > len(running.taken):
            found = taken
            break
    scheduler.tree.use(place_, request.user, running.amounts)
    retake(cluster, running.taken)
    return None if found is None or _is_awaited(scheduler, running, found) else found


def _wishes(gang: Gang) -> Iterator[Gang]:
    """What to try in turn: all roles larger, then one of them."""
    yield gang
    for role in [part.role for part in gang.parts if part.least < part.most] if len(gang.parts) > 1 else ():
        parts = (part if part.role == role else replace(part, most=part.least) for part in gang.parts)
        yield Gang(tuple(parts), gang.same_switch)


def _is_awaited(scheduler: SchedulerState, running: Running, found: list[Taken]) -> bool:
    """Return whether a waiting workload could use a node on which this one would have more than now."""
    before = Counter(one.node for one in running.taken)
    nodes = sum(
        1 << node for node, count in Counter(one.node for one in found).items() if count > before[node]
    )
    seen: set[tuple[object, ...]] = set()
    for entry in scheduler.entries.values():
        request, kind = entry.request, entry.kind
        key = (kind, request.workspace, request.user)
        if key in seen or kind.hopeless == scheduler.cluster.layout:
            continue
        seen.add(key)
        for part in kind.gang.parts:
            scheduler.cluster.refresh(part.shape)
        place_ = scheduler.tree.place(request.workspace)
        if (
            any(part.shape.allowed & nodes for part in kind.gang.parts)
            and scheduler.tree.limit(place_, request.user, kind.least) is None
        ):
            return True
    return False
