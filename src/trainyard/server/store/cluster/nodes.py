"""Nodes: what they have, what people want of them, and how they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
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
from trainyard.server.store.tables import nodes
from trainyard.server.store.versioned_rows import insert_named, picked, save_named, versioned_update

IGNORE, REFUSE, PODMAN, DOCKER = IMAGES = ("ignore", "refuse", "podman", "docker")
# A label that the scheduler sees on nodes where a task that names an image starts.
RUNS_IMAGES = "trainyard/images"


class NodeDesired(StrEnum):
    """What people want of a node. Only services write it."""

    READY = "ready"
    CORDONED = "cordoned"  # keeps what runs, takes nothing new
    DRAINED = "drained"  # what runs is asked to go, and requeued
    GONE = "gone"  # it does not come back: its tasks are lost for good, and it is forgotten


class NodeCondition(StrEnum):
    """Where a node is. Only loops write it."""

    JOINING = "joining"
    READY = "ready"
    LOST = "lost"  # it does not answer
    REFUSED = "refused"  # it answers, but cannot be used: `reason` says why


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One row of nodes. CPU is in thousandths of a core."""

    name: str
    created_at: float
    engine: str = "nodes"
    address: Mapping[str, Any] = field(default_factory=dict)
    pool: str = "default"
    cpu: int = 0
    memory_mib: int = 0
    reserved_cpu: int = 0
    reserved_memory_mib: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)
    simulated: bool = False
    unhealthy: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by type, those that nobody gets
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    topology: tuple[str, ...] = ()
    desired: str = NodeDesired.READY
    state: str = NodeCondition.JOINING
    reason: str = ""
    boot_id: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    failures: int = 0
    avoid_until: float | None = None
    fence_seconds: int = 0
    seen_at: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1


def images_on(record: NodeRecord) -> str:
    """What a node does with images: run them in containers, by what it has or by one of both; or ignore them, as the server's own."""
    is_local = record.address.get("backend", "local") == "local"
    return str(record.options.get("images") or (IGNORE if is_local else REFUSE))


def can_run_images(record: NodeRecord) -> bool:
    """Whether a task that names an image starts there."""
    return images_on(record) == IGNORE or bool(record.facts.get("containers"))


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
        raise NotFoundError(f"There is no node {name!r}.", hint="See `trainyard nodes` for those there are.")
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
