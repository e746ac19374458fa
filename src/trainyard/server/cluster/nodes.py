"""Nodes: taking machines in, and saying what is wanted of them. What they do is the loops' and the engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, StaleError
from trainyard.server import validation
from trainyard.server.auth.actor import Actor, require
from trainyard.server.launch import mounts
from trainyard.server.records.nodes import IMAGES, NodeDesired, NodeRecord
from trainyard.server.service_context import Context
from trainyard.server.settings import ISOLATIONS
from trainyard.server.store.cluster import nodes
from trainyard.server.store.jobs import workloads
from trainyard.spec import job_limits
from trainyard.spec.ascend import entry_addresses
from trainyard.spec.events import Subject

BACKENDS = ("local", "ssh")
FENCE_SECONDS = 30 * 86400
CHOICES: Mapping[str, tuple[str, ...]] = {"images": IMAGES, "isolation": ISOLATIONS}
OPTIONS = (*CHOICES, "visible", "address", "device_ips")
# What everybody may know of a node's condition; the rest tells how it can be reached.
_PUBLIC_FACTS = frozenset({"disk_free_mib", "disk_total_mib", "load", "memory_free_mib"})


class Nodes:
    """`services.nodes`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list(self, actor: Actor) -> Sequence[NodeRecord]:
        """All nodes by name. How they are reached is shown to administrators only."""
        require(actor, "nodes:read")
        found = await self._context.db.read(nodes.list_nodes)
        return [_shown(actor, record) for record in found]

    async def get(self, actor: Actor, name: str) -> NodeRecord:
        """One node."""
        require(actor, "nodes:read")
        return _shown(actor, await self._context.db.read(lambda c: nodes.load(c, name)))

    async def task_counts(self, actor: Actor) -> dict[str, int]:
        """How many tasks each node has."""
        require(actor, "nodes:read")

        def work(connection: Connection) -> dict[str, int]:
            counts: dict[str, int] = {}
            for tasks in workloads.tasks_holding(connection).values():
                for task in tasks:
                    counts[task.node] = counts.get(task.node, 0) + 1
            return counts

        return await self._context.db.read(work)

    async def join(
        self,
        actor: Actor,
        name: str,
        *,
        address: Mapping[str, Any],
        pool: str = "default",
        devices: Mapping[str, int] | None = None,
        cpu: int = 0,
        memory_mib: int = 0,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[str] = (),
        topology: Sequence[str] = (),
        fence_seconds: int = 0,
        reserved_cpu: int = 0,
        reserved_memory_mib: int = 0,
    ) -> NodeRecord:
        """Take a machine in. Devices that are given are declared, to try things out; else they are found."""
        require(actor, "nodes:write")
        validation.check_node_name(name)
        record = NodeRecord(
            name=name,
            created_at=self._context.now(),
            address=_checked_address(address),
            pool=pool,
            devices=dict(devices or {}),
            cpu=cpu,
            memory_mib=memory_mib,
            simulated=bool(devices or cpu or memory_mib),
            labels=dict(labels or {}),
            taints=tuple(taints),
            topology=tuple(topology),
            fence_seconds=fence_seconds,
            reserved_cpu=reserved_cpu,
            reserved_memory_mib=reserved_memory_mib,
        )
        _check(record)

        def work(connection: Connection) -> NodeRecord:
            nodes.insert_node(connection, record)
            self._note(connection, actor, "join", record, f"{actor.name} took the node in.")
            return record

        return await self._context.write(actor, "nodes.join", name, work)

    async def set_desired(
        self, actor: Actor, name: str, desired: str, *, version: int | None = None
    ) -> NodeRecord:
        """Cordon, drain, make ready again, or declare gone. Gone is for good: what ran there may start elsewhere."""
        require(actor, "nodes:write")
        if desired not in set(NodeDesired):
            raise validation.FieldError(
                "desired", f"is {desired[:40]!r}", hint=f"Choose one of {', '.join(NodeDesired)}."
            )

        def work(connection: Connection) -> NodeRecord:
            record = _current(connection, name, version)
            if record.desired == NodeDesired.GONE and desired != NodeDesired.GONE:
                raise ConflictError(
                    f"The node {name!r} was declared gone, and its jobs may run elsewhere by now.",
                    hint="Wait until it is removed, then take it in again.",
                )
            if record.desired == desired:
                return record
            saved = nodes.save(connection, replace(record, desired=desired))
            self._note(connection, actor, "set_desired", saved, f"{actor.name} wants the node {desired}.")
            return saved

        return await self._context.write(actor, "nodes.set_desired", name, work)

    async def change(
        self, actor: Actor, name: str, *, version: int | None = None, **changes: Any
    ) -> NodeRecord:
        """Change labels, taints, pool, topology, declared or unhealthy devices, fence_seconds or what is reserved; None: stays."""
        require(actor, "nodes:write")
        given = {key: value for key, value in changes.items() if value is not None}
        allowed = {
            "labels",
            "taints",
            "pool",
            "topology",
            "devices",
            "unhealthy",
            "fence_seconds",
            "reserved_cpu",
            "reserved_memory_mib",
            "options",
        }
        if unknown := given.keys() - allowed:
            raise validation.FieldError(
                min(unknown), "cannot be changed", hint=f"There are: {', '.join(sorted(allowed))}."
            )
        for key in ("taints", "topology"):
            if key in given:
                given[key] = tuple(given[key])
        if "unhealthy" in given:
            given["unhealthy"] = {
                kind: sorted(set(those)) for kind, those in given["unhealthy"].items() if those
            }
        if "devices" in given:
            given["simulated"] = bool(given["devices"])

        def work(connection: Connection) -> NodeRecord:
            record = _current(connection, name, version)
            if "options" in given:
                given["options"] = _options(record, given["options"])
            changed = replace(record, **given)
            _check(changed)
            if changed == record:
                return record
            saved = nodes.save(connection, changed)
            self._note(connection, actor, "change", saved, f"{actor.name} changed the node.", sorted(given))
            return saved

        return await self._context.write(actor, "nodes.change", name, work)

    async def remove(self, actor: Actor, name: str, *, force: bool = False) -> None:
        """Take a node away; refused while it has tasks, unless it is declared gone with `force`."""
        require(actor, "nodes:write")

        def work(connection: Connection) -> None:
            record = _current(connection, name, None)
            if not force and (left := len(workloads.tasks_on(connection, name))):
                raise ConflictError(
                    f"The node {name!r} has {left} tasks.",
                    hint="Drain it first, or use force if it will never come back.",
                )
            if record.desired != NodeDesired.GONE:
                saved = nodes.save(connection, replace(record, desired=NodeDesired.GONE))
                self._note(connection, actor, "remove", saved, f"{actor.name} takes the node away.")

        await self._context.write(actor, "nodes.remove", name, work)

    def _note(
        self,
        connection: Connection,
        actor: Actor,
        action: str,
        record: NodeRecord,
        message: str,
        details: Sequence[str] = (),
    ) -> None:
        data = {"desired": str(record.desired), "fields": list(details)}
        self._context.audit(connection, actor, f"nodes.{action}", record.name, data=data)
        self._context.tell(
            connection, actor, Subject.NODE, record.name, action, message, state=str(record.state)
        )


def _current(connection: Connection, name: str, version: int | None) -> NodeRecord:
    record = nodes.load(connection, name)
    if version is not None and version != record.version:
        raise StaleError(f"The node {name!r} has version {record.version} by now.", hint="Load it again.")
    return record


def _shown(actor: Actor, record: NodeRecord) -> NodeRecord:
    if actor.can("nodes:write"):
        return record
    facts = {key: value for key, value in record.facts.items() if key in _PUBLIC_FACTS}
    return replace(record, address={}, facts=facts, boot_id="", options={})


def _options(record: NodeRecord, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Its options, with those that were given; None takes one away."""
    for name, value in wanted.items():
        if value is None:
            continue
        if name in CHOICES and value not in CHOICES[name]:
            raise validation.FieldError(
                f"options.{name}", f"is {value!r}", hint=f"Choose one of {', '.join(CHOICES[name])}."
            )
        if name == "visible":
            for path in value if isinstance(value, list | tuple) else [None]:
                if not isinstance(path, str):
                    raise validation.FieldError(
                        "options.visible", "is no list of folders", hint='Write ["/opt/data"].'
                    )
                mounts.checked_target(path)
        elif name == "device_ips":
            entry_addresses({name: value})
        elif name == "address":
            validation.check_text("options.address", str(value), longest=255, empty=False)
        elif name not in CHOICES:
            raise validation.FieldError(
                f"options.{name[:40]}", "is not known", hint=f"There are: {', '.join(sorted(OPTIONS))}."
            )
    return {name: value for name, value in {**record.options, **wanted}.items() if value is not None}


def _checked_address(address: Mapping[str, Any]) -> dict[str, Any]:
    backend = address.get("backend", "local")
    if backend not in BACKENDS:
        raise validation.FieldError(
            "address.backend", f"is {str(backend)[:40]!r}", hint=f"Choose {' or '.join(BACKENDS)}."
        )
    if unknown := address.keys() - {"backend", "host"}:
        raise validation.FieldError(
            f"address.{min(unknown)[:40]}", "is not known", hint='Write {"backend": "ssh", "host": "gpu1"}.'
        )
    found = {"backend": backend}
    if backend == "ssh":
        host = address.get("host")
        if not isinstance(host, str):
            raise validation.FieldError(
                "address.host", "is missing", hint="Name a host of the inventory: `trainyard hosts`."
            )
        validation.check_text("address.host", host, longest=255, empty=False)
        if host.startswith("-"):
            raise validation.FieldError(
                "address.host", "begins with a dash", hint="Name a host of the inventory."
            )
        found["host"] = host
    return found


def _check(record: NodeRecord) -> None:
    validation.check_labels("labels", record.labels)
    validation.check_taints("taints", record.taints)
    if not job_limits.DNS_NAME.match(record.pool):
        raise validation.FieldError(
            "pool", f"{record.pool[:40]!r} cannot be a pool's", hint="Use lower-case letters and dashes."
        )
    for kind, count in record.devices.items():
        if not job_limits.DEVICE.match(kind) or not 0 <= count <= job_limits.DEVICES:
            raise validation.FieldError("devices", f"has {kind[:40]!r}: {count}", hint='Write {"V100": 8}.')
    for kind, indices in record.unhealthy.items():
        if not job_limits.DEVICE.match(kind) or not all(0 <= index < job_limits.DEVICES for index in indices):
            raise validation.FieldError("unhealthy", f"has {kind[:40]!r}", hint='Write {"V100": [3]}.')
    for part in record.topology:
        validation.check_text("topology", part, longest=63, empty=False)
    numbers = {
        "fence_seconds": (record.fence_seconds, FENCE_SECONDS),
        "cpu": (record.cpu, 65_536_000),
        "memory_mib": (record.memory_mib, job_limits.MEMORY_MIB),
        "reserved_cpu": (record.reserved_cpu, 65_536_000),
        "reserved_memory_mib": (record.reserved_memory_mib, job_limits.MEMORY_MIB),
    }
    for name, (number, most) in numbers.items():
        if not 0 <= number <= most:
            raise validation.FieldError(name, f"is {number}", hint=f"Give a number from 0 to {most}.")
