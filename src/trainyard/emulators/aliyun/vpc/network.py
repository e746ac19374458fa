"""VPCs and vSwitches: ranges, zones, addresses left, the order in which they can be made and removed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from trainyard.emulators.aliyun.api.answers import (
    by_number,
    comma_list,
    has_tags,
    plain_tags,
    read_tags,
    refuse_dry_run,
    require_region,
    second,
)
from trainyard.emulators.aliyun.api.call import Call, Handler, Value
from trainyard.emulators.aliyun.api.problems import Problem, denied, not_found
from trainyard.emulators.aliyun.cloud.catalogue import ZONES
from trainyard.emulators.aliyun.cloud.records import Vpc, VSwitch
from trainyard.emulators.aliyun.cloud.world import World

RESERVED = 4  # the first address of a vSwitch and its last three
_PRIVATE = tuple(ipaddress.IPv4Network(one) for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
_DEFAULT_CIDR = "172.16.0.0/12"


# --- addresses


def _usable(vswitch: VSwitch) -> Iterator[str]:
    network = ipaddress.IPv4Network(vswitch.cidr)
    for index in range(1, network.num_addresses - 3):
        yield str(network[index])


def free_addresses(world: World, vswitch: VSwitch) -> int:
    """How many addresses a vSwitch has left."""
    whole = ipaddress.IPv4Network(vswitch.cidr).num_addresses - RESERVED
    taken = len(world.interfaces_in(vswitch.id)) + world.targets_in(vswitch.id) + vswitch.occupied
    return max(0, whole - taken)


def take_addresses(world: World, vswitch: VSwitch, count: int, wanted: str = "") -> list[str]:
    """The addresses that new interfaces get: the wanted one, or the lowest that are free."""
    taken = set(world.interfaces_in(vswitch.id))
    if wanted:
        if wanted not in set(_usable(vswitch)):
            raise denied("InvalidVSwitchId.IpInvalid", f"{wanted} is not an address of {vswitch.cidr}.")
        if wanted in taken:
            raise denied("InvalidIp.IpAssigned", f"The specified IP {wanted} is assigned already.")
        return [wanted]
    found: list[str] = []
    for address in _usable(vswitch):
        if len(found) == count:
            break
        if address not in taken:
            found.append(address)
    return found


# --- VPCs


def create_vpc(world: World, call: Call) -> dict[str, Value]:
    """CreateVpc."""
    region = require_region(call)
    cidr = call.text("CidrBlock", _DEFAULT_CIDR)
    network = _network(cidr, "InvalidCidrBlock.Malformed")
    if not 8 <= network.prefixlen <= 28 or not any(network.subnet_of(one) for one in _PRIVATE):
        raise Problem("InvalidVpcCidrBlock", f"The specified CIDR block is not valid: {cidr}.")
    tags = read_tags(call.structs("Tag"))
    used = sum(vpc.region == region for vpc in world.vpcs.values())
    if used >= world.options.quotas.vpcs:
        raise Problem("QuotaExceeded.Vpc", "VPC quota exceeded.")
    refuse_dry_run(call)
    vpc = Vpc(
        id=world.new_id("vpc-", region, 21),
        region=region,
        cidr=cidr,
        router=world.new_id("vrt-", region, 21),
        route_table=world.new_id("vtb-", region, 21),
        created=call.now,
        name=call.text("VpcName"),
        description=call.text("Description"),
        tags=tags,
        due=call.now + world.options.duration("vpc"),
    )
    world.vpcs[vpc.id] = vpc
    return {
        "VpcId": vpc.id,
        "VRouterId": vpc.router,
        "RouteTableId": vpc.route_table,
        "ResourceGroupId": call.text("ResourceGroupId", "rg-default"),
    }


def _network(cidr: str, code: str) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(cidr)
    except ValueError as error:
        raise Problem(code, f"The specified CIDR block is not valid: {cidr}.") from error


def find_vpc(world: World, call: Call, vpc_id: str) -> Vpc:
    """A VPC of the call's region."""
    vpc = world.vpcs.get(vpc_id)
    if vpc is None or vpc.region != call.region:
        raise not_found("InvalidVpcId.NotFound", f"The specified VPC does not exist: {vpc_id}.")
    return vpc


def describe_vpcs(world: World, call: Call) -> dict[str, Value]:
    """DescribeVpcs."""
    region, ids = require_region(call), comma_list(call, "VpcId")
    refuse_dry_run(call)
    rows = [
        vpc
        for vpc in world.vpcs.values()
        if vpc.region == region
        and (not ids or vpc.id in ids)
        and call.text("VpcName") in {"", vpc.name}
        and not call.flag("IsDefault")
        and has_tags(vpc.tags, call.structs("Tag"))
    ]
    shown, fields = by_number(call, rows, lambda vpc: _show_vpc(world, vpc))
    return {"Vpcs": {"Vpc": shown}, **fields}


def _show_vpc(world: World, vpc: Vpc) -> dict[str, Value]:
    vswitches = [one.id for one in world.vswitches.values() if one.vpc == vpc.id]
    return {
        "VpcId": vpc.id,
        "VpcName": vpc.name,
        "RegionId": vpc.region,
        "CidrBlock": vpc.cidr,
        "Status": vpc.status,
        "Description": vpc.description,
        "CreationTime": second(vpc.created),
        "IsDefault": False,
        "VRouterId": vpc.router,
        "ResourceGroupId": "rg-default",
        "RouterTableIds": {"RouterTableIds": [vpc.route_table]},
        "VSwitchIds": {"VSwitchId": vswitches},
        "NatGatewayIds": {"NatGatewayIds": []},
        "SecondaryCidrBlocks": {"SecondaryCidrBlock": []},
        "UserCidrs": {"UserCidr": []},
        "Tags": plain_tags(vpc.tags),
    }


def describe_vpc_attribute(world: World, call: Call) -> dict[str, Value]:
    """DescribeVpcAttribute."""
    vpc = find_vpc(world, call, call.required("VpcId"))
    shown = _show_vpc(world, vpc)
    for name in ("NatGatewayIds", "RouterTableIds"):
        shown.pop(name)
    count = sum(one.vpc == vpc.id for one in world.vswitches.values())
    resources: Value = [{"ResourceType": "VSwitch", "ResourceCount": count}] if count else []
    return {**shown, "CloudResources": {"CloudResourceSetType": resources}}


def modify_vpc_attribute(world: World, call: Call) -> dict[str, Value]:
    """ModifyVpcAttribute: the name and the description."""
    vpc = find_vpc(world, call, call.required("VpcId"))
    vpc.name, vpc.description = call.text("VpcName", vpc.name), call.text("Description", vpc.description)
    return {}


def delete_vpc(world: World, call: Call) -> dict[str, Value]:
    """DeleteVpc: refused while anything is inside."""
    vpc = find_vpc(world, call, call.required("VpcId"))
    if any(one.vpc == vpc.id for one in world.vswitches.values()):
        raise Problem("DependencyViolation.VSwitch", "The VPC has vSwitches.")
    if any(one.vpc == vpc.id for one in world.groups.values()):
        raise Problem("DependencyViolation.SecurityGroup", "The VPC has security groups.")
    if vpc.status != "Available":
        raise Problem("IncorrectVpcStatus", "The current status of the VPC does not support this operation.")
    refuse_dry_run(call)
    del world.vpcs[vpc.id]
    return {}


# --- vSwitches


def create_vswitch(world: World, call: Call) -> dict[str, Value]:
    """CreateVSwitch: one after the other in a VPC."""
    vpc = find_vpc(world, call, call.required("VpcId"))
    zone = call.required("ZoneId")
    if zone not in ZONES or ZONES[zone].id != vpc.region:
        raise not_found("InvalidZoneId.NotFound", f"The specified zone does not exist: {zone}.")
    inside = [one for one in world.vswitches.values() if one.vpc == vpc.id]
    cidr = call.required("CidrBlock")
    _check_range(vpc, inside, cidr)
    tags = read_tags(call.structs("Tag"))
    if vpc.status != "Available":
        raise Problem("IncorrectVpcStatus", "The current status of the VPC does not support this operation.")
    if any(one.status == "Pending" for one in inside):
        raise Problem("TaskConflict", "The operation conflicts with another that is under way in the VPC.")
    if len(inside) >= world.options.quotas.vswitches:
        raise Problem("QuotaExceeded.VSwitch", "vSwitch quota exceeded.")
    vswitch = VSwitch(
        id=world.new_id("vsw-", vpc.region, 21),
        region=vpc.region,
        vpc=vpc.id,
        zone=zone,
        cidr=cidr,
        created=call.now,
        name=call.text("VSwitchName"),
        description=call.text("Description"),
        tags=tags,
        due=call.now + world.options.duration("vswitch"),
    )
    world.vswitches[vswitch.id] = vswitch
    return {"VSwitchId": vswitch.id}


def _check_range(vpc: Vpc, inside: list[VSwitch], cidr: str) -> None:
    network = _network(cidr, "InvalidCidrBlock.Malformed")
    if not 16 <= network.prefixlen <= 29:
        raise Problem("InvalidCidrBlock", f"The specified CIDR block is not valid: {cidr}.")
    if not network.subnet_of(ipaddress.IPv4Network(vpc.cidr)):
        raise Problem("InvalidCidrBlock", f"{cidr} does not lie in the VPC's {vpc.cidr}.")
    if any(network.overlaps(ipaddress.IPv4Network(one.cidr)) for one in inside):
        raise Problem("InvalidCidrBlock.Overlapped", "The specified CIDR block overlaps with other subnets.")


def find_vswitch(world: World, vswitch_id: str) -> VSwitch:
    """A vSwitch that exists."""
    if vswitch_id not in world.vswitches:
        raise not_found("InvalidVSwitchId.NotFound", f"The specified vSwitch does not exist: {vswitch_id}.")
    return world.vswitches[vswitch_id]


def describe_vswitches(world: World, call: Call) -> dict[str, Value]:
    """DescribeVSwitches."""
    region, ids = require_region(call), comma_list(call, "VSwitchId")
    refuse_dry_run(call)
    rows = [
        one
        for one in world.vswitches.values()
        if one.region == region
        and (not ids or one.id in ids)
        and call.text("VpcId") in {"", one.vpc}
        and call.text("ZoneId") in {"", one.zone}
        and call.text("VSwitchName") in {"", one.name}
        and not call.flag("IsDefault")
        and has_tags(one.tags, call.structs("Tag"))
    ]
    shown, fields = by_number(call, rows, lambda one: _show_vswitch(world, one))
    return {"VSwitches": {"VSwitch": shown}, **fields}


def _show_vswitch(world: World, vswitch: VSwitch) -> dict[str, Value]:
    return {
        "VSwitchId": vswitch.id,
        "VSwitchName": vswitch.name,
        "VpcId": vswitch.vpc,
        "ZoneId": vswitch.zone,
        "CidrBlock": vswitch.cidr,
        "Status": vswitch.status,
        "Description": vswitch.description,
        "CreationTime": second(vswitch.created),
        "AvailableIpAddressCount": free_addresses(world, vswitch),
        "IsDefault": False,
        "ResourceGroupId": "rg-default",
        "RouteTable": {"RouteTableId": world.vpcs[vswitch.vpc].route_table, "RouteTableType": "System"},
        "Tags": plain_tags(vswitch.tags),
    }


def describe_vswitch_attributes(world: World, call: Call) -> dict[str, Value]:
    """DescribeVSwitchAttributes."""
    return _show_vswitch(world, find_vswitch(world, call.required("VSwitchId")))


def modify_vswitch_attribute(world: World, call: Call) -> dict[str, Value]:
    """ModifyVSwitchAttribute: the name and the description."""
    vswitch = find_vswitch(world, call.required("VSwitchId"))
    vswitch.name = call.text("VSwitchName", vswitch.name)
    vswitch.description = call.text("Description", vswitch.description)
    return {}


def delete_vswitch(world: World, call: Call) -> dict[str, Value]:
    """DeleteVSwitch: refused while an interface or a mount target has an address in it."""
    vswitch = find_vswitch(world, call.required("VSwitchId"))
    if world.interfaces_in(vswitch.id):
        raise Problem("DependencyViolation", "The vSwitch has network interfaces of instances.")
    if world.targets_in(vswitch.id):
        raise Problem("DependencyViolation.MountTarget", "The vSwitch has mount targets.")
    if vswitch.status != "Available":
        raise Problem("IncorrectVSwitchStatus", "The current status of the vSwitch does not support this.")
    refuse_dry_run(call)
    del world.vswitches[vswitch.id]
    return {}


def describe_zones(world: World, call: Call) -> dict[str, Value]:
    """DescribeZones of VPC."""
    del world
    region = require_region(call)
    zones: Value = [
        {"ZoneId": zone, "LocalName": f"{home.name} {zone[-1].upper()}", "ZoneType": "AvailabilityZone"}
        for zone, home in ZONES.items()
        if home.id == region
    ]
    return {"Zones": {"Zone": zones}}


ACTIONS: dict[tuple[str, str], Handler] = {
    ("vpc", "CreateVpc"): create_vpc,
    ("vpc", "DescribeVpcs"): describe_vpcs,
    ("vpc", "DescribeVpcAttribute"): describe_vpc_attribute,
    ("vpc", "ModifyVpcAttribute"): modify_vpc_attribute,
    ("vpc", "DeleteVpc"): delete_vpc,
    ("vpc", "CreateVSwitch"): create_vswitch,
    ("vpc", "DescribeVSwitches"): describe_vswitches,
    ("vpc", "DescribeVSwitchAttributes"): describe_vswitch_attributes,
    ("vpc", "ModifyVSwitchAttribute"): modify_vswitch_attribute,
    ("vpc", "DeleteVSwitch"): delete_vswitch,
    ("vpc", "DescribeZones"): describe_zones,
}
