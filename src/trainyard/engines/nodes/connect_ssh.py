"""The way to a node that is a host of the inventory. Importing this imports ssh; only `connect.py` does, on use."""

from __future__ import annotations

from trainyard import settings
from trainyard.backends.ssh import inventory
from trainyard.backends.ssh.connect import HostTransport
from trainyard.engines.api import NodeAddress


def open_way(address: NodeAddress) -> HostTransport:
    """Look the host up, as the inventory is now."""
    hosts = inventory.load(settings.load().hosts_file)
    return HostTransport(hosts.host(address.host or address.name), hosts)
