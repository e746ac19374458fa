"""Places a gang on the fewest nodes, under one switch if possible, and keeps whole nodes free.

`place` takes the room from the cluster, all of it or nothing. scheduler.py decides whether a workload may start at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trainyard.scheduling.cluster import Cluster, Shape, bits, indices
from trainyard.scheduling.model import Slot, Spread

SEARCH_STEPS = 4000  # of the exact search for gangs of several shapes: milliseconds at most


@dataclass(frozen=True, slots=True)
class Part:
    """One role of a gang, resolved against a cluster."""

    role: str
    shape: Shape
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Gang:
    """The facts that decide where a workload fits. Workloads with equal needs share one object."""

    parts: tuple[Part, ...]
    same_switch: bool = False


@dataclass(slots=True)
class Taken:
    """One replica's room, taken from the cluster."""

    role: str
    shape: Shape
    node: int
    devices: int

    def slot(self, cluster: Cluster) -> Slot:
        """Return the slot for people."""
        return Slot(self.role, cluster.nodes[self.node].name, indices(self.devices))


def release(cluster: Cluster, taken: list[Taken]) -> None:
    """Give all of it back."""
    for one in taken:
        cluster.give(one.node, one.shape, one.devices)


def retake(cluster: Cluster, taken: list[Taken]) -> None:
    """Take exactly the same again."""
    for one in taken:
        cluster.take(one.node, one.shape, one.devices)


def place(
    cluster: Cluster, gang: Gang, spreads: Mapping[str, Spread], *, wide: bool = False
) -> list[Taken] | None:
    """Find and take room for the whole gang. If there is not enough, take nothing and return None."""
    if len(cluster.by_engine) > 1 and sum(part.most for part in gang.parts) > 1:
        return _place_on_one_engine(cluster, gang, spreads, wide=wide)
    return _place(cluster, gang, spreads, wide=wide)


def _place_on_one_engine(
    cluster: Cluster, gang: Gang, spreads: Mapping[str, Spread], *, wide: bool
) -> list[Taken] | None:
    """On the engine that has room for most replicas; of several, the first by name."""
    shapes = {id(part.shape): part.shape for part in gang.parts}.values()
    best: list[Taken] | None = None
    for _, nodes in sorted(cluster.by_engine.items()):
        for shape in shapes:
            cluster.refresh(shape)
        kept = [(shape, shape.allowed, shape.wide) for shape in shapes]
        for shape in shapes:
            shape.allowed &= nodes
            shape.wide &= nodes
        found = _place(cluster, gang, spreads, wide=wide)
        for shape, allowed, coming in kept:
            shape.allowed, shape.wide = allowed, coming
        if found is not None:
            release(cluster, found)
            if best is None or len(found) > len(best):
                best = found
    if best is not None:
        retake(cluster, best)
    return best


def _place(cluster: Cluster, gang: Gang, spreads: Mapping[str, Spread], *, wide: bool) -> list[Taken] | None:
    first = gang.parts[0]
    if (
        first.most == first.least == 1
        and len(gang.parts) == len(cluster.by_pool) == 1
        and not (wide or spreads or gang.same_switch)
    ):
        rule = cluster.rules.get(first.shape.device)
        if rule is None or not rule.whole_when_many:
            return _place_one(cluster, first)
    for part in gang.parts:
        cluster.refresh(part.shape)
    finder = _Finder(cluster, gang, spreads, wide)
    if len(gang.parts) == 1:
        return finder.place_all(gang.parts) if gang.same_switch else finder.place_part(gang.parts[0], -1, 0)
    # The largest replicas first: they have the fewest places.
    ordered = sorted(gang.parts, key=lambda part: (-part.shape.count, -part.shape.cpu, -part.shape.memory))
    found = finder.place_all(tuple(ordered))
    if found is not None and not finder.is_whole(found):
        release(cluster, found)
        found = None
    return finder.search(tuple(ordered)) if found is None else found


def _place_one(cluster: Cluster, part: Part) -> list[Taken] | None:
    """The commonest of all, without detours: one replica on the fullest node, on those that failed lately last."""
    shape = part.shape
    cluster.refresh(shape)
    nodes = cluster.candidates(shape, shape.allowed)
    sets = cluster.by_free.get(shape.device, [])[shape.count :] if shape.count else cluster.by_idle
    for within in (nodes & ~cluster.suspect, nodes & cluster.suspect):
        for at in sets:
            here = at & within
            while here:
                low = here & -here
                node = low.bit_length() - 1
                if cluster.fits(node, shape):
                    devices = cluster.pick(node, shape)
                    cluster.take(node, shape, devices)
                    return [Taken(part.role, shape, node, devices)]
                here ^= low
    return None


def would_fit(cluster: Cluster, gang: Gang, spreads: Mapping[str, Spread]) -> bool:
    """Whether `place` would find room; nothing stays taken."""
    part = gang.parts[0]
    rule = cluster.rules.get(part.shape.device)
    is_plain = len(gang.parts) == 1 and (part.most == 1 or len(cluster.by_engine) <= 1)
    if is_plain and not gang.same_switch and not (rule and rule.whole_when_many):
        cluster.refresh(part.shape)
        return cluster.has_room(part.shape, part.least, cluster.candidates(part.shape, part.shape.allowed))
    taken = place(cluster, gang, spreads)
    if taken is None:
        return False
    release(cluster, taken)
    return True


def least_of(gang: Gang) -> Gang:
    """The same gang with no more replicas than must start."""
    if all(part.least == part.most for part in gang.parts):
        return gang
    return Gang(
        tuple(Part(part.role, part.shape, part.least, part.least) for part in gang.parts), gang.same_switch
    )


class _Finder:
    """One attempt to place one gang."""

    def __init__(self, cluster: Cluster, gang: Gang, spreads: Mapping[str, Spread], wide: bool) -> None:
        self.cluster = cluster
        self.gang = gang
        self.spreads = spreads
        self.wide = wide

    def place_all(self, parts: tuple[Part, ...]) -> list[Taken] | None:
        """Place role after role; the later ones near the earlier ones."""
        if self.gang.same_switch and self.cluster.domains:
            return self._under_one_switch(parts)
        return self._in(parts, -1)

    def _under_one_switch(self, parts: tuple[Part, ...]) -> list[Taken] | None:
        domains = self.cluster.domains[0]
        for name in sorted(domains, key=lambda key: (self._bound(parts[0].shape, domains[key]), key)):
            found = self._in(parts, domains[name])
            if found is not None:
                return found
        return None

    def _in(self, parts: tuple[Part, ...], within: int) -> list[Taken] | None:
        taken: list[Taken] = []
        near = 0
        for part in parts:
            found = self.place_part(part, within, near)
            if found is None:
                release(self.cluster, taken)
                return None
            taken += found
            if len(parts) > 1:
                near = self._near(taken)
        return taken

    def _near(self, taken: list[Taken]) -> int:
        nodes = 0
        for one in taken:
            nodes |= 1 << one.node
        for domain in self.cluster.domains[0].values() if self.cluster.domains else ():
            if domain & nodes:
                nodes |= domain
        return nodes

    def place_part(self, part: Part, within: int, near: int) -> list[Taken] | None:
        """One role, on nodes of `within`, if it can be on those of `near`."""
        shape = part.shape
        allowed = (shape.wide if self.wide else shape.allowed) & within
        rule = self.cluster.rules.get(shape.device)
        if rule is not None and rule.whole_when_many and part.most * shape.count > 0:
            return self._whole(part, allowed, rule.whole_when_many)
        allowed = self.cluster.candidates(shape, allowed)
        if part.most == part.least == 1 and not near and len(self.cluster.by_pool) == 1:
            return self._one(part, allowed)
        bound = self._bound(shape, allowed)
        if bound < part.least or (part.least > 1 and not self.cluster.has_room(shape, part.least, allowed)):
            return None
        count = min(part.most, bound)
        for nodes in self._preferences(allowed, near):
            if nodes == allowed or self._bound(shape, nodes) >= count:
                found = self._count(part, count, nodes)
                if found is not None:
                    return found
        if part.least < part.most:
            return self._at_least(part, allowed)
        return None

    def _one(self, part: Part, allowed: int) -> list[Taken] | None:
        """The commonest of all: one replica, on nodes that failed lately last."""
        healthy = allowed & ~self.cluster.suspect
        node = self._one_node(part.shape, 1, healthy)
        if node is None and healthy != allowed:
            node = self._one_node(part.shape, 1, allowed)
        return None if node is None else self._take(part, node, 1)

    def _preferences(self, allowed: int, near: int) -> Iterator[int]:
        """Sets to try in turn: near the rest of the gang, one pool, all; nodes that failed lately last."""
        healthy = allowed & ~self.cluster.suspect
        seen = {0}
        sets = [healthy & near] if near else []
        if len(self.cluster.by_pool) > 1:
            sets += [healthy & nodes for nodes in self.cluster.by_pool.values()]
        for nodes in (*sets, healthy, allowed):
            if nodes not in seen:
                seen.add(nodes)
                yield nodes

    def _bound(self, shape: Shape, nodes: int) -> int:
        """At most so many replicas have room on these nodes, as far as devices go."""
        need = shape.count
        if not need:
            return 1 << 30 if nodes else 0
        total = 0
        for free, at in enumerate(self.cluster.by_free.get(shape.device, ())):
            if free >= need and at:
                total += (at & nodes).bit_count() * (free // need)
        return total

    def _count(self, part: Part, count: int, nodes: int) -> list[Taken] | None:
        """Exactly `count` replicas on these nodes."""
        if part.most > 1 and self._is_spread(nodes):
            return self._evenly(part, count, nodes)
        one = self._one_node(part.shape, count, nodes)
        if one is not None:
            return self._take(part, one, count)
        if count == 1:
            return None
        if not part.shape.count or not self.cluster.domains:
            return self._fewest(part, count, nodes)
        bounds: dict[int, int] = {}
        for level, domains in enumerate(self.cluster.domains):
            bounds = self._bounds(part.shape, level, nodes)
            enough = sorted((bound, at) for at, bound in bounds.items() if bound >= count and at >= 0)
            if enough:
                sets = list(domains.values())
                for _, at in enough:
                    found = self._fewest(part, count, sets[at] & nodes)
                    if found is not None:
                        return found
        return self._over_domains(part, count, bounds, nodes)

    def _bounds(self, shape: Shape, level: int, nodes: int) -> dict[int, int]:
        """The same bound for each domain of a level that has room at all; -1 are the nodes that are in none."""
        domain_of, domains = self.cluster.domain_of[level], self.cluster.domains[level]
        bounds: dict[int, int] = {}
        rest = nodes & ~_union(domains.values()) if -1 in domain_of else 0
        for free, at in enumerate(self.cluster.by_free.get(shape.device, ())):
            each = free // shape.count
            here = at & nodes if each else 0
            if here.bit_count() <= len(domains):
                for index in bits(here):
                    domain = domain_of[index]
                    bounds[domain] = bounds.get(domain, 0) + each
            else:
                for domain, members in enumerate((rest, *domains.values()), -1):
                    count = (members & here).bit_count()
                    if count:
                        bounds[domain] = bounds.get(domain, 0) + each * count
        return bounds

    def _one_node(self, shape: Shape, times: int, nodes: int) -> int | None:
        """The fullest node with room for `times` replicas."""
        if shape.count:
            sets = self.cluster.by_free.get(shape.device, [])[shape.count * times :]
        else:
            sets = self.cluster.by_idle  # work without devices goes where devices are taken already
        if self._is_spread(nodes):
            sets = sets[::-1]
        fits = self.cluster.fits
        for at in sets:
            here = at & nodes
            while here:
                low = here & -here
                index = low.bit_length() - 1
                if fits(index, shape) >= times:
                    return index
                here ^= low
        return None

    def _is_spread(self, nodes: int) -> bool:
        if not self.spreads:
            return False
        return any(
            spread is Spread.SPREAD and self.cluster.by_pool.get(pool, 0) & nodes
            for pool, spread in self.spreads.items()
        )

    def _take(self, part: Part, node: int, count: int) -> list[Taken]:
        taken = []
        for _ in range(count):
            devices = self.cluster.pick(node, part.shape)
            self.cluster.take(node, part.shape, devices)
            taken.append(Taken(part.role, part.shape, node, devices))
        return taken

    def _fewest(self, part: Part, count: int, nodes: int) -> list[Taken] | None:
        """The roomiest nodes first, and the fullest that is enough for the rest."""
        taken, left = self._greedy(part, count, nodes)
        if left:
            release(self.cluster, taken)
            return None
        return taken

    def _at_least(self, part: Part, nodes: int) -> list[Taken] | None:
        """As many replicas as there is room for, if that is enough to start."""
        taken, left = self._greedy(part, part.most, nodes)
        if part.most - left >= part.least:
            return taken
        release(self.cluster, taken)
        return None

    def _greedy(self, part: Part, count: int, nodes: int) -> tuple[list[Taken], int]:
        shape = part.shape
        taken: list[Taken] = []
        left = count
        if shape.count:
            sets = self.cluster.by_free.get(shape.device, [])[: shape.count - 1 : -1]
        else:
            sets = self.cluster.by_cpu[::-1]
        for at in list(sets):  # as it was: taking moves nodes between the sets
            for index in bits(at & nodes):
                here = self.cluster.fits(index, shape)
                if here >= left:
                    last = self._one_node(shape, left, nodes)
                    taken += self._take(part, index if last is None else last, left)
                    return taken, 0
                if here:
                    taken += self._take(part, index, here)
                    left -= here
        return taken, left

    def _over_domains(
        self, part: Part, count: int, bounds: Mapping[int, int], nodes: int
    ) -> list[Taken] | None:
        """Over the fewest of the widest domains: the smallest that is enough for the rest, else the roomiest."""
        sets = list(self.cluster.domains[-1].values())
        # That level may leave nodes out that have a shorter path, or none: they come last.
        sets.append(nodes & ~_union(sets))
        taken: list[Taken] = []
        left = count
        rest = {at % len(sets): bound for at, bound in bounds.items()}
        while left and rest:
            enough = [(bound, at) for at, bound in rest.items() if bound >= left]
            at = min(enough)[1] if enough else max(rest, key=lambda at: (rest[at], -at))
            del rest[at]
            found, left = self._greedy(part, left, sets[at] & nodes)
            taken += found
        if left:
            release(self.cluster, taken)
            return None
        return taken

    def _evenly(self, part: Part, count: int, nodes: int) -> list[Taken] | None:
        """One replica a node, the emptiest first; then a second round."""
        taken: list[Taken] = []
        fresh = nodes
        while len(taken) < count:
            index = self._one_node(part.shape, 1, fresh)
            if index is None:
                if fresh == nodes:
                    release(self.cluster, taken)
                    return None
                fresh = nodes
                continue
            taken += self._take(part, index, 1)
            fresh &= ~(1 << index)
        return taken

    def _whole(self, part: Part, allowed: int, whole: int) -> list[Taken] | None:
        """On one node, or on several of which the gang takes all devices of each."""
        shape = part.shape
        near = self.cluster.candidates(shape, allowed)
        for within in dict.fromkeys((near & ~self.cluster.suspect, near)):
            nodes, each = self._whole_nodes(shape, within, whole)
            many = min(part.most // each, len(nodes)) * each
            for count in range(part.most, max(part.least, many + 1) - 1, -1):
                one = self._one_node(shape, count, within)
                if one is not None:
                    return self._take(part, one, count)
            if many >= part.least:
                taken: list[Taken] = []
                for index in self._together(nodes, many // each):
                    taken += self._take(part, index, each)
                return taken
        return None

    def _whole_nodes(self, shape: Shape, within: int, whole: int) -> tuple[list[int], int]:
        """The nodes of which the gang can have all devices, and with how many replicas on each."""
        each = whole // shape.count
        if not each or whole % shape.count:
            return [], 1
        masks = self.cluster.masks.get(shape.device, [])
        found = [
            index
            for index in bits(within)
            if masks[index].bit_count() == whole and self.cluster.fits(index, shape) >= each
        ]
        return found, each

    def is_whole(self, taken: list[Taken]) -> bool:
        """Whether all roles together keep the rule of whole nodes where the gang is on several."""
        used: dict[str, dict[int, int]] = {}
        for one in taken:
            if one.shape.count:
                nodes = used.setdefault(one.shape.device, {})
                nodes[one.node] = nodes.get(one.node, 0) + one.shape.count
        for device, nodes in used.items():
            whole = self.cluster.rules[device].whole_when_many
            if whole and len(nodes) > 1 and any(count != whole for count in nodes.values()):
                return False
        return True

    def _together(self, nodes: list[int], count: int) -> list[int]:
        """`count` of the nodes, under as few switches as possible."""
        left = set(nodes)
        chosen: list[int] = []
        groups = list(self.cluster.domains[0].values()) if self.cluster.domains else []
        while groups and len(chosen) < count:
            sized = [(sum(1 for index in left if domain >> index & 1), domain) for domain in groups]
            need = count - len(chosen)
            enough = [pair for pair in sized if pair[0] >= need]
            size, domain = min(enough) if enough else max(sized)
            if not size:
                break
            mine = sorted(index for index in left if domain >> index & 1)[:need]
            chosen += mine
            left -= set(mine)
        return (chosen + sorted(left))[:count]

    def search(self, parts: tuple[Part, ...]) -> list[Taken] | None:
        """An exact search, bounded: greedy placing of several shapes can miss a fit."""
        replicas = [part for part in parts for _ in range(part.least)]
        if any(
            self._bound(part.shape, part.shape.wide if self.wide else part.shape.allowed) < part.least
            for part in parts
        ):
            return None
        self._steps = SEARCH_STEPS
        taken: list[Taken] = []
        return taken if self._search(replicas, 0, 0, taken) else None

    def _search(self, replicas: list[Part], at: int, lowest: int, taken: list[Taken]) -> bool:
        if at == len(replicas):
            return self.is_whole(taken) and (
                not self.gang.same_switch or not self.cluster.domains or self._is_one_switch(taken)
            )
        part = replicas[at]
        # Equal replicas are placed in rising order of nodes: their permutations are one solution.
        start = lowest if at and replicas[at - 1] is part else 0
        nodes = (part.shape.wide if self.wide else part.shape.allowed) >> start << start
        for index in bits(nodes):
            self._steps -= 1
            if self._steps < 0:
                return False
            if self.cluster.fits(index, part.shape):
                taken += self._take(part, index, 1)
                if self._search(replicas, at + 1, index, taken):
                    return True
                release(self.cluster, [taken.pop()])
        return False

    def _is_one_switch(self, taken: list[Taken]) -> bool:
        nodes = 0
        for one in taken:
            nodes |= 1 << one.node
        return any(domain & nodes == nodes for domain in self.cluster.domains[0].values())


def _union(sets: Iterable[int]) -> int:
    union = 0
    for nodes in sets:
        union |= nodes
    return union
