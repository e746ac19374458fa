"""The free resources of all nodes, stored for a quick search: counts, masks of devices, and sets of nodes.

A set of nodes is one integer with a bit per node, so the union of sets of ten thousand nodes takes a microsecond.
placement.py chooses the best of the nodes with room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from trainyard.scheduling.model import ASCEND_910, DeviceRule, Node, NodeState, Role, Slot

PLAIN = DeviceRule()
UNLIMITED = 1 << 30
NONE_CLOSED: Mapping[str, list[int]] = MappingProxyType({})


def bits(mask: int) -> Iterator[int]:
    """The indices in a set, rising."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@lru_cache(maxsize=4096)
def indices(mask: int) -> tuple[int, ...]:
    """The devices in a mask: there are few different ones."""
    return tuple(bits(mask))


def rule_of(device: str, rules: Mapping[str, DeviceRule]) -> DeviceRule:
    """How devices of this type may be given out; Ascend 910 is known, others are free."""
    found = rules.get(device)
    if found is not None:
        return found
    name = device.lower()
    return ASCEND_910 if "910" in name or "npu" in name else PLAIN


@dataclass(frozen=True, slots=True)
class Keep:
    """The amounts that must stay free on a node for another workload."""

    cpu: int = 0
    memory: int = 0
    shared_memory: int = 0
    devices: Mapping[str, int] | None = None


NO_KEEP = Keep()


class Shape:
    """The needs of one replica, and the nodes that could hold it if they were empty. One object per distinct need."""

    __slots__ = (
        "allowed",
        "count",
        "cpu",
        "device",
        "fresh",
        "key",
        "memory",
        "possible",
        "ring",
        "shared_memory",
        "wide",
    )

    def __init__(
        self, role: Role, device: str, rule: DeviceRule, avoid: frozenset[str], *, is_chosen: bool = False
    ) -> None:
        self.cpu = role.cpu
        self.memory = role.memory
        self.shared_memory = role.shared_memory
        self.device = device if role.devices else ""
        self.count = role.devices
        self.ring = rule.ring if 1 < role.devices <= rule.ring else 0
        self.possible = not rule.sizes or not role.devices or role.devices in rule.sizes
        # Who named no type has what a node has first: on a node with several, nobody could say later which.
        first = device if is_chosen else ""
        self.key = (role.pool, role.selector, role.nodes, role.tolerations, avoid, first)
        self.allowed = 0  # set of ready nodes that the constraints allow
        self.wide = 0  # the same with nodes that are coming
        self.fresh = -1  # version of the cluster that `allowed` was made for

    def copy(self) -> Shape:
        """The same need, for another cluster."""
        other = object.__new__(Shape)
        for name in Shape.__slots__:
            setattr(other, name, getattr(self, name))
        other.fresh = -1
        return other


class Cluster:
    """The nodes' free resources. Taking more than is free is a fault of the caller and raises ValueError."""

    def __init__(self, nodes: Iterable[Node], rules: Mapping[str, DeviceRule]) -> None:
        self.rules: dict[str, DeviceRule] = dict(rules)
        self.nodes: list[Node] = []
        self.index: dict[str, int] = {}
        self.cpu: list[int] = []
        self.memory: list[int] = []
        self.shared: list[int] = []
        self.masks: dict[str, list[int]] = {}  # device type → free mask by node
        self._promised: set[str] = set()  # device types that nodes may bring which are not there yet
        self._types: set[str] = set()  # those, and all that there are now
        self.by_free: dict[str, list[int]] = {}  # device type → free count → set of nodes
        self.by_idle: list[int] = [0]  # free devices of any type → set of nodes
        self.idle: list[int] = []
        self.by_cpu: list[int] = [0] * 40  # bit length of free CPU → set of nodes
        self.ready = 0
        self.coming = 0
        self.suspect = 0
        self.present = 0
        self.layout = 0  # rises when nodes come, go or change
        self.keep: dict[int, Keep] = {}  # kept free for its owner only
        self.closed: Mapping[str, list[int]] = (
            NONE_CLOSED  # device type → devices needed → nodes that keep too many
        )
        self._news = (0, 0, 0)  # nodes that got room between two lengths of `grown`
        self._most_cpu = 0  # bit length of the CPU of the largest node
        self.grown: list[int] = []  # nodes that got room, in order: what failed before may fit now
        self.by_pool: dict[str, int] = {}
        self.by_engine: dict[str, int] = {}
        self.domains: list[dict[str, int]] = []  # level → domain → set of nodes, narrowest level first
        self.domain_of: list[list[int]] = []  # level → node → which of the level's domains, -1: none
        self._masks_by_key: dict[object, tuple[int, int]] = {}
        self._healthy: list[dict[str, int]] = []  # node → device type → mask of what may be given out
        for node in nodes:
            self._append(node)
        self._relayout()

    # -- nodes come, go and change

    def add(self, node: Node) -> int:
        """Let a node join."""
        self._append(node)
        self._relayout()
        return self.index[node.name]

    def _append(self, node: Node) -> None:
        index = len(self.nodes)
        self.nodes.append(node)
        self._healthy.append(healthy_masks(node))
        self.index[node.name] = index
        self.cpu.append(0)
        self.memory.append(0)
        self.shared.append(0)
        self.idle.append(0)
        for masks in self.masks.values():
            masks.append(0)
        self.by_idle[0] |= 1 << index
        self.by_cpu[0] |= 1 << index
        for device in node.devices:
            self._know(device)
        for sets in self.by_free.values():
            sets[0] |= 1 << index
        self._fill(index, node, 1)
        self.grown.append(index)

    def promise(self, device: str) -> None:
        """Register a device type before a node brings any."""
        self._promised.add(device)
        self._types.add(device)
        self._know(device)

    def _know(self, device: str) -> None:
        if device not in self.masks:
            self.masks[device] = [0] * len(self.nodes)
            self.by_free[device] = [(1 << len(self.nodes)) - 1]
            self.rules[device] = rule_of(device, self.rules)

    def _fill(self, index: int, node: Node, sign: int) -> None:
        """Add, or with -1 remove, all that a node brings."""
        self._shift(
            index,
            sign * (node.cpu - node.reserved_cpu),
            sign * (node.memory - node.reserved_memory),
            sign * _shared(node),
        )
        for device, mask in healthy_masks(node).items():
            free = self.masks[device][index]
            self._set_mask(device, index, free | mask if sign > 0 else free & ~mask)

    def change(self, node: Node, held: Mapping[str, int]) -> int:
        """Replace a node's description. The `held` amounts, with masks of devices by type, stay taken."""
        index = self.index[node.name]
        for device in node.devices:
            self._know(device)
        self._fill(index, self.nodes[index], -1)
        self._fill(index, node, 1)
        for device, mask in held.items():
            self._set_mask(device, index, self.masks[device][index] & ~mask)
        self.nodes[index] = node
        self._healthy[index] = healthy_masks(node)
        self.grown.append(index)
        self._relayout()
        return index

    def remove(self, name: str) -> None:
        """Remove a node. Its workloads must have ended. Its index stays empty, so that other nodes keep theirs."""
        index = self.index.pop(name)
        self._fill(index, self.nodes[index], -1)
        self.nodes[index] = Node(name="", state=NodeState.LOST)
        self._healthy[index] = {}
        self._relayout()

    def _relayout(self) -> None:
        self.layout += 1
        self._masks_by_key.clear()
        self.ready = self.coming = self.suspect = self.present = 0
        self.by_pool = {}
        self.by_engine = {}
        self._types = {*self._promised, *(device for node in self.nodes for device in node.devices)}
        self._most_cpu = max((node.cpu for node in self.nodes), default=0).bit_length()
        numbers: dict[tuple[int, str], int] = {}
        levels = max((len(node.topology) for node in self.nodes), default=0)
        self.domains = [{} for _ in range(levels)]
        self.domain_of = [[-1] * len(self.nodes) for _ in range(levels)]
        for index, node in enumerate(self.nodes):
            bit = 1 << index
            if node.name:
                self.present |= bit
            if node.state is NodeState.READY:
                self.ready |= bit
            elif node.state is NodeState.COMING:
                self.coming |= bit
            if node.suspect:
                self.suspect |= bit
            self.by_pool[node.pool] = self.by_pool.get(node.pool, 0) | bit
            if node.name:
                self.by_engine[node.engine] = self.by_engine.get(node.engine, 0) | bit
            for level in range(len(node.topology)):
                # NB: the path, not the last word: two rows may both have a switch-1.
                path = "/".join(node.topology[: len(node.topology) - level])
                domains = self.domains[level]
                domains[path] = domains.get(path, 0) | bit
                numbers.setdefault((level, path), len(domains) - 1)
                self.domain_of[level][index] = numbers[level, path]

    # -- amounts

    def _shift(self, index: int, cpu: int, memory: int, shared: int) -> None:
        before = self.cpu[index]
        after = before + cpu
        self.cpu[index] = after
        self.memory[index] += memory
        self.shared[index] += shared
        old = before.bit_length() if before > 0 else 0
        new = after.bit_length() if after > 0 else 0
        if old != new:
            bit = 1 << index
            self.by_cpu[old] &= ~bit
            self.by_cpu[new] |= bit

    def _set_mask(self, device: str, index: int, mask: int) -> None:
        masks = self.masks[device]
        old, new = masks[index].bit_count(), mask.bit_count()
        masks[index] = mask
        if old == new:
            return
        bit = 1 << index
        sets = self.by_free[device]
        while len(sets) <= new:
            sets.append(0)
        sets[old] &= ~bit
        sets[new] |= bit
        idle = self.idle[index]
        self.idle[index] = idle + new - old
        while len(self.by_idle) <= idle + new - old:
            self.by_idle.append(0)
        self.by_idle[idle] &= ~bit
        self.by_idle[idle + new - old] |= bit

    def take(self, index: int, shape: Shape, devices: int) -> None:
        """Give a replica its resources; `devices` is a mask."""
        if devices:
            self._know(shape.device)  # what is held of a node may be what it does not have any more
            free = self.masks[shape.device][index]
            if free & devices != devices:  # what went bad while it was held is not among the free ones
                devices &= self._healthy[index].get(shape.device, 0)
            if free & devices != devices:
                raise ValueError(f"devices {devices:b} of {self.nodes[index].name} are not free")
            self._set_mask(shape.device, index, free & ~devices)
        self._shift(index, -shape.cpu, -shape.memory, -shape.shared_memory)

    def give(self, index: int, shape: Shape, devices: int) -> None:
        """Take a replica's resources back."""
        if devices:
            healthy = self._healthy[index].get(shape.device, 0)
            self._set_mask(shape.device, index, self.masks[shape.device][index] | (devices & healthy))
        self._shift(index, shape.cpu, shape.memory, shape.shared_memory)

    # -- room

    def meaning(self, role: Role) -> tuple[str, bool]:
        """The device type a role means, and whether it was chosen among several because it names none."""
        if role.device or not role.devices:
            return role.device, False
        if len(self._types) > 1:
            return self._choose(role), True
        return next(iter(self._types), ""), False

    def _choose(self, role: Role) -> str:
        """Of the types on nodes that a role may have, the one that there is most of; empty where none is enough."""
        found: dict[str, int] = {}
        for node in self.nodes:
            first = first_device(node)
            count = node.devices.get(first, 0)
            if (
                count >= role.devices
                and role.pool in {"", node.pool}
                and (not role.nodes or node.name in role.nodes)
                and carries(node, role.selector)
                and tolerates(node, role.tolerations)
                and rule_of(first, self.rules).gives(role.devices, role.least)
            ):
                found[first] = found.get(first, 0) + count
        return min(found, key=lambda name: (-found[name], name), default="")

    def refresh(self, shape: Shape) -> None:
        """Bring the shape's sets of allowed nodes up to date."""
        if shape.fresh == self.layout:
            return
        found = self._masks_by_key.get(shape.key)
        if found is None:
            found = self._masks_by_key[shape.key] = self._allowed(shape)
        shape.allowed, shape.wide = found if shape.possible else (0, 0)
        shape.fresh = self.layout

    def _allowed(self, shape: Shape) -> tuple[int, int]:
        pool, selector, names, tolerations, avoid, first = shape.key
        allowed = self.by_pool.get(pool, 0) if pool else self.present
        if names:
            allowed &= sum(1 << self.index[name] for name in names if name in self.index)
        for name in avoid:
            if name in self.index:
                allowed &= ~(1 << self.index[name])
        for index in bits(allowed):
            node = self.nodes[index]
            is_open = carries(node, selector) and tolerates(node, tolerations)
            if not is_open or (first and first_device(node) != first):
                allowed &= ~(1 << index)
        return allowed & self.ready, allowed & (self.ready | self.coming)

    def candidates(self, shape: Shape, within: int) -> int:
        """Nodes of `within` that may have room: those with enough CPU, about, that do not keep all for others."""
        need = shape.cpu.bit_length()
        if need > 1:
            roomy = 0
            for nodes in self.by_cpu[need : self._most_cpu + 1]:
                roomy |= nodes
            within &= roomy
        if self.closed and shape.count:
            sets = self.closed.get(shape.device)
            if sets is not None and shape.count < len(sets):
                within &= ~sets[shape.count]
        return within

    def closed_by(self, keep: Mapping[int, Keep]) -> dict[str, list[int]]:
        """Device type → devices that a replica needs → nodes on which too many must stay free; true while room shrinks."""
        closed: dict[str, list[int]] = {}
        for node, one in keep.items():
            for device, held in (one.devices or {}).items():
                sets = closed.get(device)
                if sets is None:
                    sets = closed[device] = [0] * (len(self.by_free[device]) + 1)
                left = self.masks[device][node].bit_count() - held
                sets[left + 1 if left > 0 else 1] |= 1 << node
        for sets in closed.values():
            for need in range(2, len(sets)):
                sets[need] |= sets[need - 1]
        return closed

    def free_devices(self, device: str) -> int:
        """How many devices of a type are free on nodes that take work."""
        sets = self.by_free.get(device, ())
        return sum(count * (nodes & self.ready).bit_count() for count, nodes in enumerate(sets))

    def roomy(self, shape: Shape, *, with_closed: bool = False) -> int:
        """The allowed nodes that may have room for one replica now; or would, if nothing were kept for others."""
        nodes = shape.allowed if with_closed else self.candidates(shape, shape.allowed)
        if shape.count:
            enough = 0
            for at in self.by_free.get(shape.device, [])[shape.count :]:
                enough |= at
            nodes &= enough
        return nodes

    def news(self, seen: int) -> int:
        """The nodes that got room since so many had."""
        length = len(self.grown)
        if (seen, length) != self._news[:2]:
            nodes = 0
            for index in set(self.grown[seen:]):
                nodes |= 1 << index
            self._news = (seen, length, nodes)
        return self._news[2]

    def has_room(self, shape: Shape, count: int, nodes: int) -> bool:
        """Whether so many replicas have room on these nodes, CPU, memory and what is kept for others counted."""
        sets = self.by_free.get(shape.device, ())[: shape.count - 1 : -1] if shape.count else (nodes,)
        for at in sets:
            here = at & nodes
            while here:
                low = here & -here
                count -= self.fits(low.bit_length() - 1, shape)
                if count <= 0:
                    return True
                here ^= low
        return count <= 0

    def fits(self, index: int, shape: Shape) -> int:
        """How many replicas of this shape the node has room for, after what is kept for others."""
        # NB: the hottest lines of all: neither calls nor comparisons of what is not asked for.
        keep = self.keep.get(index, NO_KEEP) if self.keep else NO_KEEP
        count = UNLIMITED
        if shape.count:
            masks = self.masks.get(shape.device)
            if masks is None:
                return 0
            held = keep.devices.get(shape.device, 0) if keep.devices else 0
            if shape.ring:
                count = room(masks[index], shape, held)
            else:
                count = (masks[index].bit_count() - held) // shape.count
            if count <= 0:
                return 0
        if shape.cpu:
            here = (self.cpu[index] - keep.cpu) // shape.cpu
            if here < count:  # noqa: PLR1730  # a call more
                count = here
        if shape.memory:
            here = (self.memory[index] - keep.memory) // shape.memory
            if here < count:  # noqa: PLR1730  # a call more
                count = here
        if shape.shared_memory:
            here = (self.shared[index] - keep.shared_memory) // shape.shared_memory
            if here < count:  # noqa: PLR1730  # a call more
                count = here
        return count if count > 0 else 0  # noqa: FURB136  # likewise

    def pick(self, index: int, shape: Shape) -> int:
        """A mask of devices for one replica: the fullest ring that has enough, the lowest indices in it."""
        if not shape.count:
            return 0
        free = self.masks[shape.device][index]
        ring = shape.ring or (self.rules[shape.device].ring if shape.count == 1 else 0)
        if ring:
            best, least = 0, UNLIMITED
            for part in rings(free, ring):
                if shape.count <= part.bit_count() < least:
                    best, least = part, part.bit_count()
            free = best
        if free.bit_count() == shape.count:
            return free
        chosen = 0
        for _ in range(shape.count):
            low = free & -free
            chosen |= low
            free ^= low
        return chosen

    def totals(self) -> dict[str, int]:
        """What all nodes that take or will take work have in all, by resource."""
        total: dict[str, int] = {}
        for node in self.nodes:
            if node.name and node.state is not NodeState.LOST:
                add_node(total, node)
        return total


def add_node(total: dict[str, int], node: Node, times: int = 1) -> None:
    """Add what a node brings to a sum by resource."""
    total["cpu"] = total.get("cpu", 0) + times * (node.cpu - node.reserved_cpu)
    total["memory"] = total.get("memory", 0) + times * (node.memory - node.reserved_memory)
    for device, mask in healthy_masks(node).items():
        total[device] = total.get(device, 0) + times * mask.bit_count()


def room(free: int, shape: Shape, held: int) -> int:
    """How many replicas the free devices of one node have room for, `held` devices staying free."""
    if not shape.ring:
        return (free.bit_count() - held) // shape.count
    by_rings = sum(part.bit_count() // shape.count for part in rings(free, shape.ring))
    return min(by_rings, (free.bit_count() - held) // shape.count) if held else by_rings


def replicas(shape: Shape, cpu: int, memory: int, shared: int, free: int) -> int:
    """How many replicas these amounts of one node have room for."""
    count = room(free, shape, 0) if shape.count else UNLIMITED
    if shape.cpu and cpu < count * shape.cpu:
        count = cpu // shape.cpu
    if shape.memory and memory < count * shape.memory:
        count = memory // shape.memory
    if shape.shared_memory and shared < count * shape.shared_memory:
        count = shared // shape.shared_memory
    return max(0, count)


def rings(free: int, size: int) -> Iterator[int]:
    """The free devices of each ring."""
    ring = (1 << size) - 1
    while free >> (ring.bit_length() - size):
        yield free & ring
        ring <<= size


def healthy_masks(node: Node) -> dict[str, int]:
    """Device type → mask of the devices that may be given out."""
    masks = {}
    for device, count in node.devices.items():
        mask = (1 << count) - 1
        for index in node.unhealthy.get(device, ()):
            mask &= ~(1 << index)
        masks[device] = mask
    return masks


def first_device(node: Node) -> str:
    """The type of a node's devices, for who names none; of several, the first."""
    return next(iter(node.devices), "")


def carries(node: Node, selector: Iterable[tuple[str, str]]) -> bool:
    """Whether the node has all of these labels."""
    return all(node.labels.get(key) == value for key, value in selector)


def tolerates(node: Node, tolerations: tuple[object, ...]) -> bool:
    """Whether work with these tolerations may go to the node."""
    return all(
        any(
            getattr(given, "key", None) == taint.key and getattr(given, "value", None) in {"", taint.value}
            for given in tolerations
        )
        for taint in node.taints
    )


def slot_mask(slot: Slot) -> int:
    """The devices of a slot as a mask."""
    return sum(1 << index for index in slot.devices)


def _shared(node: Node) -> int:
    return node.memory if node.shared_memory is None else node.shared_memory
