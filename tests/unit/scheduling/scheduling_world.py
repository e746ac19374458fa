"""A small cluster with a life: arrivals, ends, victims that go and come back, nodes that close, cycle by cycle.

The world keeps its own books from the decisions alone, checks every rule against them after each cycle, and can show
itself as a snapshot.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from scheduling_oracle import Tree, amounts, free_after, is_allowed, keeps_topology, rule

from trainyard.scheduling import Cycle, Holding, Node, Preempt, Request, Scheduler, Slot, Snapshot
from trainyard.scheduling.diagnosis import waits
from trainyard.scheduling.model import NodeState
from trainyard.scheduling.reasons import Code


@dataclass
class World:
    """The books: who waits, who runs where, who is leaving for whom."""

    start: Snapshot
    now: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict)
    waiting: dict[str, Request] = field(default_factory=dict)
    running: dict[str, Holding] = field(default_factory=dict)
    claims: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)  # every decision, for comparing two lives
    preempts: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.start, self.now)
        self.nodes = {node.name: node for node in self.start.nodes}
        self.running = {one.request.id: one for one in self.start.running}
        self.waiting = {one.id: one for one in self.start.waiting}
        # Where more is kept than there is, from the start or since a node closed, nobody is to blame.
        self.closed = bool(self.tree().broken())

    # -- what happens

    def submit(self, request: Request) -> None:
        self.waiting[request.id] = request
        self.scheduler.submit(request)

    def end(self, name: str) -> None:
        holding = self.running.pop(name)
        self.scheduler.end(name, self.now)
        if holding.leaving_for == name:  # for a larger start of its own
            self.scheduler.withdraw(name)
            self.waiting[name] = holding.request
            self.scheduler.submit(replace(holding.request, claim=self.claims[name]))
        elif holding.leaving is not None:  # preempted: it comes back with its age
            self.submit(holding.request)

    def enlarge(self, name: str) -> None:
        """Let it leave for a larger start, if the scheduler says so."""
        holding = self.running[name]
        found = self.scheduler.enlarge(name, self.now, grace=5.0)
        if found is None:
            return
        before, after = (Counter(slot.role for slot in slots) for slots in (holding.slots, found.slots))
        assert holding.leaving is None and found.count == len(holding.slots) < len(found.slots)
        assert all(after[role] >= count for role, count in before.items()), "no role has fewer"
        self._check_gang(holding.request, found.slots)
        self.running[name] = replace(holding, leaving=found.leave_by, leaving_for=name)
        self.claims[name] = found.slots
        self.log.append(f"{self.now} enlarge {name} {found.slots}")
        self.check_quotas()

    def withdraw(self, name: str) -> None:
        del self.waiting[name]
        self.claims.pop(name, None)
        self.scheduler.withdraw(name)

    def change(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.scheduler.change_node(node)
        self.closed = True

    def leaving(self) -> list[str]:
        return [name for name, one in self.running.items() if one.leaving is not None]

    def cycle(self, seconds: float = 1.0) -> Cycle:
        """One cycle, entered into the books and checked."""
        self.now += seconds
        cycle = self.scheduler.cycle(self.now)
        for admit in cycle.admits:
            request = replace(self.waiting.pop(admit.id), claim=(), head_since=None)
            self.claims.pop(admit.id, None)
            self._check_gang(request, admit.slots)
            self.running[admit.id] = Holding(
                request=request, started=self.now, slots=admit.slots, passed=admit.passed
            )
            self.log.append(f"{self.now} admit {admit.id} {admit.slots}")
        self.claims = {name: slots for name, slots in self.claims.items() if name in self.scheduler.claims}
        self.check_room()
        self.check_quotas()
        self._enter_preempts(cycle)
        self._check_waits(cycle)
        return cycle

    def _enter_preempts(self, cycle: Cycle) -> None:
        tree = self.tree()
        groups: dict[str, list[Preempt]] = {}
        for one in cycle.preempts:
            groups.setdefault(one.for_id, []).append(one)
        for name, group in groups.items():
            request = self.waiting[name]
            self._check_victims(tree, request, group)
            tree.add(request, amounts(request))
            for one in group:
                assert one.leave_by == self.now + self._grace(one.id)
                self.running[one.id] = replace(self.running[one.id], leaving=one.leave_by, leaving_for=name)
                self.log.append(f"{self.now} preempt {one.id} for {name}")
        self.preempts += len(cycle.preempts)
        self.claims = {
            name: tuple(taken.slot(self.scheduler.cluster) for taken in claim.taken)
            for name, claim in self.scheduler.claims.items()
        }

    def _grace(self, victim: str) -> float:
        own, policy = self.running[victim].request.grace, self.start.policy
        return policy.grace if own is None else min(own, policy.longest_grace)

    # -- what must hold

    def check_room(self) -> None:
        """Nothing is given out twice, and no more than there is."""
        given: set[tuple[str, str, int]] = set()
        for holding in self.running.values():
            roles = {role.name: role for role in holding.request.roles}
            for slot in holding.slots:
                for index in slot.devices:
                    key = (slot.node, roles[slot.role].device, index)
                    assert key not in given, f"device {key} is given twice"
                    given.add(key)
        held = [(one.request, one.slots) for one in self.running.values()]
        for name, free in free_after(self.nodes.values(), held).items():
            assert min(free.cpu, free.memory, free.shared) >= 0, f"{name} is over-allocated: {free}"

    def _check_gang(self, request: Request, slots: tuple[Slot, ...]) -> None:
        """A gang starts whole, on nodes and devices that it may have."""
        roles = {role.name: role for role in request.roles}
        counts = Counter(slot.role for slot in slots)
        for role in request.roles:
            assert role.least <= counts[role.name] <= role.replicas, f"{request.id} is not whole: {slots}"
        for slot in slots:
            node, role = self.nodes[slot.node], roles[slot.role]
            assert is_allowed(node, role, request), f"{request.id} may not go to {node}"
            assert len(slot.devices) == len(set(slot.devices)) == role.devices
            assert not set(slot.devices) & node.unhealthy.get(role.device, frozenset())
            assert not slot.devices or max(slot.devices) < node.devices[role.device]
            ring = rule(role.device).ring
            if ring and 1 < role.devices <= ring:
                assert len({index // ring for index in slot.devices}) == 1, f"{request.id} crosses rings"
        known = any(node.topology for node in self.nodes.values())
        used = [(self.nodes[slot.node], roles[slot.role]) for slot in slots]
        assert keeps_topology(used, request.same_switch, known), f"{request.id} breaks the topology: {slots}"

    def tree(self) -> Tree:
        """Who uses how much, without those who leave, with those who have a claim."""
        capacity: Counter[str] = Counter()
        for node in self.nodes.values():
            free = free_after([node], ())[node.name]
            capacity.update({"cpu": free.cpu, "memory": free.memory})
            capacity.update({device: len(many) for device, many in free.devices.items()})
        tree = Tree({quota.name: quota for quota in self.start.quotas}, capacity)
        for holding in self.running.values():
            if holding.leaving is None:
                tree.add(holding.request, amounts(holding.request, holding.slots))
        for name, slots in self.claims.items():
            request = self.waiting[name] if name in self.waiting else self.running[name].request
            tree.add(request, amounts(request, slots))
        return tree

    def check_quotas(self) -> None:
        problems = self.tree().broken()
        assert not [one for one in problems if not (self.closed and "or kept" in one)], problems

    def _check_victims(self, tree: Tree, request: Request, group: list[Preempt]) -> None:
        """Victims go by the rules, in the order in which they are told; the tree follows."""
        needs = amounts(request)
        for one in group:
            victim = self.running[one.id]
            assert victim.leaving is None, f"{one.id} is told twice"
            theirs = victim.request
            if theirs.workspace == request.workspace:
                assert one.reason.code is Code.PREEMPTED
                assert theirs.preemptible and theirs.priority < request.priority
            else:
                branches = tree.branches(request.workspace, theirs.workspace)
                assert branches is not None
                ours, its = branches
                assert tree.over(its, needs), f"{one.id} is inside its guarantee"
                if one.reason.code is Code.RECLAIMED:
                    nominal, used = tree.nominal(ours), tree.used.get(ours, Counter())
                    named = [key for key in needs if key in nominal]
                    assert named and all(used[key] + needs[key] <= nominal[key] for key in named)
                else:
                    assert one.reason.code is Code.YIELDED
                    assert theirs.preemptible and not request.preemptible
            tree.remove(theirs, amounts(theirs, victim.slots))

    def _check_waits(self, cycle: Cycle) -> None:
        """Everybody who waits is told exactly one reason."""
        told = list(waits(self.scheduler))
        assert sorted(one.id for one in told) == sorted(self.waiting)
        for one in told:
            assert one.position >= 1
            assert one.start is None or one.start >= self.now
            if one.reason.code is Code.STRATEGY and not cycle.preempts:  # those have just freed quota
                assert one.reason.subject, f"{one} waits for nobody"

    # -- views

    def snapshot(self, now: float | None = None) -> Snapshot:
        """The world as another scheduler would be shown it."""
        now = self.now if now is None else now
        shares = self.scheduler.shares
        keys: list[Any] = list(shares.accounts)
        return replace(
            self.start,
            nodes=tuple(self.nodes.values()),
            waiting=tuple(
                replace(request, claim=self.claims.get(name, ())) for name, request in self.waiting.items()
            ),
            running=tuple(
                replace(one, request=replace(one.request, claim=self.claims.get(name, ())))
                for name, one in self.running.items()
            ),
            past_use={key: shares.past(key, now) for key in keys if isinstance(key, str)},
            past_use_by_user={key: shares.past(key, now) for key in keys if isinstance(key, tuple)},
        )


def close(node: Node) -> Node:
    return replace(node, state=NodeState.CORDONED)
