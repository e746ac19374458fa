"""A pool and one machine of it as they are stored, and what a machine has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

HOUR = 3600.0


class Stage(StrEnum):
    """Where a machine of a pool is. Only the leader writes it."""

    WANTED = "wanted"  # decided, and perhaps bought: its name is known before the provider hears it
    JOINING = "joining"  # bought; it boots, and its node is not ready yet
    JOINED = "joined"
    DRAINING = "draining"  # nothing new goes there; it is released when nothing runs there
    RELEASING = "releasing"
    RELEASED = "released"  # kept for the bill


LIVE = frozenset(Stage) - {Stage.RELEASED}
COMING = frozenset({Stage.WANTED, Stage.JOINING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a machine of one type gives to tasks. CPU is in thousandths of a core."""

    cpu: int
    memory_mib: int
    devices: Mapping[str, int] = field(default_factory=dict)
    price: float = 0.0  # of an hour
    runs_images: bool = True  # as long as no node has shown that it cannot
    is_seen: bool = False  # a node has told it; before that, the provider's catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """One row of pools."""

    name: str
    backend: str
    types: tuple[str, ...]
    most: int
    created_at: float
    zones: tuple[str, ...] = ()  # in this order; none: wherever there is stock
    is_spot: bool = False
    price_limit: float | None = None
    least: int = 0
    idle_seconds: int = 600
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    currency: str = ""
    message: str = ""
    reason: str = ""  # the code of the message
    facts: Mapping[str, Any] | None = None  # what its sentence names
    failures: int = 0
    retry_at: float | None = None
    is_active: bool = True
    version: int = 1

    @property
    def usable_types(self) -> tuple[str, ...]:
        """Those that can stand for each other: with the devices of the first whose figures are known."""
        known = [name for name in self.types if name in self.shapes]
        return tuple(name for name in known if _same_devices(self.shapes[name], self.shapes[known[0]]))

    @property
    def shape(self) -> Shape | None:
        """What any machine of the pool will have at least; None: not found out yet."""
        found = [self.shapes[name] for name in self.usable_types]
        if not found:
            return None
        kinds = found[0].devices
        return Shape(
            cpu=min(one.cpu for one in found),
            memory_mib=min(one.memory_mib for one in found),
            devices={kind: min(one.devices[kind] for one in found) for kind in kinds},
            price=found[0].price,
            runs_images=all(one.runs_images for one in found),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """One row of pool_machines."""

    name: str
    pool: str
    backend: str
    wanted_at: float
    state: str = Stage.WANTED
    machine_id: str = ""
    machine_type: str = ""
    zone: str = ""
    is_spot: bool = False
    is_whole: bool = False  # a gang waits for all of the order: all of it, or none
    price: float = 0.0  # of an hour, when it was bought
    rates: tuple[tuple[float, float], ...] = ()  # where the price has changed: since when, what
    currency: str = ""
    cost: float = 0.0  # in all, once it is released
    costed_at: float | None = None  # since when it costs; None: it was not bought
    joined_at: float | None = None  # when its node was ready first
    idle_since: float | None = None
    message: str = ""
    for_jobs: tuple[str, ...] = ()  # some of those that waited when it was decided on
    worked_at: float | None = None  # when the first job had a place there
    released_at: float | None = None
    version: int = 1

    @property
    def order(self) -> str:
        """What was bought together has one order: gpu-k3x9-0 and gpu-k3x9-1 have gpu-k3x9."""
        return self.name.rpartition("-")[0]

    @property
    def number(self) -> int:
        """Its place in the order."""
        return int(self.name.rpartition("-")[2])

    @property
    def price_now(self) -> float:
        """Of an hour, as far as is known."""
        return self.rates[-1][1] if self.rates else self.price

    def stretches(self, now: float) -> list[tuple[float, float, float]]:
        """From when to when it has cost what an hour, until now or its release."""
        if self.costed_at is None:
            return []
        end = now if self.released_at is None else self.released_at
        points = [(self.costed_at, self.price), *self.rates]
        ends = [*(since for since, _price in points[1:]), end]
        cut = [
            (max(begin, self.costed_at), min(until, end), price)
            for (begin, price), until in zip(points, ends, strict=True)
        ]
        return [(begin, until, price) for begin, until, price in cut if begin < until]

    def cost_at(self, now: float) -> float:
        """What it has cost by then."""
        if self.state == Stage.RELEASED:
            return self.cost
        return sum(price * (end - begin) / HOUR for begin, end, price in self.stretches(now))

    def released(self, now: float, message: str) -> MachineRecord:
        """The same, given back now, with its cost written down."""
        return replace(self, cost=self.cost_at(now), state=Stage.RELEASED, released_at=now, message=message)


def _same_devices(one: Shape, other: Shape) -> bool:
    return one.devices.keys() == other.devices.keys()
