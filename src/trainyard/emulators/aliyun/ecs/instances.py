"""Actions that describe instances or change their names, groups, addresses and release times.

Making them is `launch.py`'s matter, starting, stopping and deleting `power.py`'s.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta

from trainyard.emulators.aliyun.api.answers import (
    by_number,
    by_token,
    ecs_tags,
    has_tags,
    json_list,
    matches,
    minute,
    refuse_dry_run,
    require_region,
)
from trainyard.emulators.aliyun.api.call import Call, Handler, Value, text
from trainyard.emulators.aliyun.api.problems import Problem, denied, not_found
from trainyard.emulators.aliyun.cloud import ledger, stock
from trainyard.emulators.aliyun.cloud.catalogue import TYPES
from trainyard.emulators.aliyun.cloud.records import Instance
from trainyard.emulators.aliyun.cloud.timeline import is_visible
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.ecs import naming
from trainyard.emulators.aliyun.ecs.images import images_in
from trainyard.emulators.aliyun.ecs.launch import check_password, check_user_data, read_release_time

STATUSES = frozenset({"Pending", "Starting", "Running", "Stopping", "Stopped"})
LOCKS = frozenset({"financial", "security", "Recycling", "recycling", "dedicatedhostfinancial", "refunded"})
CONSOLE_LIMIT = 64 * 1024
BEIJING = timedelta(hours=8)  # the time in which the console is dated
_MOST_BY_TAG = 1000  # beyond it the documents send one to ListTagResources
_FILTER_KEYS = frozenset({"CreationStartTime", "CreationEndTime"})


def find_instance(world: World, call: Call, instance_id: str) -> Instance:
    """An instance that exists, in the region if the call names one."""
    instance = world.instances.get(instance_id)
    foreign = instance is not None and call.text("RegionId") not in {"", instance.region}
    if instance is None or foreign:
        raise not_found(
            "InvalidInstanceId.NotFound", f"The specified InstanceId does not exist: {instance_id}."
        )
    return instance


def check_lock(world: World, instance: Instance) -> None:
    """Refuse what locked instances and overdue accounts may not do."""
    if "security" in instance.locks:
        raise denied("InstanceLockedForSecurity", "The instance is locked due to security.")
    if "financial" in instance.locks or world.options.account.overdue:
        raise denied("InstanceExpiredOrInArrears", "The instance has expired, or the account is in arrears.")


# --- describing


def visible_instances(world: World, call: Call, ids: Sequence[str] | None) -> list[Instance]:
    """The instances of the call's region that are shown by now, only these where ids are given: [] is none of them."""
    region = require_region(call)
    return [
        one
        for one in world.instances.values()
        if one.region == region and (ids is None or one.id in ids) and is_visible(one, call.now)
    ]


def describe_instances(world: World, call: Call) -> dict[str, Value]:
    """DescribeInstances."""
    region = require_region(call)
    _check_filters(call)
    ids = json_list(call, "InstanceIds")
    refuse_dry_run(call)
    rows = [one for one in visible_instances(world, call, ids) if _fits(world, one, call)]
    if call.structs("Tag"):
        rows = rows[:_MOST_BY_TAG]
    rows.reverse()  # the newest first, as the provider's lists are
    names = {image.id: image.os_name for image in images_in(world, region)}
    shown, fields = by_token(
        call, rows, lambda one: _show(world, one, names), name=lambda one: one.id, most=100, least=10
    )
    return {"Instances": {"Instance": shown}, **fields}


def _check_filters(call: Call) -> None:
    if call.text("Status") not in {"", *STATUSES}:
        raise not_found("InvalidStatus.NotFound", "The specified Status does not exist.")
    if call.text("LockReason") not in {"", *LOCKS}:
        raise not_found("InvalidLockReason.NotFound", "The specified LockReason does not exist.")
    if call.text("InstanceChargeType") not in {"", "PostPaid", "PrePaid"}:
        raise not_found("InvalidInstanceChargeType.NotFound", "The InstanceChargeType does not exist.")
    if call.text("InstanceNetworkType") not in {"", "vpc", "classic"}:
        raise not_found("InvalidNetworkType.NotFound", "The specified InstanceNetworkType does not exist.")
    if any(text(one, "Key") not in _FILTER_KEYS for one in call.structs("Filter")):
        raise not_found("InvalidFilterKey.NotFound", "The specified filter key does not exist.")


def _fits(world: World, instance: Instance, call: Call) -> bool:
    exact = {
        "Status": instance.status,
        "VpcId": instance.vpc,
        "VSwitchId": instance.vswitch,
        "ZoneId": instance.zone,
        "ImageId": instance.image,
        "InstanceType": instance.type,
        "InstanceTypeFamily": TYPES[instance.type].family,
        "InstanceChargeType": instance.charge,
        "InternetChargeType": instance.internet_charge,
        "InstanceNetworkType": "vpc",
        "KeyPairName": instance.key_pair,
    }
    return (
        all(call.text(name) in {"", value} for name, value in exact.items())
        and matches(call.text("InstanceName"), instance.name)
        and call.text("SecurityGroupId") in {"", *instance.groups}
        and call.text("LockReason") in {"", *instance.locks}
        and has_tags(instance.tags, call.structs("Tag"))
        and _fits_addresses(world, instance, call)
        and _fits_times(instance, call)
    )


def _fits_addresses(world: World, instance: Instance, call: Call) -> bool:
    eip = world.eips.get(instance.eip)
    found = {
        "PrivateIpAddresses": instance.address,
        "PublicIpAddresses": instance.public_address,
        "EipAddresses": eip.address if eip else "",
    }
    for name, value in found.items():
        wanted = json_list(call, name)
        if wanted is not None and value not in wanted:
            return False
    return True


def _fits_times(instance: Instance, call: Call) -> bool:
    for one in call.structs("Filter"):
        created, bound = minute(instance.created), text(one, "Value")
        late = text(one, "Key") == "CreationEndTime" and created > bound
        early = text(one, "Key") == "CreationStartTime" and created < bound
        if late or early:
            return False
    return True


def _show(world: World, instance: Instance, systems: dict[str, str]) -> dict[str, Value]:
    return {
        **_show_identity(instance, systems.get(instance.image, "")),
        **_show_terms(instance),
        **_show_network(world, instance),
        **({"Tags": ecs_tags(instance.tags)} if instance.tags else {}),  # the wrapper is missing where empty
    }


def _show_identity(instance: Instance, system: str) -> dict[str, Value]:
    """What it is."""
    kind = TYPES[instance.type]
    return {
        "InstanceId": instance.id,
        "InstanceName": instance.name,
        "HostName": instance.hostname,
        "Description": instance.description,
        "Status": instance.status,
        "StoppedMode": instance.stopped_mode,
        "RegionId": instance.region,
        "ZoneId": instance.zone,
        "InstanceType": instance.type,
        "InstanceTypeFamily": kind.family,
        "Cpu": kind.cpus,
        "Memory": int(kind.memory_gib * 1024),
        "GPUAmount": kind.gpus,
        "GPUSpec": f"NVIDIA {kind.gpu}" if kind.gpu else "",
        "LocalStorageAmount": kind.local_disks,
        "LocalStorageCapacity": kind.local_disks * kind.local_gib,
        "ImageId": instance.image,
        "OSName": system,
        "OSNameEn": system.replace("64位", "64 bit"),
        "OSType": "linux",
        "KeyPairName": instance.key_pair,
        "SerialNumber": instance.id.removeprefix("i-"),
        "IoOptimized": True,
        "DeviceAvailable": True,
        "HpcClusterId": "",
        "ClusterId": "",
        "CreditSpecification": "",
        "ImageOptions": {"LoginAsNonRoot": instance.login_as_non_root},
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": instance.http_tokens},
    }


def _show_terms(instance: Instance) -> dict[str, Value]:
    """On which terms it is had."""
    locks: Value = [{"LockReason": reason, "LockMsg": ""} for reason in instance.locks]
    return {
        "CreationTime": minute(instance.created),
        "StartTime": minute(instance.started),
        "ExpiredTime": minute(instance.expires) or "2099-12-31T15:59Z",
        "AutoReleaseTime": minute(instance.auto_release),
        "InstanceChargeType": instance.charge,
        "SpotStrategy": instance.spot_strategy,
        "SpotPriceLimit": float(instance.spot_limit or 0),
        "SpotDuration": instance.spot_duration,
        "SpotInterruptionBehavior": instance.spot_behavior,
        "DeletionProtection": instance.deletion_protection,
        "DeploymentSetId": instance.deployment_set,
        "ResourceGroupId": instance.resource_group,
        "Recyclable": "Recycling" in instance.locks,
        "SaleCycle": "",
        "OperationLocks": {"LockReason": locks},
    }


def _show_network(world: World, instance: Instance) -> dict[str, Value]:
    """Where it is reached."""
    public: list[Value] = [instance.public_address] if instance.public_address else []
    return {
        "InstanceNetworkType": "vpc",
        "InternetChargeType": instance.internet_charge,
        "InternetMaxBandwidthIn": instance.bandwidth_in,
        "InternetMaxBandwidthOut": instance.bandwidth_out,
        "VlanId": "",
        "PublicIpAddress": {"IpAddress": public},
        "InnerIpAddress": {"IpAddress": []},
        "RdmaIpAddress": {"IpAddress": []},
        "EipAddress": _show_eip(world, instance),
        "VpcAttributes": {
            "VpcId": instance.vpc,
            "VSwitchId": instance.vswitch,
            "NatIpAddress": "",
            "PrivateIpAddress": {"IpAddress": [instance.address]},
        },
        "SecurityGroupIds": {"SecurityGroupId": list(instance.groups)},
        "NetworkInterfaces": {"NetworkInterface": [_show_card(instance)]},
    }


def _show_eip(world: World, instance: Instance) -> Value:
    eip = world.eips.get(instance.eip)
    if eip is None:
        return {"AllocationId": "", "IpAddress": "", "InternetChargeType": ""}
    return {
        "AllocationId": eip.id,
        "IpAddress": eip.address,
        "Bandwidth": eip.bandwidth,
        "InternetChargeType": eip.internet_charge,
        "IsSupportUnassociate": True,
    }


def hardware_address(instance: Instance) -> str:
    """An Ethernet address that follows from the private one."""
    tail = [f"{int(part):02x}" for part in instance.address.split(".")]
    return ":".join(["00", "16", *tail])


def _show_card(instance: Instance) -> Value:
    return {
        "NetworkInterfaceId": instance.interface,
        "MacAddress": hardware_address(instance),
        "PrimaryIpAddress": instance.address,
        "Type": "Primary",
        "PrivateIpSets": {"PrivateIpSet": [{"PrivateIpAddress": instance.address, "Primary": True}]},
    }


def describe_instance_status(world: World, call: Call) -> dict[str, Value]:
    """DescribeInstanceStatus."""
    ids = call.texts("InstanceId") or None
    rows = [one for one in visible_instances(world, call, ids) if call.text("ZoneId") in {"", one.zone}]
    shown, fields = by_number(call, rows, lambda one: {"InstanceId": one.id, "Status": one.status})
    return {"InstanceStatuses": {"InstanceStatus": shown}, **fields}


def describe_instance_attribute(world: World, call: Call) -> dict[str, Value]:
    """DescribeInstanceAttribute: one instance, unlisted fields as in DescribeInstances."""
    instance = find_instance(world, call, call.required("InstanceId"))
    names = {image.id: image.os_name for image in images_in(world, instance.region)}
    return _show(world, instance, names)


def describe_user_data(world: World, call: Call) -> dict[str, Value]:
    """DescribeUserData."""
    instance = find_instance(world, call, call.required("InstanceId"))
    return {"InstanceId": instance.id, "RegionId": instance.region, "UserData": instance.user_data}


def get_console_output(world: World, call: Call) -> dict[str, Value]:
    """GetInstanceConsoleOutput: what was printed since the last boot, the last of it where it is much."""
    instance = find_instance(world, call, call.required("InstanceId"))
    printed = world.read_console(instance.id)[-CONSOLE_LIMIT:]
    beijing = (call.now + BEIJING).strftime("%Y-%m-%d %H:%M:%S")
    return {
        "InstanceId": instance.id,
        "ConsoleOutput": base64.b64encode(printed).decode(),
        "LastUpdateTime": beijing,
    }


def describe_network_interfaces(world: World, call: Call) -> dict[str, Value]:
    """DescribeNetworkInterfaces: the primary ones."""
    region, ids = require_region(call), call.texts("NetworkInterfaceId")
    rows = [
        one
        for one in world.instances.values()
        if one.region == region
        and (not ids or one.interface in ids)
        and call.text("InstanceId") in {"", one.id}
        and call.text("VpcId") in {"", one.vpc}
        and call.text("VSwitchId") in {"", one.vswitch}
        and call.text("SecurityGroupId") in {"", *one.groups}
        and has_tags(one.interface_tags, call.structs("Tag"))
    ]
    shown, fields = by_token(call, rows, _show_interface, name=lambda one: one.interface, most=500)
    return {"NetworkInterfaceSets": {"NetworkInterfaceSet": shown}, **fields}


def _show_interface(instance: Instance) -> Value:
    return {
        "NetworkInterfaceId": instance.interface,
        "InstanceId": instance.id,
        "VpcId": instance.vpc,
        "VSwitchId": instance.vswitch,
        "ZoneId": instance.zone,
        "Type": "Primary",
        "Status": "InUse",
        "MacAddress": hardware_address(instance),
        "PrivateIpAddress": instance.address,
        "PrivateIpSets": {"PrivateIpSet": [{"PrivateIpAddress": instance.address, "Primary": True}]},
        "AssociatedPublicIp": {"PublicIpAddress": instance.public_address},
        "SecurityGroupIds": {"SecurityGroupId": list(instance.groups)},
        "CreationTime": minute(instance.created),
        "DeleteOnRelease": True,
        "Tags": ecs_tags(instance.interface_tags),
    }


# --- changing


def modify_instance_attribute(world: World, call: Call) -> dict[str, Value]:
    """ModifyInstanceAttribute: the name at once, host name and password at the next boot, UserData when stopped."""
    instance = find_instance(world, call, call.required("InstanceId"))
    name, hostname, password = call.text("InstanceName"), call.text("HostName"), call.text("Password")
    groups = call.texts("SecurityGroupIds")
    if name:
        naming.check_name(name)
    if hostname:
        naming.check_hostname(hostname)
    check_password(password)
    for group_id in groups:
        group = world.groups.get(group_id)
        if group is None or group.vpc != instance.vpc:
            raise not_found("InvalidSecurityGroupId.NotFound", f"There is no security group {group_id}.")
    if call.given("UserData"):
        if instance.status != "Stopped":
            raise denied("IncorrectInstanceStatus", "UserData can be changed on a stopped instance only.")
        check_user_data(call.text("UserData"))
    if call.given("DeletionProtection") and instance.charge != "PostPaid":
        raise Problem("ChargeTypeViolation", "Only pay-as-you-go instances have deletion protection.")
    instance.name = name or instance.name
    instance.user_data = call.text("UserData", instance.user_data)
    instance.description = call.text("Description", instance.description)
    instance.next_hostname = hostname or instance.next_hostname
    instance.next_password = password or instance.next_password
    instance.groups = groups or instance.groups
    instance.deletion_protection = call.flag("DeletionProtection", default=instance.deletion_protection)
    return {}


def modify_auto_release(world: World, call: Call) -> dict[str, Value]:
    """ModifyInstanceAutoReleaseTime: without a time it is taken back."""
    instance = find_instance(world, call, call.required("InstanceId"))
    if instance.charge != "PostPaid":
        raise denied("ChargeTypeViolation", "The operation is not permitted due to the charge type.")
    moment = read_release_time(call)
    if not instance.deleting:
        instance.auto_release = moment
    return {}


def allocate_public_address(world: World, call: Call) -> dict[str, Value]:
    """AllocatePublicIpAddress."""
    instance = find_instance(world, call, call.required("InstanceId"))
    if instance.status not in {"Running", "Stopped"} or instance.deleting or not stock.holds(instance):
        raise denied("IncorrectInstanceStatus", "The current status of the resource does not support this.")
    check_lock(world, instance)
    if instance.public_address or instance.eip:
        raise denied("AllocatedAlready", "The instance has a public address already.")
    if not instance.bandwidth_out:
        raise Problem("AllocateIpInvalidInstanceBandwidth", "The instance has no public bandwidth.")
    instance.public_address = world.new_address()
    ledger.bill_bandwidth(world, instance, call.now)
    return {"IpAddress": instance.public_address}


def modify_network_spec(world: World, call: Call) -> dict[str, Value]:
    """ModifyInstanceNetworkSpec: bandwidth, and an address if one is wanted; bandwidth 0 gives it back."""
    instance = find_instance(world, call, call.required("InstanceId"))
    bandwidth = call.number("InternetMaxBandwidthOut", instance.bandwidth_out)
    if not 0 <= bandwidth <= 100:
        raise Problem("InvalidInternetMaxBandwidthOut.ValueNotSupported", "0 to 100 Mbit/s are supported.")
    check_lock(world, instance)
    if instance.deleting:
        raise denied("IncorrectInstanceStatus", "The instance is being released.")
    instance.bandwidth_out = bandwidth
    instance.bandwidth_in = call.number("InternetMaxBandwidthIn", instance.bandwidth_in)
    instance.internet_charge = call.text("NetworkChargeType", instance.internet_charge)
    if not bandwidth:
        instance.public_address = ""
    elif (
        call.flag("AllocatePublicIp")
        and not (instance.public_address or instance.eip)
        and stock.holds(instance)
    ):
        instance.public_address = world.new_address()
    ledger.bill_bandwidth(world, instance, call.now)
    return {"OrderId": ""}


def modify_metadata(world: World, call: Call) -> dict[str, Value]:
    """ModifyInstanceMetadataOptions: whether the metadata wants a token."""
    instance, tokens = find_instance(world, call, call.required("InstanceId")), call.text("HttpTokens")
    if tokens not in {"", "optional", "required"}:
        raise Problem(
            "InvalidHttpTokens.NotSupported", f"HttpTokens is neither optional nor required: {tokens}."
        )
    instance.http_tokens = tokens or instance.http_tokens
    return {}


def modify_spec(world: World, call: Call) -> dict[str, Value]:
    """ModifyInstanceSpec: another type for a stopped instance, if there is stock."""
    instance, name = find_instance(world, call, call.required("InstanceId")), call.text("InstanceType")
    if name not in TYPES:
        raise Problem("InvalidInstanceType.ValueNotSupported", f"The InstanceType {name} is not supported.")
    if instance.status != "Stopped" or instance.deleting:
        raise denied("IncorrectInstanceStatus", "The type can be changed on a stopped instance only.")
    stock.require_on_sale(instance.zone, name, world)
    if not stock.holds(instance):
        instance.type = name
        return {}
    if name != instance.type:
        stock.grant(world, instance.zone, name, spot=instance.is_spot, wanted=1, least=1)
        _require_cores(world, instance, name)
    instance.type = name
    ledger.close(world, instance.id, call.now)
    ledger.bill_instance(world, instance, call.now)
    return {}


def _require_cores(world: World, instance: Instance, name: str) -> None:
    quotas = world.options.quotas
    limit = quotas.spot_vcpus if instance.is_spot else quotas.vcpus
    used = stock.used_vcpus(world, instance.region, spot=instance.is_spot)
    if used - TYPES[instance.type].cpus + TYPES[name].cpus > limit:
        raise denied("QuotaExceed.ElasticQuota", f"The number of vCPUs exceeds the quota of {limit}.")


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "DescribeInstances"): describe_instances,
    ("ecs", "DescribeInstanceStatus"): describe_instance_status,
    ("ecs", "DescribeInstanceAttribute"): describe_instance_attribute,
    ("ecs", "DescribeUserData"): describe_user_data,
    ("ecs", "GetInstanceConsoleOutput"): get_console_output,
    ("ecs", "DescribeNetworkInterfaces"): describe_network_interfaces,
    ("ecs", "ModifyInstanceAttribute"): modify_instance_attribute,
    ("ecs", "ModifyInstanceAutoReleaseTime"): modify_auto_release,
    ("ecs", "AllocatePublicIpAddress"): allocate_public_address,
    ("ecs", "ModifyInstanceNetworkSpec"): modify_network_spec,
    ("ecs", "ModifyInstanceMetadataOptions"): modify_metadata,
    ("ecs", "ModifyInstanceSpec"): modify_spec,
}
