"""Nodes: what they have, what people want of them, and how they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    bindparam,
    case,
    delete,
    select,
    update,
)

from trainyard.lib.errors import NotFoundError
from trainyard.messages.catalogue import failure
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.store.tables import nodes
from trainyard.server.store.versioned_rows import insert_named, picked, save_named, versioned_update

_NAMES = tuple(one.name for one in fields(NodeRecord))
# What the leader writes, and what people write: neither makes the other's write stale.
_SEEN = ("state", "reason", "boot_id", "facts", "failures", "avoid_until", "seen_at")
_NUMBERS = ("cpu", "memory_mib")
_MEASURED = (*_NUMBERS, "devices")  # the leader's where the node tells, people's where they declare
_WISHED = tuple(name for name in _NAMES if name not in {*_SEEN, "name", "created_at", "version"})
_UPDATE = versioned_update(nodes, "name", _WISHED)


def _new(name: str) -> BindParameter[Any]:
    return bindparam("new_" + name, type_=nodes.c[name].type)


def _declared(name: str) -> ColumnElement[bool]:
    return nodes.c.simulated & (nodes.c[name] > 0)


_UPDATE_SEEN = (
    update(nodes)
    .where(nodes.c.name == bindparam("of_node"))
    .values(
        {
            **{name: _new(name) for name in _SEEN},
            "devices": case((nodes.c.simulated, nodes.c.devices), else_=_new("devices")),
            **{name: case((_declared(name), nodes.c[name]), else_=_new(name)) for name in _NUMBERS},
        }
    )
)
_TOUCH = update(nodes).where(nodes.c.name == bindparam("of_node")).values(seen_at=bindparam("new_seen_at"))


def insert_node(connection: Connection, record: NodeRecord) -> None:
    """Write a new node; ConflictError where the name is taken."""
    hint = "Choose another name, or remove that node first."
    insert_named(connection, nodes, _values(record, _NAMES), what="node", hint=hint)


def find(connection: Connection, name: str) -> NodeRecord | None:
    """The node of this name, or None."""
    row = connection.execute(select(nodes).where(nodes.c.name == name)).first()
    return None if row is None else _record(row)


def load(connection: Connection, name: str) -> NodeRecord:
    """The node of this name, or NotFoundError."""
    record = find(connection, name)
    if record is None:
        raise failure(NotFoundError, "no_node", node=name)
    return record


def list_nodes(connection: Connection, *, engine: str = "") -> list[NodeRecord]:
    """All nodes by name, or those of one engine."""
    query = select(nodes).order_by(nodes.c.name)
    if engine:
        query = query.where(nodes.c.engine == engine)
    return [_record(row) for row in connection.execute(query)]


def device_types(connection: Connection) -> frozenset[str]:
    """All types of devices that nodes have."""
    found = connection.execute(select(nodes.c.devices)).scalars()
    return frozenset(kind for devices in found for kind, count in devices.items() if count)


def save(connection: Connection, record: NodeRecord) -> NodeRecord:
    """Write what can change, if the stored version is still `record.version`; else StaleError."""
    return save_named(connection, _UPDATE, record, _values(record, _WISHED), table=nodes, what="node")


def save_seen(connection: Connection, records: Sequence[NodeRecord]) -> None:
    """Write what nodes say of themselves, whatever people have written meanwhile: those columns are not theirs."""
    names = (*_SEEN, *_MEASURED)
    rows = [
        {"of_node": one.name, **{"new_" + name: value for name, value in _values(one, names).items()}}
        for one in records
    ]
    if rows:
        connection.execute(_UPDATE_SEEN, rows)


def touch(connection: Connection, seen: Mapping[str, float]) -> None:
    """Note when nodes were last heard of. Versions stay: a heartbeat changes nothing that others decide by."""
    if seen:
        connection.execute(_TOUCH, [{"of_node": name, "new_seen_at": at} for name, at in seen.items()])


def remove(connection: Connection, name: str) -> None:
    """Forget a node."""
    connection.execute(delete(nodes).where(nodes.c.name == name))


def _values(record: NodeRecord, names: Sequence[str]) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "address": dict(record.address),
        "devices": dict(record.devices),
        "labels": dict(record.labels),
        "facts": dict(record.facts),
        "unhealthy": {kind: list(indices) for kind, indices in record.unhealthy.items()},
        "taints": list(record.taints),
        "topology": list(record.topology),
        "desired": str(record.desired),
        "state": str(record.state),
    }
    return picked(record, names, plain)


def _record(row: Row[Any]) -> NodeRecord:
    values = dict(row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
    values["taints"] = tuple(values["taints"])
    values["topology"] = tuple(values["topology"])
    return NodeRecord(**values)
