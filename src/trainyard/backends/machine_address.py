"""Converts a machine's address to plain text for a database, and back."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.spec.machine import Machine, MachineState

_DETAILS = ("ssh_port", "host_key")


def pack(machine: Machine) -> Mapping[str, str]:
    """Return the facts that a transport to this machine needs. Storing them saves a call to the provider."""
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


def unpack(packed: Mapping[str, str], *, backend: str, name: str) -> Machine:
    """Rebuild the machine of `pack` as far as a transport needs it. `name` is used if none was stored."""
    return Machine(
        name=packed.get("name", name),
        id=packed["id"],
        backend=backend,
        state=MachineState.RUNNING,
        address=packed.get("address", ""),
        public_address=packed.get("public_address", ""),
        user=packed.get("user", ""),
        region=packed.get("region", ""),
        details={detail: packed[detail] for detail in _DETAILS if detail in packed},
    )
