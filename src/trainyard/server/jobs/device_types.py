"""The types of devices that a submission means, by what the nodes have."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cached_property

from sqlalchemy import Connection

from trainyard.lib.errors import InvalidError
from trainyard.server.launch import kinds
from trainyard.server.launch.kinds import ascend
from trainyard.server.records.nodes import NodeDesired, NodeRecord
from trainyard.server.records.workspaces import WorkspaceRecord
from trainyard.server.store.cluster import nodes
from trainyard.spec.workload import RoleSpec, WorkloadSpec

# What forms call devices whatever their model, which is what nodes say.
_FAMILY = re.compile(r"(nvidia|(nvidia_)?gpu|(huawei_)?npu|ascend)(_(amd64|arm64))?", re.IGNORECASE)


class Devices:
    """Which devices there are, for all jobs of one submission: the nodes are read once, and only where somebody asks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @cached_property
    def _nodes(self) -> list[NodeRecord]:
        found = nodes.list_nodes(self._connection)
        return [node for node in found if node.desired != NodeDesired.GONE]

    def settle(self, spec: WorkloadSpec, place: WorkspaceRecord) -> WorkloadSpec:
        """A fitted job whose devices have a type where that matters.

        It does where there are several types, where its kind goes by it, and where it says only what forms call them.
        """
        spec = self._spelt(spec)
        open_roles = [role.name for role in spec.roles if role.devices and _is_open(role.device)]
        if not open_roles:
            return spec
        several = len({name for node in self._nodes for name in _types(node)}) > 1
        named = any(role.device for role in spec.roles if role.name in open_roles)
        if not (several or named or kinds.find_kind(spec.kind).needs_device):
            return spec
        roles = tuple(
            replace(role, device=_type_for(role, self._nodes, place)) if role.name in open_roles else role
            for role in spec.roles
        )
        return kinds.fit(replace(spec, roles=roles))

    @cached_property
    def _types(self) -> frozenset[str]:
        return nodes.device_types(self._connection)

    def _spelt(self, spec: WorkloadSpec) -> WorkloadSpec:
        """A job whose types are written as nodes write them: `v100` is V100, and `Ascend910B3` is Ascend 910B3."""
        named = {role.device for role in spec.roles if role.devices and not _is_open(role.device)}
        found = {name: spelt for name in named if (spelt := spelling(name, self._types)) != name}
        if not found:
            return spec
        roles = (replace(role, device=found.get(role.device, role.device)) for role in spec.roles)
        return replace(spec, roles=tuple(roles))


def spelling(name: str, types: Collection[str]) -> str:
    """The one of these types that somebody means, whatever the letters and blanks; the name itself, where none or several fit."""
    if name in types:
        return name
    meant = _bare(name)
    found = [one for one in types if _bare(one) == meant]
    if not found and meant == "910":  # as manuals call all of them: nodes say 910A, 910B3
        found = [one for one in types if _bare(one).startswith(meant)]
    return found[0] if len(found) == 1 else name


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("ascend")


def _is_open(device: str) -> bool:
    return not device or _FAMILY.fullmatch(device) is not None


def _is_meant(device: str, name: str) -> bool:
    """Whether somebody who says this, or nothing, can have devices of a type."""
    return not device or ascend.is_npu(device) == ascend.is_npu(name)


def _type_for(role: RoleSpec, known: Iterable[NodeRecord], place: WorkspaceRecord) -> str:
    """The one type that a role which names none can get; of the workspace's own quota, where that names any."""
    found = {
        name
        for node in known
        if (not role.nodes or node.name in role.nodes) and role.labels.items() <= node.labels.items()
        for name in _types(node)
        if _is_meant(role.device, name)
    }
    if role.device in found:
        return role.device
    found = {name for name in found if place.quota.nominal.get(name)} or found
    if len(found) > 1:
        asks = f"asks for {role.device}" if role.device else "does not say which devices it wants"
        raise InvalidError(
            f"The role {role.name} {asks}, and there are {', '.join(sorted(found))}.",
            hint="Set its device (gpu_type in a params file) to one of them.",
        )
    return next(iter(found), role.device)


def _types(node: NodeRecord) -> list[str]:
    return [name for name, count in node.devices.items() if count]
