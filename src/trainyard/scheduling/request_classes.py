"""Request classes: workloads with equal needs share one, with their total needs and cached results of fit checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainyard.scheduling.cluster import Cluster, Shape, rule_of
from trainyard.scheduling.model import CPU, MEMORY, Request, Role
from trainyard.scheduling.placement import Gang, Part, Taken
from trainyard.scheduling.quota import Amounts

BILLION = 1_000_000_000  # shares are counted in billionths: sums of integers do not depend on their order


# A kind of room: device type ("" for none), pool ("" for any), whether one node is not enough.
Room = tuple[str, str, bool]


class RequestClass:
    """The needs of equal workloads, and when they were last found not to fit."""

    __slots__ = (
        "_charged",
        "delays",
        "devices",
        "failed_at",
        "failed_layout",
        "gang",
        "hopeless",
        "larger",
        "least",
        "most",
        "reserve_key",
    )

    def __init__(self, gang: Gang, least: Amounts, most: Amounts, *, is_large: bool) -> None:
        self.gang = gang
        self.least = least  # amounts of all replicas that must start
        self.most = most  # amounts of all that may
        self.devices = sum(part.shape.count * part.least for part in gang.parts)
        self.failed_at = -1  # how much of Cluster.grown had been seen when it last did not fit; -1: it may
        self.failed_layout = -1
        # Reservations that it would delay → how much of Cluster.grown had been seen then, and the layout.
        self.delays: dict[tuple[int, ...], tuple[int, int]] = {}
        first = max(gang.parts, key=lambda part: part.shape.count)
        self.reserve_key: Room = (first.shape.device, first.shape.key[0], is_large)
        self.hopeless = -1  # layout of the cluster in which it would not fit if all nodes were empty
        self._charged: tuple[Mapping[str, int], int] = ({}, 0)  # of which totals, how much
        self.larger: list[
            RequestClass
        ] = []  # which need no less of anything, on the same nodes: where it fails, they do

    def may_fit(self, cluster: Cluster) -> bool:
        """Whether anything has changed since it was seen not to fit."""
        if self.failed_at < 0 or self.failed_layout != cluster.layout:
            return True
        if self.has_grown(cluster, self.failed_at):
            return True
        self.failed_at = len(cluster.grown)  # these are no news any more
        return False

    def has_grown(self, cluster: Cluster, seen: int) -> bool:
        """Whether there may be enough for it on nodes of which one got room since `seen` of Cluster.grown."""
        news = cluster.news(seen)
        if not news:
            return False
        parts = self.gang.parts
        for part in parts:
            cluster.refresh(part.shape)
        if not any(cluster.has_room(part.shape, 1, cluster.roomy(part.shape) & news) for part in parts):
            return False
        first = parts[0]
        if len(parts) > 1 or first.least == 1:
            return True
        return cluster.has_room(first.shape, first.least, cluster.roomy(first.shape))

    def charge(self, totals: dict[str, int]) -> int:
        """What must start, as a share of these totals."""
        if self._charged[0] is not totals:
            self._charged = (totals, charge(self.least, totals))
        return self._charged[1]

    def is_within(self, left: Mapping[str, int]) -> bool:
        """Whether what must start stays within these amounts; what they do not name is not limited."""
        for resource, amount in self.least:  # noqa: SIM110  # asked of every kind in every line
            if amount > left.get(resource, amount):
                return False
        return True

    def fail(self, cluster: Cluster) -> None:
        """Remember that it does not fit as things are."""
        self.failed_at = len(cluster.grown)
        self.failed_layout = cluster.layout

    def forget(self) -> None:
        """Anything may have changed: look again."""
        self.failed_at = -1


class RequestClasses:
    """The kinds of one cluster, by what they need."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._kinds: dict[tuple[tuple[Role, ...], frozenset[str], bool], RequestClass] = {}
        self._plain: dict[object, list[RequestClass]] = {}  # which differ in amounts only
        self._shapes: dict[object, Shape] = {}
        self._meant: dict[
            tuple[Role, ...], list[tuple[str, bool]]
        ] = {}  # by those who name no type of device

    def of(self, request: Request) -> RequestClass:
        """The kind of a request."""
        key = (request.roles, request.avoid, request.same_switch)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = self._make(request)
            if is_unnamed(request.roles):
                self._meant[request.roles] = self._meaning(request.roles)
        return kind

    def mean_otherwise(self) -> bool:
        """Whether those who named no type of device mean another one than when they were first seen."""
        return any(self._meaning(roles) != meant for roles, meant in self._meant.items())

    def _meaning(self, roles: tuple[Role, ...]) -> list[tuple[str, bool]]:
        return [self.cluster.meaning(role) for role in roles]

    def forget_unnamed(self) -> None:
        """What the cluster has is not what it was: those who named no type of device may mean another one."""
        gone = {id(kind) for key, kind in self._kinds.items() if is_unnamed(key[0])}
        self._kinds = {key: kind for key, kind in self._kinds.items() if id(kind) not in gone}
        self._meant.clear()
        for alike in self._plain.values():
            alike[:] = [kind for kind in alike if id(kind) not in gone]
            for kind in alike:
                kind.larger = [one for one in kind.larger if id(one) not in gone]

    def forget(self) -> None:
        """Let anything have changed for all of them."""
        for kind in self._kinds.values():
            kind.forget()
            kind.delays.clear()

    def _make(self, request: Request) -> RequestClass:
        parts = tuple(self._part(role, request.avoid) for role in request.roles)
        least = amounts_of((part.shape, part.least) for part in parts)
        most = amounts_of((part.shape, part.most) for part in parts)
        kind = RequestClass(Gang(parts, request.same_switch), least, most, is_large=self._is_large(parts))
        self._compare(kind)
        return kind

    def _compare(self, kind: RequestClass) -> None:
        """Find the kinds that are larger and smaller, where the order of amounts says all."""
        part, rule = kind.gang.parts[0], rule_of(kind.gang.parts[0].shape.device, self.cluster.rules)
        if (
            len(kind.gang.parts) > 1
            or kind.gang.same_switch
            or rule.ring
            or rule.sizes
            or rule.whole_when_many
        ):
            return
        alike = self._plain.setdefault((part.shape.device, part.shape.key), [])
        for other in alike:
            if _is_within(kind, other):
                kind.larger.append(other)
            if _is_within(other, kind):
                other.larger.append(kind)
        alike.append(kind)

    def _is_large(self, parts: tuple[Part, ...]) -> bool:
        """Whether the devices of one node, of any there is, are too few."""
        for part in parts:
            sets = self.cluster.by_free.get(part.shape.device)
            if part.shape.count and sets and part.shape.count * part.least > len(sets) - 1:
                return True
        return False

    def _part(self, role: Role, avoid: frozenset[str]) -> Part:
        return Part(role.name, self.shape(role, avoid), role.least, role.replicas)

    def shape(self, role: Role, avoid: frozenset[str] = frozenset()) -> Shape:
        """The shape of a role's replicas."""
        device, is_chosen = self.cluster.meaning(role)
        key = (role.cpu, role.memory, role.shared_memory, device, role.devices, role.pool, role.selector, role.nodes,
               role.tolerations, avoid, is_chosen)  # fmt: skip
        shape = self._shapes.get(key)
        if shape is None:
            rule = rule_of(device, self.cluster.rules)
            shape = self._shapes[key] = Shape(role, device, rule, avoid, is_chosen=is_chosen)
        return shape


def is_unnamed(roles: Iterable[Role]) -> bool:
    """Whether some role wants devices, and leaves it open which."""
    return any(role.devices and not role.device for role in roles)


def _is_within(one: RequestClass, other: RequestClass) -> bool:
    """Whether one needs no more than the other, of anything."""
    part, its = one.gang.parts[0], other.gang.parts[0]
    shape, than = part.shape, its.shape
    return (
        part.least <= its.least
        and shape.count <= than.count
        and shape.cpu <= than.cpu
        and shape.memory <= than.memory
        and shape.shared_memory <= than.shared_memory
    )


def amounts_of(parts: Iterable[tuple[Shape, int]]) -> Amounts:
    """What replicas need together, by resource; devices come last."""
    total: dict[str, int] = {}
    devices: dict[str, int] = {}
    for shape, count in parts:
        total[CPU] = total.get(CPU, 0) + shape.cpu * count
        total[MEMORY] = total.get(MEMORY, 0) + shape.memory * count
        if shape.count:
            devices[shape.device] = devices.get(shape.device, 0) + shape.count * count
    return tuple((resource, amount) for resource, amount in (*total.items(), *devices.items()) if amount)


def taken_amounts(taken: Iterable[Taken]) -> Amounts:
    """The same of room that was taken."""
    return amounts_of((one.shape, 1) for one in taken)


def charge(amounts: Amounts, totals: dict[str, int]) -> int:
    """The largest share of any resource of the cluster, in billionths."""
    return max(
        (amount * BILLION // totals[resource] for resource, amount in amounts if totals.get(resource)),
        default=0,
    )
