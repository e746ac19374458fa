"""The way to a node that a pool has bought: its backend's own. Importing this imports backends; only `connect.py` does, on use."""

from __future__ import annotations

from trainyard import settings
from trainyard.backends.machine_address import unpack
from trainyard.backends.registry import open_backend
from trainyard.engines.api import NodeAddress
from trainyard.transport.api import Transport


def open_way(address: NodeAddress) -> Transport:
    """Go there as the backend does. Makes no call; the first connection may ask the provider for the host key."""
    machine = unpack(dict(address.machine), backend=address.backend, name=address.name)
    return open_backend(address.backend, settings.load()).transport(machine)
