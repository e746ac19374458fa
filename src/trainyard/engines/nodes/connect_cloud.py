"""The way to a node that a pool has bought: its backend's own. Importing this imports backends; only `connect.py` does, on use."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard import settings
from trainyard.backends.registry import open_backend
from trainyard.engines.api import NodeAddress
from trainyard.spec.machine import Machine, MachineState
from trainyard.transport.api import Transport

_DETAILS = ("ssh_port", "host_key")


def describe(machine: Machine) -> Mapping[str, str]:
    """What a way to this machine needs to know: kept in the node's address, so that going there asks no provider."""
    found = {
        "name": machine.name,
        "id": machine.id,
        "address": machine.address,
        "public_address": machine.public_address,
        "user": machine.user,
        "region": machine.region,
        **{name: machine.details.get(name, "") for name in _DETAILS},
    }
    return {name: value for name, value in found.items() if value}


def open_way(address: NodeAddress) -> Transport:
    """Go there as the backend does. Makes no call; the first connection may ask the provider for the host key."""
    known = dict(address.machine)
    machine = Machine(
        name=known.get("name", address.name),
        id=known["id"],
        backend=address.backend,
        state=MachineState.RUNNING,
        address=known.get("address", ""),
        public_address=known.get("public_address", ""),
        user=known.get("user", ""),
        region=known.get("region", ""),
        details={name: known[name] for name in _DETAILS if name in known},
    )
    return open_backend(address.backend, settings.load()).transport(machine)
