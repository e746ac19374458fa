"""Finds the unused parts of our network, and removes them on an explicit call.

Only things with our tag count. They cost nothing while they lie there; quotas are what they use up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.backends.aliyun.access.key_pair import delete_key_pair, fetch_key_pairs
from trainyard.backends.aliyun.access.network import NETWORK_TAGS, TAG, fetch_vswitches
from trainyard.backends.aliyun.access.security_groups import fetch_groups
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.errors import code_of
from trainyard.backends.aliyun.api.paging import check_list_permission, fetch_all
from trainyard.backends.aliyun.api.wire import Parameter, tags, text, texts
from trainyard.lib.errors import ConflictError, NotFoundError

# In the order in which they can be removed.
KINDS = ("security group", "vSwitch", "VPC", "key pair")
_DELETE = {
    "security group": ("ecs", "DeleteSecurityGroup", "SecurityGroupId"),
    "vSwitch": ("vpc", "DeleteVSwitch", "VSwitchId"),
    "VPC": ("vpc", "DeleteVpc", "VpcId"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """One unused thing."""

    kind: str
    id: str
    name: str
    region: str


async def find_idle(client: Client) -> tuple[Idle, ...]:
    """Find our unused things in this region, in the order in which they can be removed."""
    interfaces = await fetch_all(client, "ecs", "DescribeNetworkInterfaces")
    used = {text(row, "VSwitchId") for row in interfaces} | {text(row, "VpcId") for row in interfaces}
    used |= {group for row in interfaces for group in texts(row, "SecurityGroupIds.SecurityGroupId")}
    instances = await fetch_all(client, "ecs", "DescribeInstances")
    if not instances:
        await check_list_permission(client)  # without the right to list machines everything would look idle
    keys = {text(row, "KeyPairName") for row in instances}
    for row in instances:
        used |= set(texts(row, "SecurityGroupIds.SecurityGroupId"))
        used |= {text(row, "VpcAttributes.VSwitchId"), text(row, "VpcAttributes.VpcId")}

    idle = [
        Idle(kind="security group", id=group.id, name=group.name, region=client.region)
        for group in await fetch_groups(client)
        if group.id not in used
    ]
    tagged = await fetch_all(client, "vpc", "DescribeVpcs", {"Tag": NETWORK_TAGS})
    vswitch_rows = await fetch_all(client, "vpc", "DescribeVSwitches", {"Tag": NETWORK_TAGS})
    idle += [
        Idle(kind="vSwitch", id=text(row, "VSwitchId"), name=text(row, "VSwitchName"), region=client.region)
        for row in vswitch_rows
        if text(row, "VSwitchId") not in used and TAG in tags(row)
    ]
    removable = {each.id for each in idle}
    for row in tagged:
        vpc_id = text(row, "VpcId")
        if TAG in tags(row) and vpc_id not in used and await _is_empty(client, vpc_id, removable):
            idle.append(Idle(kind="VPC", id=vpc_id, name=text(row, "VpcName"), region=client.region))
    idle += [
        Idle(kind="key pair", id=key.name, name=key.name, region=client.region)
        for key in await fetch_key_pairs(client)
        if key.is_ours and key.name not in keys
    ]
    return tuple(sorted(idle, key=lambda each: (KINDS.index(each.kind), each.name, each.id)))


async def _is_empty(client: Client, vpc_id: str, removable: set[str]) -> bool:
    """Return whether everything left in a VPC can be removed too. A group of another owner prevents that."""
    inside = {group.id for group in await fetch_groups(client, vpc_id=vpc_id, only_ours=False)}
    inside |= {vswitch.id for vswitch in await fetch_vswitches(client, vpc_id)}
    return inside <= removable


async def remove(client: Client, idle: Sequence[Idle]) -> tuple[Idle, ...]:
    """Remove the listed things. Returns those that are in use again. It is no error if one is gone already."""
    kept: list[Idle] = []
    for each in sorted(idle, key=lambda one: KINDS.index(one.kind)):
        try:
            await _remove(client.in_region(each.region), each)
        except NotFoundError:
            continue
        except ConflictError as error:
            if not code_of(error):
                raise
            kept.append(each)
    return tuple(kept)


async def _remove(client: Client, idle: Idle) -> None:
    if idle.kind == "key pair":
        await delete_key_pair(client, idle.id)
        return
    product, action, parameter = _DELETE[idle.kind]
    parameters: dict[str, Parameter] = {parameter: idle.id}
    await client.call(product, action, parameters, about=f"the {idle.kind} {idle.name}")
