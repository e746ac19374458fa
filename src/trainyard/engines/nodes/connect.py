"""The ways to nodes: this computer, an entry of the inventory of ssh hosts, or a machine that was bought."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from trainyard import settings
from trainyard.backends.local.environment import inherited
from trainyard.engines.api import NodeAddress
from trainyard.lib.errors import UnsupportedError
from trainyard.transport.api import Transport
from trainyard.transport.local import LocalTransport

TransportOf = Callable[[NodeAddress], Transport]


def transport_of(address: NodeAddress) -> Transport:
    """The way to a node. What this computer's environment holds of secrets and settings does not go with it."""
    if address.backend == "local":
        return LocalTransport(Path.home(), {}, inherited=inherited(settings.load().environ))
    if address.backend == "ssh":
        # Imported on use: a server whose nodes are all local needs no ssh, which is a third of its memory.
        opened: Transport = import_module("trainyard.engines.nodes.connect_ssh").open_way(address)
        return opened
    if address.machine:
        bought: Transport = import_module("trainyard.engines.nodes.connect_cloud").open_way(address)
        return bought
    raise UnsupportedError(
        f"the node {address.name} cannot be reached by {address.backend!r}", hint="Use local or ssh."
    )
