"""This machine as the first node: made at the first start, kept in step with the settings after that."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from trainyard.server.records.nodes import NodeRecord
from trainyard.server.settings import ServerSettings
from trainyard.server.store.cluster import nodes
from trainyard.server.store.database import Database


def ensure_local_node(db: Database, settings: ServerSettings, now: float) -> None:
    """Make the node of this machine, or bring it in step with the settings. Doing it twice changes nothing."""
    if settings.local_node:
        db.write_now(lambda c: _ensure(c, settings, now))


def _ensure(c: Connection, settings: ServerSettings, now: float) -> None:
    devices = dict(settings.simulated_devices)
    wanted = NodeRecord(
        name=settings.local_node_name,
        created_at=now,
        address={"backend": "local"},
        cpu=round(settings.local_cpu * 1000),
        memory_mib=settings.local_memory_mib,
        devices=devices,
        simulated=bool(devices or settings.local_cpu or settings.local_memory_mib),
    )
    known = nodes.find(c, settings.local_node_name)
    if known is None:
        nodes.insert_node(c, wanted)
    elif wanted.simulated:
        changed = replace(
            known,
            simulated=True,
            devices=devices or known.devices,
            cpu=wanted.cpu or known.cpu,
            memory_mib=wanted.memory_mib or known.memory_mib,
        )
        if changed != known:
            nodes.save(c, changed)
