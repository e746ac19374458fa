"""NAS: file systems, mount targets, access groups and their rules. No bytes are stored here."""

from __future__ import annotations

from trainyard.emulators.aliyun.api.answers import (
    by_number,
    has_tags,
    plain_tags,
    read_tags,
    refuse_dry_run,
    require_region,
    second,
)
from trainyard.emulators.aliyun.api.call import Call, Handler, Value
from trainyard.emulators.aliyun.api.problems import Problem, denied, not_found
from trainyard.emulators.aliyun.cloud.catalogue import REGIONS, ZONES
from trainyard.emulators.aliyun.cloud.records import AccessGroup, AccessRule, FileSystem, MountTarget
from trainyard.emulators.aliyun.cloud.world import World

DEFAULT_GROUP = "DEFAULT_VPC_GROUP_NAME"
_STORAGE = {
    "standard": {"Performance", "Capacity", "Premium"},
    "extreme": {"standard", "advance"},
    "cpfs": {"advance_100", "advance_200"},
}
_MOST = 100


def _require_service(world: World) -> None:
    if not world.options.account.nas_activated:
        raise denied("User.Disabled", "The NAS service is not activated.")


def create_file_system(world: World, call: Call) -> dict[str, Value]:
    """CreateFileSystem."""
    region = require_region(call)
    _require_service(world)
    kind, storage = call.text("FileSystemType", "standard"), call.required("StorageType")
    protocol, zone = call.required("ProtocolType"), call.text("ZoneId")
    if kind not in _STORAGE or storage not in _STORAGE[kind]:
        raise Problem("InvalidParameter.StorageType", f"{kind} has no storage type {storage}.")
    if protocol not in {"NFS", "SMB", "cpfs"}:
        raise Problem("InvalidParameter.ProtocolType", f"The protocol {protocol} is not supported.")
    if zone and (zone not in ZONES or ZONES[zone].id != region):
        raise not_found("InvalidZone.NotFound", f"The specified zone does not exist: {zone}.")
    if kind == "extreme" and not call.number("Capacity"):
        raise Problem("MissingParameter.Capacity", "Capacity is mandatory for an extreme file system.")
    if len(world.file_systems) >= world.options.quotas.file_systems:
        raise denied(
            "OperationDenied.FileSystemCountsExceeded", "The number of file systems exceeds the quota."
        )
    tags = read_tags(call.structs("Tag"))
    refuse_dry_run(call)
    prefix = "" if kind == "standard" else f"{kind}-"
    system = FileSystem(
        id=prefix + world.new_id("", "", 10),
        region=region,
        zone=zone or REGIONS[region].zone_ids()[0],
        kind=kind,
        protocol=protocol,
        storage=storage,
        created=call.now,
        description=call.text("Description"),
        capacity=call.number("Capacity"),
        tags=tags,
        due=call.now + world.options.duration("file_system"),
    )
    world.file_systems[system.id] = system
    return {"FileSystemId": system.id}


def _find(world: World, call: Call) -> FileSystem:
    system = world.file_systems.get(call.required("FileSystemId"))
    if system is None or system.region != call.region:
        raise not_found("InvalidFileSystem.NotFound", "The specified file system does not exist.")
    return system


def describe_file_systems(world: World, call: Call) -> dict[str, Value]:
    """DescribeFileSystems."""
    region = require_region(call)
    _require_service(world)
    ids = [one.strip() for one in call.text("FileSystemId").split(",") if one.strip()]
    kinds = call.text("FileSystemType", "all").split(",")
    rows = [
        system
        for system in world.file_systems.values()
        if system.region == region
        and (not ids or system.id in ids)
        and ("all" in kinds or system.kind in kinds)
        and call.text("StorageType") in {"", system.storage}
        and call.text("VpcId") in {"", *(target.vpc for target in system.targets)}
        and has_tags(system.tags, call.structs("Tag"))
    ]
    shown, fields = by_number(call, rows, _show_system, most=_MOST)
    return {"FileSystems": {"FileSystem": shown}, **fields}


def _show_system(system: FileSystem) -> Value:
    targets: Value = [
        {**_show_target(target), "AccessGroupName": target.access_group} for target in system.targets
    ]
    return {
        "FileSystemId": system.id,
        "FileSystemType": system.kind,
        "ProtocolType": system.protocol,
        "StorageType": system.storage,
        "RegionId": system.region,
        "ZoneId": system.zone,
        "Status": system.status,
        "Description": system.description,
        "CreateTime": second(system.created),
        "ChargeType": "PayAsYouGo",
        "Capacity": system.capacity,
        "MeteredSize": 0,
        "EncryptType": 0,
        "ExpiredTime": "",
        "VpcId": next((target.vpc for target in system.targets), ""),
        "MountTargets": {"MountTarget": targets},
        "Packages": {"Package": []},
        "Tags": plain_tags(system.tags),
    }


def _show_target(target: MountTarget) -> dict[str, Value]:
    return {
        "MountTargetDomain": target.domain,
        "NetworkType": target.network,
        "Status": target.status,
        "VpcId": target.vpc,
        "VswId": target.vswitch,
    }


def modify_file_system(world: World, call: Call) -> dict[str, Value]:
    """ModifyFileSystem: the description."""
    system = _find(world, call)
    system.description = call.text("Description", system.description)
    return {}


def delete_file_system(world: World, call: Call) -> dict[str, Value]:
    """DeleteFileSystem: only without mount targets."""
    system = _find(world, call)
    if system.targets:
        raise denied("OperationDenied.MountTargetNotEmpty", "The file system has mount targets.")
    if system.status == "Pending":
        raise denied("OperationDenied.InvalidState", "The file system is being created.")
    del world.file_systems[system.id]
    return {}


# --- mount targets


def create_mount_target(world: World, call: Call) -> dict[str, Value]:
    """CreateMountTarget: asynchronous, and not protected by a token: calling twice makes two."""
    system, network = _find(world, call), call.required("NetworkType")
    group = call.text("AccessGroupName", DEFAULT_GROUP)
    if network.lower() != "vpc":
        raise Problem("InvalidParameter.NetworkType", "Only mount targets in a VPC are supported.")
    vswitch = world.vswitches.get(call.required("VSwitchId"))
    if vswitch is None or vswitch.vpc != call.required("VpcId") or vswitch.region != system.region:
        raise not_found("InvalidVSwitchId.NotFound", "The specified vSwitch does not exist in the VPC.")
    if vswitch.status != "Available":
        raise denied("OperationDenied.InvalidState", "The vSwitch is being created.")
    if group != DEFAULT_GROUP and f"{system.region}/{group}" not in world.access_groups:
        raise not_found("InvalidAccessGroup.NotFound", f"The access group does not exist: {group}.")
    if system.status != "Running":
        raise denied("OperationDenied.InvalidState", "The state of the file system does not permit this.")
    if len(system.targets) >= world.options.quotas.mount_targets:
        raise denied("OperationDenied.MountTargetCountsExceeded", "The file system has its mount targets.")
    refuse_dry_run(call)
    target = MountTarget(
        domain=f"{system.id}-{world.new_id('', '', 5)}.{system.region}.nas.aliyuncs.com",
        vpc=vswitch.vpc,
        vswitch=vswitch.id,
        access_group=group,
        due=call.now + world.options.duration("mount_target"),
    )
    system.targets.append(target)
    return {"MountTargetDomain": target.domain, "MountTargetExtra": {}}


def describe_mount_targets(world: World, call: Call) -> dict[str, Value]:
    """DescribeMountTargets."""
    system = _find(world, call)
    rows = [one for one in system.targets if call.text("MountTargetDomain") in {"", one.domain}]
    shown, fields = by_number(
        call, rows, lambda one: {**_show_target(one), "AccessGroup": one.access_group}, most=_MOST
    )
    return {"MountTargets": {"MountTarget": shown}, **fields}


def delete_mount_target(world: World, call: Call) -> dict[str, Value]:
    """DeleteMountTarget."""
    system, domain = _find(world, call), call.required("MountTargetDomain")
    target = next((one for one in system.targets if one.domain == domain), None)
    if target is None:
        raise not_found("InvalidMountTarget.NotFound", "The specified mount target does not exist.")
    if target.status == "Pending":
        raise denied("OperationDenied.InvalidState", "The mount target is being created.")
    system.targets.remove(target)
    return {}


def modify_mount_target(world: World, call: Call) -> dict[str, Value]:
    """ModifyMountTarget: its access group, and whether it can be used."""
    system, domain = _find(world, call), call.required("MountTargetDomain")
    group, status = call.text("AccessGroupName"), call.text("Status")
    target = next((one for one in system.targets if one.domain == domain), None)
    if target is None:
        raise not_found("InvalidMountTarget.NotFound", "The specified mount target does not exist.")
    if group and group != DEFAULT_GROUP and f"{system.region}/{group}" not in world.access_groups:
        raise not_found("InvalidAccessGroup.NotFound", f"The access group does not exist: {group}.")
    if status not in {"", "Active", "Inactive"} or target.status == "Pending":
        raise denied("OperationDenied.InvalidState", "The state of the mount target does not permit this.")
    target.access_group, target.status = group or target.access_group, status or target.status
    return {}


# --- access groups


def create_access_group(world: World, call: Call) -> dict[str, Value]:
    """CreateAccessGroup."""
    region, name = require_region(call), call.required("AccessGroupName")
    if name == DEFAULT_GROUP or f"{region}/{name}" in world.access_groups:
        raise denied("InvalidAccessGroup.AlreadyExisted", f"The access group exists already: {name}.")
    group = AccessGroup(
        region=region,
        name=name,
        kind=call.required("AccessGroupType"),
        file_system_kind=call.text("FileSystemType", "standard"),
        description=call.text("Description"),
        created=call.now,
    )
    world.access_groups[f"{region}/{name}"] = group
    return {"AccessGroupName": name}


def _group(world: World, call: Call) -> AccessGroup:
    group = world.access_groups.get(f"{call.region}/{call.required('AccessGroupName')}")
    if group is None:
        raise not_found("InvalidAccessGroup.NotFound", "The specified access group does not exist.")
    return group


def _groups(world: World, call: Call) -> list[AccessGroup]:
    default = AccessGroup(
        region=call.region,
        name=DEFAULT_GROUP,
        description="default vpc group",
        created=call.now.replace(year=2020, month=1, day=1, hour=0, minute=0, second=0, microsecond=0),
        rules=[AccessRule(id="1", source_cidr="0.0.0.0/0", priority=1)],
    )
    return [default, *(one for one in world.access_groups.values() if one.region == call.region)]


def describe_access_groups(world: World, call: Call) -> dict[str, Value]:
    """DescribeAccessGroups."""
    rows = [one for one in _groups(world, call) if call.text("AccessGroupName") in {"", one.name}]
    uses = [target.access_group for system in world.file_systems.values() for target in system.targets]

    def show(group: AccessGroup) -> Value:
        return {
            "AccessGroupName": group.name,
            "AccessGroupType": group.kind,
            "FileSystemType": group.file_system_kind,
            "Description": group.description,
            "RegionId": group.region,
            "CreateTime": second(group.created),
            "RuleCount": len(group.rules),
            "MountTargetCount": uses.count(group.name),
        }

    shown, fields = by_number(call, rows, show, most=_MOST)
    return {"AccessGroups": {"AccessGroup": shown}, **fields}


def delete_access_group(world: World, call: Call) -> dict[str, Value]:
    """DeleteAccessGroup: only if no mount target uses it."""
    group = _group(world, call)
    if any(
        one.access_group == group.name for system in world.file_systems.values() for one in system.targets
    ):
        raise denied("OperationDenied.AccessGroupAttachedToMountTarget", "A mount target uses the group.")
    del world.access_groups[f"{group.region}/{group.name}"]
    return {}


def create_access_rule(world: World, call: Call) -> dict[str, Value]:
    """CreateAccessRule."""
    group = _group(world, call)
    rule = AccessRule(
        id=str(max((int(one.id) for one in group.rules), default=0) + 1),
        source_cidr=call.text("SourceCidrIp"),
        access=call.text("RWAccessType", "RDWR"),
        user=call.text("UserAccessType", "no_squash"),
        priority=call.number("Priority", 1),
    )
    if not rule.source_cidr and not call.text("Ipv6SourceCidrIp"):
        raise Problem("MissingSourceCidrIp", "SourceCidrIp is mandatory for this action.")
    group.rules.append(rule)
    return {"AccessRuleId": rule.id}


def delete_access_rule(world: World, call: Call) -> dict[str, Value]:
    """DeleteAccessRule."""
    group, rule_id = _group(world, call), call.required("AccessRuleId")
    if rule_id not in {rule.id for rule in group.rules}:
        raise not_found("InvalidAccessRule.NotFound", "The specified access rule does not exist.")
    group.rules = [rule for rule in group.rules if rule.id != rule_id]
    return {}


def describe_access_rules(world: World, call: Call) -> dict[str, Value]:
    """DescribeAccessRules."""
    name = call.required("AccessGroupName")
    group = next((one for one in _groups(world, call) if one.name == name), None)
    if group is None:
        raise not_found("InvalidAccessGroup.NotFound", "The specified access group does not exist.")
    rows = [rule for rule in group.rules if call.text("AccessRuleId") in {"", rule.id}]

    def show(rule: AccessRule) -> Value:
        return {
            "AccessRuleId": rule.id,
            "AccessGroupName": name,
            "SourceCidrIp": rule.source_cidr,
            "RWAccess": rule.access,
            "UserAccess": rule.user,
            "Priority": rule.priority,
            "RegionId": call.region,
        }

    shown, fields = by_number(call, rows, show, most=_MOST)
    return {"AccessRules": {"AccessRule": shown}, **fields}


# --- places


def describe_zones(world: World, call: Call) -> dict[str, Value]:
    """DescribeZones of NAS."""
    del world
    region = require_region(call)
    kinds: Value = [
        {"ProtocolType": "nfs", "StorageType": storage} for storage in ("Performance", "Capacity", "Premium")
    ]
    rows: Value = [
        {
            "ZoneId": zone,
            "Performance": {"Protocol": ["nfs", "smb"]},
            "Capacity": {"Protocol": ["nfs", "smb"]},
            "InstanceTypes": {"InstanceType": kinds},
        }
        for zone in REGIONS[region].zone_ids()
    ]
    return {"Zones": {"Zone": rows}}


def describe_regions(world: World, call: Call) -> dict[str, Value]:
    """DescribeRegions of NAS."""
    del world
    shown, fields = by_number(
        call,
        list(REGIONS.values()),
        lambda one: {
            "RegionId": one.id,
            "LocalName": one.name,
            "RegionEndpoint": f"nas.{one.id}.aliyuncs.com",
        },
        most=_MOST,
    )
    return {"Regions": {"Region": shown}, **fields}


ACTIONS: dict[tuple[str, str], Handler] = {
    ("nas", "CreateFileSystem"): create_file_system,
    ("nas", "DescribeFileSystems"): describe_file_systems,
    ("nas", "ModifyFileSystem"): modify_file_system,
    ("nas", "DeleteFileSystem"): delete_file_system,
    ("nas", "CreateMountTarget"): create_mount_target,
    ("nas", "DescribeMountTargets"): describe_mount_targets,
    ("nas", "DeleteMountTarget"): delete_mount_target,
    ("nas", "CreateAccessGroup"): create_access_group,
    ("nas", "DescribeAccessGroups"): describe_access_groups,
    ("nas", "DeleteAccessGroup"): delete_access_group,
    ("nas", "CreateAccessRule"): create_access_rule,
    ("nas", "DescribeAccessRules"): describe_access_rules,
    ("nas", "DeleteAccessRule"): delete_access_rule,
    ("nas", "ModifyMountTarget"): modify_mount_target,
    ("nas", "DescribeZones"): describe_zones,
    ("nas", "DescribeRegions"): describe_regions,
}
