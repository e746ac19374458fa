"""What is right, worked out the slow way: sums over places, and every placement of a small gang tried in turn.

Nothing here uses the scheduler's own arithmetic: only the values of model.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from trainyard.scheduling.model import ASCEND_910, DeviceRule, Node, NodeState, Quota, Request, Role, Slot

PLAIN = DeviceRule()


def rule(device: str) -> DeviceRule:
    return ASCEND_910 if "910" in device else PLAIN


def is_allowed(node: Node, role: Role, request: Request) -> bool:
    """Whether a node may be used for a role, empty or not."""
    tolerated = all(
        any(one.key == taint.key and one.value in {"", taint.value} for one in role.tolerations)
        for taint in node.taints
    )
    return (
        node.state is NodeState.READY
        and (not role.pool or role.pool == node.pool)
        and (not role.nodes or node.name in role.nodes)
        and node.name not in request.avoid
        and all(node.labels.get(key) == value for key, value in role.selector)
        and tolerated
    )


@dataclass
class Free:
    """What one node has free."""

    node: Node
    cpu: int
    memory: int
    shared: int
    devices: dict[str, frozenset[int]]


def empty(node: Node) -> Free:
    devices = {
        device: frozenset(range(count)) - node.unhealthy.get(device, frozenset())
        for device, count in node.devices.items()
    }
    shared = node.memory if node.shared_memory is None else node.shared_memory
    return Free(node, node.cpu - node.reserved_cpu, node.memory - node.reserved_memory, shared, devices)


Held = Iterable[tuple[Request, tuple[Slot, ...]]]


def free_after(nodes: Iterable[Node], held: Held) -> dict[str, Free]:
    """What is free on each node while these are held; a negative amount is somebody's fault."""
    free = {node.name: empty(node) for node in nodes}
    for request, slots in held:
        roles = {role.name: role for role in request.roles}
        for slot in slots:
            here, role = free[slot.node], roles[slot.role]
            here.cpu -= role.cpu
            here.memory -= role.memory
            here.shared -= role.shared_memory
            if role.devices:
                here.devices[role.device] -= frozenset(slot.devices)
    return free


def fits_anywhere(nodes: Iterable[Node], held: Held, request: Request) -> bool:
    """Whether any placement at all lets the whole gang start: all of them are tried."""
    free = list(free_after(nodes, held).values())
    known = any(one.node.topology for one in free)
    ranges = [range(role.least, role.replicas + 1) for role in request.roles]
    if not any(rule(role.device).whole_when_many for role in request.roles if role.devices):
        ranges = [range(role.least, role.least + 1) for role in request.roles]  # fewer always fit better
    for counts in product(*ranges):
        replicas = [role for role, count in zip(request.roles, counts, strict=True) for _ in range(count)]
        if _place(free, request, replicas, 0, [], known):
            return True
    return False


def _place(
    free: list[Free],
    request: Request,
    replicas: list[Role],
    lowest: int,
    used: list[tuple[Free, Role]],
    known: bool,
) -> bool:
    if not replicas:
        return keeps_topology([(one.node, role) for one, role in used], request.same_switch, known)
    role, rest = replicas[0], replicas[1:]
    start = lowest if used and used[-1][1] is role else 0
    for at in range(start, len(free)):
        here = free[at]
        if not is_allowed(here.node, role, request):
            continue
        if here.cpu < role.cpu or here.memory < role.memory or here.shared < role.shared_memory:
            continue
        for chosen in _choices(here, role):
            _shift(here, role, chosen, -1)
            done = _place(free, request, rest, at, [*used, (here, role)], known)
            _shift(here, role, chosen, 1)
            if done:
                return True
    return False


def _choices(here: Free, role: Role) -> Iterator[frozenset[int]]:
    """Sets of devices that differ in how many they take of each ring."""
    if not role.devices:
        yield frozenset()
        return
    one = rule(role.device)
    if one.sizes and role.devices not in one.sizes:
        return
    devices = sorted(here.devices.get(role.device, ()))
    if not one.ring or role.devices > one.ring:
        if len(devices) >= role.devices:
            yield frozenset(devices[: role.devices])
        return
    for ring in sorted({index // one.ring for index in devices}):
        inside = [index for index in devices if index // one.ring == ring]
        if len(inside) >= role.devices:
            yield frozenset(inside[: role.devices])


def _shift(here: Free, role: Role, chosen: frozenset[int], sign: int) -> None:
    here.cpu += sign * role.cpu
    here.memory += sign * role.memory
    here.shared += sign * role.shared_memory
    if chosen:
        mine = here.devices[role.device]
        here.devices[role.device] = mine - chosen if sign < 0 else mine | chosen


def keeps_topology(used: list[tuple[Node, Role]], same_switch: bool, known: bool) -> bool:
    """One switch where that is asked for, whole nodes where the device type wants that."""
    domains = {node.topology for node, _ in used}
    if same_switch and known and (len(domains) > 1 or () in domains):
        return False
    for device in {role.device for _, role in used if role.devices}:
        whole = rule(device).whole_when_many
        counts: Counter[str] = Counter()
        for node, role in used:
            if role.devices and role.device == device:
                counts[node.name] += role.devices
        if whole and len(counts) > 1 and any(count != whole for count in counts.values()):
            return False
    return True


def amounts(request: Request, slots: tuple[Slot, ...] | None = None) -> Counter[str]:
    """What a workload uses; without places, what it must have to start."""
    total: Counter[str] = Counter()
    for role in request.roles:
        count = role.least if slots is None else sum(slot.role == role.name for slot in slots)
        total["cpu"] += role.cpu * count
        total["memory"] += role.memory * count
        if role.devices:
            total[role.device] += role.devices * count
    return Counter({resource: amount for resource, amount in total.items() if amount})


@dataclass
class Tree:
    """The quota tree as sums, made anew for every question."""

    quotas: Mapping[str, Quota]
    capacity: Mapping[str, int]
    used: dict[str, Counter[str]] = field(default_factory=dict)  # by place, with all below
    users: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)  # by place and user

    def chain(self, workspace: str) -> list[str]:
        names = [workspace]
        while names[-1] != "cluster":
            quota = self.quotas.get(names[-1])
            names.append(quota.parent if quota is not None and quota.parent else "cluster")
        return names

    def add(self, request: Request, much: Counter[str]) -> None:
        for name in self.chain(request.workspace):
            self.used.setdefault(name, Counter()).update(much)
            self.users.setdefault((name, request.user), Counter()).update(much)

    def remove(self, request: Request, much: Counter[str]) -> None:
        for name in self.chain(request.workspace):
            self.used.setdefault(name, Counter()).subtract(much)
            self.users.setdefault((name, request.user), Counter()).subtract(much)

    def nominal(self, name: str) -> Mapping[str, int]:
        return self.quotas[name].nominal if name in self.quotas else {}

    def over(self, name: str, resources: Iterable[str]) -> bool:
        """Whether a place uses more than it is guaranteed of one of these."""
        used = self.used.get(name, Counter())
        return any(used[resource] > self.nominal(name).get(resource, 0) for resource in resources)

    def broken(self) -> list[str]:
        """Every limit that is exceeded."""
        problems = []
        for name, quota in self.quotas.items():
            used = self.used.get(name, Counter())
            for resource in {*quota.nominal, *quota.borrow}:
                limit = quota.nominal.get(resource, 0)
                if name != "cluster" and resource not in quota.borrow:
                    continue
                limit += quota.borrow.get(resource, 0) if name != "cluster" else 0
                if used[resource] > limit:
                    problems.append(f"{name} uses {used[resource]} of {limit} {resource}")
        for (name, user), used in self.users.items():
            quota = self.quotas.get(name, Quota(name=name))
            for resource, limit in quota.users.get(user, quota.per_user).items():
                if used[resource] > limit:
                    problems.append(f"{user} uses {used[resource]} of {limit} {resource} in {name}")
        return problems + self._lent_too_much()

    def _lent_too_much(self) -> list[str]:
        """Whether what somebody keeps by a lending limit is used by others."""
        if not any(quota.lend for quota in self.quotas.values()):
            return []
        problems = []
        for resource, capacity in self.capacity.items():
            load = self._load("cluster", resource)
            limit = self.nominal("cluster").get(resource, capacity)
            if load > limit:
                problems.append(f"{load} of {limit} {resource} used or kept")
        return problems

    def _load(self, name: str, resource: str) -> int:
        """Used below a place, or kept there, whichever is more."""
        children = {
            one for one in {*self.used, *self.quotas} if one != "cluster" and self.chain(one)[1] == name
        }
        mine = self.used.get(name, Counter())[resource]
        direct = mine - sum(self.used.get(child, Counter())[resource] for child in children)
        return direct + sum(
            max(self._load(child, resource), self._kept(child, resource)) for child in children
        )

    def _kept(self, name: str, resource: str) -> int:
        quota = self.quotas.get(name)
        if quota is None or resource not in quota.lend:
            return 0
        return max(0, quota.nominal.get(resource, 0) - quota.lend[resource])

    def branches(self, one: str, other: str) -> tuple[str, str] | None:
        """The places below the nearest common one, towards each."""
        ours, theirs = self.chain(one), self.chain(other)
        common = next(name for name in ours if name in theirs)
        if common in {one, other}:
            return None
        return ours[ours.index(common) - 1], theirs[theirs.index(common) - 1]
