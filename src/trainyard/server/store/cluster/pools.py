"""Pools of machines that are bought when the queue needs them, and their machines, those released long ago too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from trainyard.lib.errors import NotFoundError
from trainyard.server.store.tables import pool_machines, pools
from trainyard.server.store.versioned_rows import insert_named, picked, save_named, versioned_update

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


_NAMES = tuple(one.name for one in fields(PoolRecord))
# What the leader writes; the rest is people's, and neither makes the other's write stale.
_LEARNT = ("shapes", "currency", "message", "failures", "retry_at")
_WISHED = tuple(
    name for name in _NAMES if name not in {"name", "created_at", "version", "shapes", "currency"}
)
_UPDATE = versioned_update(pools, "name", _WISHED)
_MACHINE_NAMES = tuple(one.name for one in fields(MachineRecord))


def insert_pool(connection: Connection, record: PoolRecord) -> None:
    """Write a new pool; ConflictError where the name is taken."""
    hint = "Choose another name, or change it with `trainyard pools set`."
    insert_named(connection, pools, _values(record, _NAMES), what="pool", hint=hint)


def load(connection: Connection, name: str) -> PoolRecord:
    """The pool of this name, or NotFoundError."""
    row = connection.execute(select(pools).where(pools.c.name == name)).first()
    if row is None:
        raise NotFoundError(f"There is no pool {name!r}.", hint="See `trainyard pools` for those there are.")
    return _record(row)


def list_pools(connection: Connection) -> list[PoolRecord]:
    """All pools by name."""
    return [_record(row) for row in connection.execute(select(pools).order_by(pools.c.name))]


def save(connection: Connection, record: PoolRecord) -> PoolRecord:
    """Write what people may change, if the stored version is still `record.version`; else StaleError."""
    return save_named(connection, _UPDATE, record, _values(record, _WISHED), table=pools, what="pool")


def learn(connection: Connection, name: str, **found: Any) -> None:
    """Write what the leader found out: shapes, currency, message, failures, retry_at. A pool that is gone stays gone."""
    if unknown := found.keys() - set(_LEARNT):
        raise ValueError(f"the leader does not write {min(unknown)}")
    if "shapes" in found:
        found["shapes"] = _plain_shapes(found["shapes"])
    connection.execute(update(pools).where(pools.c.name == name).values(found))


def remove(connection: Connection, name: str) -> None:
    """Forget a pool; its machines' rows stay for the bill."""
    connection.execute(delete(pools).where(pools.c.name == name))


# -- machines


def insert_machines(connection: Connection, records: Sequence[MachineRecord]) -> None:
    """Write new machines."""
    if records:
        connection.execute(insert(pool_machines), [_machine_values(record) for record in records])


def list_machines(
    connection: Connection, *, pool: str = "", states: Collection[str] = LIVE, limit: int = 0
) -> list[MachineRecord]:
    """Machines in these states: by name, or the `limit` newest."""
    query = select(pool_machines).where(pool_machines.c.state.in_([str(state) for state in states]))
    if pool:
        query = query.where(pool_machines.c.pool == pool)
    query = query.order_by(pool_machines.c.wanted_at.desc()).limit(limit) if limit else query.order_by("name")
    return [_machine(row) for row in connection.execute(query)]


def find_machine(connection: Connection, name: str) -> MachineRecord | None:
    """The machine of this name, or None."""
    row = connection.execute(select(pool_machines).where(pool_machines.c.name == name)).first()
    return None if row is None else _machine(row)


def device_of(connection: Connection, machine: str) -> str:
    """The type of the devices of a machine, there or released, as its pool knows it; empty: it has none, or nobody knows."""
    row = find_machine(connection, machine)
    if row is None:
        return ""
    found = connection.execute(select(pools).where(pools.c.name == row.pool)).first()
    shape = None if found is None else _record(found).shapes.get(row.machine_type)
    return next(iter(shape.devices), "") if shape is not None else ""


def machines_since(connection: Connection, moment: float) -> list[MachineRecord]:
    """Machines that are there, or were released after a moment, by name."""
    live = pool_machines.c.state != str(Stage.RELEASED)
    query = select(pool_machines).where(live | (pool_machines.c.released_at > moment))
    return [_machine(row) for row in connection.execute(query.order_by(pool_machines.c.name))]


def set_rates(connection: Connection, found: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Note what machines cost since their purchase, by name; the account of one that is released is closed."""
    for name, rates in found.items():
        table = update(pool_machines).where(pool_machines.c.name == name)
        open_ = table.where(pool_machines.c.state != str(Stage.RELEASED))
        connection.execute(open_.values(rates=[list(one) for one in rates]))


def save_machine(connection: Connection, record: MachineRecord) -> None:
    """Write a machine, but not its rates; only the leader does, so that nobody can have written it meanwhile."""
    values = _machine_values(record) | {"version": record.version + 1}
    del values["rates"]
    connection.execute(update(pool_machines).where(pool_machines.c.name == record.name).values(values))


def remove_machines(connection: Connection, names: Sequence[str]) -> None:
    """Forget machines that were never bought."""
    connection.execute(delete(pool_machines).where(pool_machines.c.name.in_(list(names))))


def costs(connection: Connection, now: float) -> dict[str, float]:
    """What each pool has cost by now, all its machines together."""
    rows = connection.execute(
        select(pool_machines.c.pool, func.sum(pool_machines.c.cost))
        .where(pool_machines.c.state == str(Stage.RELEASED))
        .group_by(pool_machines.c.pool)
    )
    found = {pool: float(amount or 0.0) for pool, amount in rows}
    for record in list_machines(connection):
        found[record.pool] = found.get(record.pool, 0.0) + record.cost_at(now)
    return found


def backends_since(connection: Connection, moment: float) -> set[str]:
    """Where machines were asked for after a moment, or are still there."""
    query = select(pool_machines.c.backend).distinct()
    recent = pool_machines.c.wanted_at > moment
    lately = pool_machines.c.released_at > moment
    live = pool_machines.c.state != str(Stage.RELEASED)
    return {row[0] for row in connection.execute(query.where(recent | lately | live))}


# -- inside


def _same_devices(one: Shape, other: Shape) -> bool:
    return one.devices.keys() == other.devices.keys()


def _plain_shapes(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    return {
        name: {
            "cpu": one.cpu,
            "memory_mib": one.memory_mib,
            "devices": dict(one.devices),
            "price": one.price,
            "runs_images": one.runs_images,
            "is_seen": one.is_seen,
        }
        for name, one in shapes.items()
    }


def _values(record: PoolRecord, names: Sequence[str]) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "types": list(record.types),
        "zones": list(record.zones),
        "labels": dict(record.labels),
        "taints": list(record.taints),
        "options": dict(record.options),
        "shapes": _plain_shapes(record.shapes),
    }
    return picked(record, names, plain)


def _record(row: Row[Any]) -> PoolRecord:
    values = dict(row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
    for name in ("types", "zones", "taints"):
        values[name] = tuple(values[name])
    values["shapes"] = {name: Shape(**shape) for name, shape in values["shapes"].items()}
    return PoolRecord(**values)


def _machine_values(record: MachineRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in _MACHINE_NAMES}
    rates = [list(one) for one in record.rates]
    return values | {"state": str(record.state), "for_jobs": list(record.for_jobs), "rates": rates}


def _machine(row: Row[Any]) -> MachineRecord:
    values = dict(row._mapping)  # noqa: SLF001  # as above
    rates = tuple((since, price) for since, price in values["rates"])
    return MachineRecord(**values | {"for_jobs": tuple(values["for_jobs"]), "rates": rates})
