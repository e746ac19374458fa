"""Which task of a job has which of the places that the scheduler gave it, where that matters. Pure.

Rank tables of NPUs list their servers in the order of the dictionary, and ranks rise with them. So tasks of one shape exchange
their places until their numbers rise with the addresses of their nodes; what each node holds stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from trainyard.scheduling import Slot
from trainyard.server.launch.kinds.ascend import is_npu
from trainyard.server.launch.launch_facts import address_of
from trainyard.server.records.nodes import NodeRecord
from trainyard.spec.workload import RoleSpec, WorkloadSpec


def by_address(
    spec: WorkloadSpec, slots: Sequence[Slot], find: Callable[[str], NodeRecord | None]
) -> tuple[Slot, ...]:
    """The same places, in the order of ranks by the addresses of nodes with NPUs; as they are where there are none."""
    if len(slots) == 1 or not any(role.devices for role in spec.roles):
        return tuple(slots)
    nodes = {slot.node: find(slot.node) for slot in slots}
    there = {name for record in nodes.values() if record is not None for name in record.devices}
    wanted = {role.device for role in spec.roles if role.devices}
    if not any(map(is_npu, there if "" in wanted else wanted)):
        return tuple(slots)
    addresses = {name: address_of(record) for name, record in nodes.items()}
    found: list[Slot] = []
    for shape in dict.fromkeys(map(_shape, spec.roles)):
        names = [role.name for role in spec.roles if _shape(role) == shape]
        ranked = sorted(
            (slot for slot in slots if slot.role in names), key=lambda slot: names.index(slot.role)
        )
        places = sorted(ranked, key=lambda slot: (addresses[slot.node], slot.node, slot.devices))
        found += [replace(place, role=slot.role) for slot, place in zip(ranked, places, strict=True)]
    return tuple(found)


def _shape(role: RoleSpec) -> str:
    """What a role asks of its place; equal ones can be exchanged."""
    alike = replace(role, name="", replicas=1, minimum=None, command="", after=(), env={})
    return repr(alike)
