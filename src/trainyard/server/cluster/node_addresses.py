"""How the engine reaches a node."""

from __future__ import annotations

from trainyard.engines.api import NodeAddress
from trainyard.server.records.nodes import NodeRecord


def address_of(record: NodeRecord) -> NodeAddress:
    """How the engine reaches it."""
    return NodeAddress(
        name=record.name,
        engine=record.engine,
        backend=str(record.address.get("backend", "local")),
        host=str(record.address.get("host", "")),
        machine=tuple(sorted(dict(record.address.get("machine", {})).items())),
        fence_seconds=float(record.fence_seconds),
    )
