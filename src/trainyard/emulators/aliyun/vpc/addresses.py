"""Elastic addresses: bought, bound to an instance, unbound, given back. They outlive instances, and cost on."""

from __future__ import annotations

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
from trainyard.emulators.aliyun.cloud import ledger
from trainyard.emulators.aliyun.cloud.records import Eip
from trainyard.emulators.aliyun.cloud.world import World


def allocate(world: World, call: Call) -> dict[str, Value]:
    """AllocateEipAddress."""
    region, bandwidth = require_region(call), call.text("Bandwidth", "5")
    charge = call.text("InternetChargeType", "PayByBandwidth")
    if not bandwidth.isdigit() or not 1 <= int(bandwidth) <= 500:
        raise Problem("InvalidParameter", "Specified Bandwidth is not valid: 1 to 500.")
    if charge not in {"PayByTraffic", "PayByBandwidth"}:
        raise Problem("InvalidInternetChargeType.ValueNotSupported", f"{charge} is not supported.")
    used = sum(eip.region == region for eip in world.eips.values())
    if used >= world.options.quotas.eips:
        raise Problem("QuotaExceeded.Eip", "Elastic IP address quota exceeded.")
    tags = read_tags(call.structs("Tag"))
    eip = Eip(
        id=world.new_id("eip-", region, 21),
        region=region,
        address=world.new_address(),
        bandwidth=int(bandwidth),
        created=call.now,
        internet_charge=charge,
        name=call.text("Name"),
        description=call.text("Description"),
        tags=tags,
    )
    world.eips[eip.id] = eip
    ledger.bill_eip(world, eip, call.now)
    return {"AllocationId": eip.id, "EipAddress": eip.address, "OrderId": 0, "ResourceGroupId": "rg-default"}


def _find(world: World, call: Call) -> Eip:
    eip = world.eips.get(call.required("AllocationId"))
    if eip is None:
        raise not_found("InvalidAllocationId.NotFound", "Specified allocation ID is not found.")
    return eip


def associate(world: World, call: Call) -> dict[str, Value]:
    """AssociateEipAddress: with an instance that runs or is stopped and has no other public address."""
    eip, instance = _find(world, call), world.instances.get(call.required("InstanceId"))
    if instance is None or instance.region != eip.region or instance.deleting:
        raise not_found("InvalidInstanceId.NotFound", "The specified InstanceId does not exist.")
    if eip.instance == instance.id:
        return {}
    if eip.status != "Available":
        raise Problem("IncorrectEipStatus", "Current elastic IP status does not support this operation.")
    if instance.status not in {"Running", "Stopped"}:
        raise Problem("IncorrectInstanceStatus", "Current instance status does not support this operation.")
    if instance.public_address or instance.eip:
        raise denied("InvalidAssociation.Duplicated", "The instance has a public address already.")
    instance.eip, eip.instance = eip.id, instance.id
    eip.status, eip.due = "Associating", call.now + world.options.duration("address")
    ledger.bill_eip(world, eip, call.now)
    return {}


def unassociate(world: World, call: Call) -> dict[str, Value]:
    """UnassociateEipAddress."""
    eip = _find(world, call)
    if eip.status != "InUse":
        raise Problem("IncorrectEipStatus", "Current elastic IP status does not support this operation.")
    instance = world.instances.get(eip.instance)
    if instance is not None:
        instance.eip = ""
    eip.instance = ""
    eip.status, eip.due = "Unassociating", call.now + world.options.duration("address")
    ledger.bill_eip(world, eip, call.now)
    return {}


def release(world: World, call: Call) -> dict[str, Value]:
    """ReleaseEipAddress."""
    eip = _find(world, call)
    if eip.status != "Available":
        raise Problem("IncorrectEipStatus", "Current elastic IP status does not support this operation.")
    ledger.close(world, eip.id, call.now)
    del world.eips[eip.id]
    return {}


def modify(world: World, call: Call) -> dict[str, Value]:
    """ModifyEipAddressAttribute: bandwidth, name, description."""
    eip, bandwidth = _find(world, call), call.text("Bandwidth")
    if bandwidth and (not bandwidth.isdigit() or not 1 <= int(bandwidth) <= 500):
        raise Problem("InvalidParameter", "Specified Bandwidth is not valid: 1 to 500.")
    eip.name, eip.description = call.text("Name", eip.name), call.text("Description", eip.description)
    if bandwidth and int(bandwidth) != eip.bandwidth:
        eip.bandwidth = int(bandwidth)
        ledger.bill_eip(world, eip, call.now)
    return {}


def describe(world: World, call: Call) -> dict[str, Value]:
    """DescribeEipAddresses."""
    region = require_region(call)
    ids, addresses = comma_list(call, "AllocationId", most=50), comma_list(call, "EipAddress", most=50)
    refuse_dry_run(call)
    rows = [
        eip
        for eip in world.eips.values()
        if eip.region == region
        and (not ids or eip.id in ids)
        and (not addresses or eip.address in addresses)
        and call.text("Status") in {"", eip.status}
        and call.text("AssociatedInstanceId") in {"", eip.instance}
        and call.text("EipName") in {"", eip.name}
        and has_tags(eip.tags, call.structs("Tag"))
    ]
    shown, fields = by_number(call, rows, _show, most=100)
    return {"EipAddresses": {"EipAddress": shown}, **fields}


def _show(eip: Eip) -> Value:
    return {
        "AllocationId": eip.id,
        "AllocationTime": second(eip.created),
        "IpAddress": eip.address,
        "Bandwidth": str(eip.bandwidth),
        "InternetChargeType": eip.internet_charge,
        "ChargeType": "PostPaid",
        "Status": eip.status,
        "InstanceId": eip.instance,
        "InstanceType": "EcsInstance" if eip.instance else "",
        "RegionId": eip.region,
        "Name": eip.name,
        "Description": eip.description,
        "ISP": "BGP",
        "BusinessStatus": "Normal",
        "ExpiredTime": "",
        "OperationLocks": {"LockReason": []},
        "Tags": plain_tags(eip.tags),
    }


ACTIONS: dict[tuple[str, str], Handler] = {
    ("vpc", "AllocateEipAddress"): allocate,
    ("vpc", "AssociateEipAddress"): associate,
    ("vpc", "UnassociateEipAddress"): unassociate,
    ("vpc", "ModifyEipAddressAttribute"): modify,
    ("vpc", "ReleaseEipAddress"): release,
    ("vpc", "DescribeEipAddresses"): describe,
}
