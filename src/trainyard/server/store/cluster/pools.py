"""Pools of machines that are bought when the queue needs them, and their machines, those released long ago too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from trainyard.lib.errors import NotFoundError
from trainyard.messages.catalogue import failure
from trainyard.server.records.pools import LIVE, MachineRecord, PoolRecord, Shape, Stage
from trainyard.server.store.tables import pool_machines, pools
from trainyard.server.store.versioned_rows import insert_named, picked, save_named, versioned_update

_NAMES = tuple(one.name for one in fields(PoolRecord))
# What the leader writes; the rest is people's, and neither makes the other's write stale.
_LEARNT = ("shapes", "currency", "message", "reason", "facts", "failures", "retry_at")
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
        raise failure(NotFoundError, "no_pool", pool=name)
    return _record(row)


def list_pools(connection: Connection) -> list[PoolRecord]:
    """All pools by name."""
    return [_record(row) for row in connection.execute(select(pools).order_by(pools.c.name))]


def save(connection: Connection, record: PoolRecord) -> PoolRecord:
    """Write what people may change, if the stored version is still `record.version`; else StaleError."""
    return save_named(connection, _UPDATE, record, _values(record, _WISHED), table=pools, what="pool")


def learn(connection: Connection, name: str, **found: Any) -> None:
    """Write what the leader found out: shapes, prices, and why it could not buy. A pool that is gone stays gone."""
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
