"""Chooses the workloads to preempt so that another can start: as few and as cheap as possible.

Who may be told to go: a lower priority of the same workspace, if it is preemptible; what another branch of the quota
tree holds above its guarantee, if ours is still inside its own; a preemptible workload of another branch that is not
inside its guarantee. None of these relations holds both ways at once, so two queues cannot take from each other in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge, nsmallest
from itertools import chain, combinations, islice, takewhile
from typing import TYPE_CHECKING

from trainyard.scheduling.cluster import Cluster, Shape, bits, replicas
from trainyard.scheduling.model import Request
from trainyard.scheduling.placement import Part, Taken, least_of, place, release, retake, would_fit
from trainyard.scheduling.quota import QuotaPlace
from trainyard.scheduling.reasons import Code, Reason
from trainyard.scheduling.reservations import Cost, Running, cost_of

if TYPE_CHECKING:
    from trainyard.scheduling.scheduler_state import SchedulerState
    from trainyard.scheduling.workspace_queue import QueueEntry

EXACT = 8  # with so few candidates all sets of victims are tried, the smallest first
NEAREST = 512  # candidates looked at when there are many


@dataclass(slots=True, eq=False)
class Victim:
    """A running workload that may be preempted, with the reason."""

    running: Running
    place: QuotaPlace
    branch: QuotaPlace | None  # through which its quota is called back; None: the same workspace
    code: Code

    def reason(self, request: Request) -> Reason:
        """Return the reason to show for the preemption."""
        return Reason(
            self.code,
            request.id,
            "",
            {
                "priority": request.priority,
                "workspace": request.workspace,
                "own_priority": self.running.request.priority,
            },
        )


def find_victims(
    scheduler: SchedulerState, entry: QueueEntry, place_: QuotaPlace
) -> tuple[list[Victim], list[Taken]] | None:
    """Find the victims that let this workload start, and its places then. None if no set of victims is enough."""
    others = _others(scheduler, entry, place_)
    if not _has_any(scheduler, entry.request, others) or not _could_be_enough(scheduler, entry, others):
        return None
    attempt = _Attempt(scheduler, entry, place_)
    # NB: a workload that fits but waits only waits for its turn, which is no reason to preempt.
    if not _is_known_not_to_fit(scheduler, entry) and attempt.fits():
        return None
    candidates = islice(_candidates(scheduler, entry, place_, others), NEAREST)
    few = list(islice(candidates, EXACT + 1))
    if len(few) <= EXACT:
        chosen = attempt.exactly(few)
    else:
        chosen = attempt.cheaply(chain(few, candidates))
    if chosen is None:
        return None
    taken = attempt.places(chosen)
    return None if taken is None else (chosen, taken)


@dataclass(slots=True, eq=False)
class _Other:
    """Another workspace whose workloads may be preempted."""

    workspace: str
    place: QuotaPlace
    branch: QuotaPlace  # through which its quota is called back
    lends: bool  # our branch is inside its guarantee: what they hold above theirs comes back


def _others(scheduler: SchedulerState, entry: QueueEntry, place_: QuotaPlace) -> list[_Other]:
    """Return the workspaces above their guarantee, whose workloads may be preempted."""
    tree, amounts = scheduler.tree, entry.kind.least
    over: dict[int, bool] = {}  # of each branch, once
    inside: dict[int, bool] = {}
    found: list[_Other] = []
    for workspace in scheduler.by_cost:
        theirs = tree.place(workspace)
        branches = tree.branches(place_, theirs)
        if branches is None:
            continue
        ours, its = branches
        if id(its) not in over:
            over[id(its)] = its.is_over_nominal(amounts)
        if over[id(its)]:
            if id(ours) not in inside:
                inside[id(ours)] = ours.is_within_nominal(amounts)
            found.append(_Other(workspace, theirs, its, inside[id(ours)]))
    return found


def _has_any(scheduler: SchedulerState, request: Request, others: list[_Other]) -> bool:
    """Whether there may be candidates at all."""
    mine = scheduler.preemptible_by_cost.get(request.workspace)
    if mine and mine[0][1].request.priority < request.priority:  # the lowest priority comes first
        return True
    if request.preemptible:
        return any(other.lends for other in others)
    return any(other.lends or scheduler.preemptible_by_cost.get(other.workspace) for other in others)


def _is_known_not_to_fit(scheduler: SchedulerState, entry: QueueEntry) -> bool:
    """Return whether the last check found no room and no room was added since. Dependent replicas are checked again."""
    gang = entry.kind.gang
    rule = scheduler.cluster.rules.get(gang.parts[0].shape.device)
    if len(gang.parts) > 1 or gang.same_switch or (rule is not None and rule.whole_when_many):
        return False
    return not entry.kind.may_fit(scheduler.cluster)


def _could_be_enough(scheduler: SchedulerState, entry: QueueEntry, others: list[_Other]) -> bool:
    """Check a sum over the cluster before single victims. It rules out most large gangs."""
    resource, needed = entry.kind.least[-1] if entry.kind.least else ("", 0)
    if resource not in scheduler.cluster.by_free:
        return True
    needed -= scheduler.cluster.free_devices(resource)
    needed -= scheduler.preemptible.get(resource, 0)
    if needed > 0 and scheduler.tree.guarantees:
        needed -= sum(other.place.used.get(resource, 0) for other in others if other.lends)
    return needed <= 0


def _candidates(
    scheduler: SchedulerState, entry: QueueEntry, place_: QuotaPlace, others: list[_Other]
) -> Iterator[Victim]:
    """Yield the possible victims, the cheapest first: borrowers, then low priority, then the newest."""
    request = entry.request
    nodes = 0
    for part in entry.kind.gang.parts:
        scheduler.cluster.refresh(part.shape)
        nodes |= part.shape.allowed
    anywhere = nodes & scheduler.cluster.present == scheduler.cluster.present

    def useful(
        rows: Iterable[tuple[Cost, Running]], place: QuotaPlace, branch: QuotaPlace | None, code: Code
    ) -> Iterator[tuple[Cost, Victim]]:
        for cost, running in rows:
            if running.leaving is None and (anywhere or any(nodes >> one.node & 1 for one in running.taken)):
                yield cost, Victim(running, place, branch, code)

    mine = scheduler.preemptible_by_cost.get(request.workspace, ())
    lower = takewhile(lambda row: row[1].request.priority < request.priority, mine)
    borrowing: list[Iterator[tuple[Cost, Victim]]] = []
    yielding = [useful(lower, place_, None, Code.PREEMPTED)]
    for other in others:
        if other.lends:
            rows = scheduler.by_cost[other.workspace]
            borrowing.append(useful(rows, other.place, other.branch, Code.RECLAIMED))
        elif not request.preemptible:
            rows = scheduler.preemptible_by_cost.get(other.workspace, [])
            yielding.append(useful(rows, other.place, other.branch, Code.YIELDED))
    # NB: costs differ from each other, so nothing else is compared.
    for _, victim in chain(merge(*borrowing), merge(*yielding)):
        yield victim


def _cost(victim: Victim) -> tuple[bool, int, float, int]:
    return (victim.code is not Code.RECLAIMED, *cost_of(victim.running))


class _Attempt:
    """Removing candidates on trial, and putting them back."""

    def __init__(self, scheduler: SchedulerState, entry: QueueEntry, place_: QuotaPlace) -> None:
        self.scheduler = scheduler
        self.entry = entry
        self.place = place_
        self.amounts = entry.kind.least
        self.gang = least_of(entry.kind.gang)  # the quota is asked for these, and nobody has to go for more
        self.refused = (
            False  # somebody could not go because others of its branch had gone: another set may do
        )
        self.found: list[Taken] | None = None  # where it goes, if that is known
        self.by_node: dict[int, list[tuple[Victim, list[Taken]]]] = {}  # with what each holds there
        self.free: dict[str, int] = {}  # replicas of each role that have no room yet

    def _remove(self, victim: Victim) -> None:
        request = victim.running.request
        release(self.scheduler.cluster, victim.running.taken)
        self.scheduler.tree.use(victim.place, request.user, victim.running.amounts, -1)

    def _put_back(self, victim: Victim) -> None:
        request = victim.running.request
        self.scheduler.tree.use(victim.place, request.user, victim.running.amounts)
        retake(self.scheduler.cluster, victim.running.taken)

    def fits(self) -> bool:
        """Whether it has quota and room, as things are."""
        scheduler, request = self.scheduler, self.entry.request
        if scheduler.tree.limit(self.place, request.user, self.amounts) is not None:
            return False
        return would_fit(scheduler.cluster, self.gang, scheduler.spreads)

    def _may(self, victim: Victim) -> bool:
        """Return whether its branch is still above its guarantee without the other victims."""
        return victim.branch is None or victim.branch.is_over_nominal(self.amounts)

    def alone(self, victim: Victim) -> list[Victim] | None:
        """Return a single victim if one is enough, and remember the places."""
        if not self._may(victim):
            return None
        self._remove(victim)
        if self.scheduler.tree.limit(self.place, self.entry.request.user, self.amounts) is None:
            self.found = place(self.scheduler.cluster, self.gang, self.scheduler.spreads)
            if self.found is not None:
                release(self.scheduler.cluster, self.found)
        self._put_back(victim)
        return None if self.found is None else [victim]

    def greedy(self, candidates: list[Victim]) -> list[Victim] | None:
        """Remove victims in doubling steps until it fits, then put back those that are not needed, the dearest first."""
        removed: list[Victim] = []
        enough = False
        check = 1
        for at, victim in enumerate(candidates, 1):
            if self._may(victim):
                self._remove(victim)
                removed.append(victim)
            else:
                self.refused = True
            if len(removed) >= check or at == len(candidates):
                check = 2 * len(removed)
                if self.fits():
                    enough = True
                    break
        needed = self._without_spare(removed) if enough else None
        for victim in reversed(removed if needed is None else needed):
            self._put_back(victim)
        return needed

    def _without_spare(self, removed: list[Victim]) -> list[Victim]:
        needed = list(removed)
        if len(removed) == 1:
            return needed  # with nobody gone it does not fit
        for victim in reversed(removed):
            self._put_back(victim)
            if self.fits():
                needed.remove(victim)
            else:
                self._remove(victim)
        return needed

    def _try(self, victims: tuple[Victim, ...]) -> bool:
        """Whether it fits with exactly these gone."""
        gone: list[Victim] = []
        good = True
        for victim in victims:
            if not self._may(victim):
                good = False
                break
            self._remove(victim)
            gone.append(victim)
        good = good and self.fits()
        for victim in reversed(gone):
            self._put_back(victim)
        return good

    def fewest(self, candidates: list[Victim], known: list[Victim] | None) -> list[Victim] | None:
        """Try every set that is not larger, the smallest first, and of equal sizes the cheapest."""
        most = len(candidates) if known is None else len(known)
        for size in range(1, most + 1):
            for victims in combinations(candidates, size):
                if self._try(victims):
                    return list(victims)
        return known

    def exactly(self, candidates: list[Victim]) -> list[Victim] | None:
        """Where there are only these: no set of them is smaller, and none of that size cheaper."""
        if not candidates or not self.could_fit(candidates):
            return None
        chosen = self.node_by_node(candidates) or self.greedy(candidates)
        return self.fewest(candidates, chosen) if chosen is not None or self.refused else None

    def cheaply(self, candidates: Iterable[Victim]) -> list[Victim] | None:
        """Where there are many: no more of them are looked at than it takes."""
        if len(self.entry.kind.gang.parts) > 1:
            everybody = list(candidates)
            return self.greedy(everybody) if self.could_fit(everybody) else None
        part = self.entry.kind.gang.parts[0]
        left = self._without_room(part)
        clearings = TrialEvictions(self.scheduler.cluster, part.shape)
        seen: list[Victim] = []
        candidates = iter(candidates)
        for victim in candidates:
            seen.append(victim)
            clearings.remove(victim)
            if clearings.singles >= max(left, 1):
                break  # NB: the cheapest come first: nobody later is better
        chosen = None
        if len(clearings.found) >= left:
            few = clearings.cheapest(max(left, 1))
            chosen = self.alone(few[0]) if len(few) == 1 else self.greedy(few)
        elif left > clearings.room():
            return None
        return chosen or self.greedy([*seen, *candidates])

    def could_fit(self, candidates: list[Victim]) -> bool:
        """Whether there would be room if all candidates were gone: a sum over nodes, before anything is tried."""
        cluster = self.scheduler.cluster
        self.by_node = {}
        for victim in candidates:
            for one in victim.running.taken:
                here = self.by_node.get(one.node)
                if here is None:
                    self.by_node[one.node] = [(victim, [one])]
                elif here[-1][0] is victim:
                    here[-1][1].append(one)
                else:
                    here.append((victim, [one]))
        for part in self.entry.kind.gang.parts:
            left = self.free[part.role] = self._without_room(part)
            for node, victims in self.by_node.items():
                if left <= 0:
                    break
                if part.shape.allowed >> node & 1:
                    left -= self._room(node, part.shape, victims) - cluster.fits(node, part.shape)
            if left > 0:
                return False
        return True

    def _without_room(self, part: Part) -> int:
        """How many replicas of a role have no room as things are."""
        cluster = self.scheduler.cluster
        left = part.least
        for node in bits(cluster.roomy(part.shape)):
            left -= cluster.fits(node, part.shape)
            if left <= 0:
                break
        return left

    def _room(self, node: int, shape: Shape, victims: list[tuple[Victim, list[Taken]]]) -> int:
        """How many replicas the node has room for without these."""
        cluster = self.scheduler.cluster
        cpu, memory, shared = cluster.cpu[node], cluster.memory[node], cluster.shared[node]
        free = cluster.masks[shape.device][node] if shape.count and shape.device in cluster.masks else 0
        for _, taken in victims:
            for one in taken:
                cpu += one.shape.cpu
                memory += one.shape.memory
                shared += one.shape.shared_memory
                if one.shape.device == shape.device:
                    free |= one.devices
        return replicas(shape, cpu, memory, shared, free)

    def node_by_node(self, candidates: list[Victim]) -> list[Victim] | None:
        """Clear the nodes on which it takes the fewest victims to make room; None: another way is needed."""
        if len(self.entry.kind.gang.parts) > 1:
            return None
        part = self.entry.kind.gang.parts[0]
        left = self.free[part.role]
        clearings = TrialEvictions(self.scheduler.cluster, part.shape)
        for victim in candidates:
            clearings.remove(victim)
        if len(clearings.found) < left:
            return None
        return self.greedy(clearings.cheapest(max(left, 1)))

    def places(self, victims: list[Victim]) -> list[Taken] | None:
        """Return the places once the victims are gone. The room stays theirs until then."""
        if self.found is not None:
            return self.found
        for victim in victims:
            self._remove(victim)
        taken = place(self.scheduler.cluster, self.gang, self.scheduler.spreads)
        if taken is not None:
            release(self.scheduler.cluster, taken)
        for victim in reversed(victims):
            self._put_back(victim)
        return taken


class TrialEvictions:
    """Who must go from which node so that a replica gets room: victims are taken away on trial, one after the other."""

    def __init__(self, cluster: Cluster, shape: Shape) -> None:
        self.cluster = cluster
        self.shape = shape
        self.found: list[list[Victim]] = []  # who must go from one node, for each that can be cleared
        self.singles = 0  # of them, where one victim is enough
        self._nodes: dict[int, _Cleared | None] = {}  # None: has room already, or is not allowed

    def remove(self, victim: Victim) -> None:
        """Let one more be gone."""
        shape = self.shape
        for one in victim.running.taken:
            if one.node not in self._nodes:
                self._nodes[one.node] = self._open(one.node)
            node = self._nodes[one.node]
            if node is None:
                continue
            other = one.shape
            node.cpu += other.cpu
            node.memory += other.memory
            node.shared += other.shared_memory
            if other.device == shape.device:
                node.free |= one.devices
            if node.is_clear:
                continue
            if not node.victims or node.victims[-1] is not victim:
                node.victims.append(victim)
            if node.free.bit_count() >= shape.count and node.room(shape):
                node.is_clear = True
                self.found.append(node.victims)
                self.singles += len(node.victims) == 1

    def _open(self, node: int) -> _Cleared | None:
        cluster, shape = self.cluster, self.shape
        if not shape.allowed >> node & 1 or cluster.fits(node, shape):
            return None
        free = cluster.masks[shape.device][node] if shape.count and shape.device in cluster.masks else 0
        return _Cleared(cluster.cpu[node], cluster.memory[node], cluster.shared[node], free, [], False)

    def cheapest(self, count: int) -> list[Victim]:
        """Who must go from so many nodes: those that take the fewest, then whose dearest is the cheapest."""
        # NB: the candidates of a node come in order: its last one is the dearest.
        best = nsmallest(count, self.found, key=lambda victims: (len(victims), _cost(victims[-1])))
        chosen = {id(victim.running): victim for victims in best for victim in victims}
        return sorted(chosen.values(), key=_cost)

    def room(self) -> int:
        """How many replicas have room without all who were removed, beyond those that have it anyway."""
        return sum(node.room(self.shape) for node in self._nodes.values() if node is not None)


@dataclass(slots=True, eq=False)
class _Cleared:
    """A node on which replicas have no room, without some of those who run there."""

    cpu: int
    memory: int
    shared: int
    free: int
    victims: list[Victim]
    is_clear: bool

    def room(self, shape: Shape) -> int:
        """How many replicas have room now."""
        return replicas(shape, self.cpu, self.memory, self.shared, self.free)
