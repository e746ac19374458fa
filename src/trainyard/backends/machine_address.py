"""How to reach a machine, as plain text that can be kept in a table: made from a machine, and a machine made from it."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.spec.machine import Machine, MachineState

_DETAILS = ("ssh_port", "host_key")


def pack(machine: Machine) -> Mapping[str, str]:
    """What a transport to this machine needs to know. Kept, it saves asking the provider."""
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
    """The machine that `pack` was given, as far as a transport needs it. `name` is used where none was kept."""
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
