"""Disks. Those that come with an instance are planned here for `launch.py`; snapshots stand in `snapshots.py`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from trainyard.emulators.aliyun.api.answers import (
    by_token,
    ecs_tags,
    has_tags,
    json_list,
    matches,
    minute,
    read_tags,
    refuse_dry_run,
    require_region,
    second,
)
from trainyard.emulators.aliyun.api.call import Call, Handler, Value, flag, number, text
from trainyard.emulators.aliyun.api.problems import Problem, denied, not_found
from trainyard.emulators.aliyun.cloud import ledger
from trainyard.emulators.aliyun.cloud.catalogue import (
    DISKS,
    LEVELS,
    SYSTEM_SIZES,
    TYPES,
    ZONES,
    Type,
    disk_categories,
)
from trainyard.emulators.aliyun.cloud.records import Disk, Image, Instance, Snapshot
from trainyard.emulators.aliyun.cloud.world import World

MOST_DISKS = 16
_UNSET = datetime.min.replace(tzinfo=UTC)  # of a disk that is only planned
IDLE = frozenset({"Running", "Stopped"})


# --- disks of a new instance


def plan_disks(world: World, kind: Type, zone: str, image: Image, call: Call) -> list[Disk]:
    """The disks that RunInstances asks for, judged, without ids: the system disk first."""
    data = call.structs("DataDisk")
    if len(data) > MOST_DISKS:
        raise Problem("InstanceDiskNumber.LimitExceed", f"At most {MOST_DISKS} data disks can be created.")
    plans = [plan_system(kind, zone, image, call.struct("SystemDisk"))]
    plans += [_plan_data(world, kind, zone, row, device_name(index)) for index, row in enumerate(data)]
    for disk in plans:
        disk.created = disk.attached = call.now
    return plans


def plan_system(kind: Type, zone: str, image: Image, given: Mapping[str, Value]) -> Disk:
    """A system disk, judged, without an id."""
    default = "cloud_essd" if kind.is_essd_only else "cloud_efficiency"
    category = text(given, "Category", default)
    size = number(given, "Size", max(40, image.size))
    _check_category(category, kind, "InvalidSystemDiskCategory.ValueNotSupported")
    if size < image.size:
        raise not_found(
            "InvalidSystemDiskSize.LessThanImageSize",
            f"The specified size {size} is smaller than the image's {image.size} GiB.",
        )
    if not SYSTEM_SIZES[0] <= size <= SYSTEM_SIZES[1]:
        raise Problem(
            "InvalidSystemDiskSize.ValueNotSupported", f"The specified size {size} is not supported."
        )
    return Disk(
        id="",
        region=ZONES[zone].id,
        zone=zone,
        category=category,
        size=size,
        kind="system",
        created=_UNSET,
        performance_level=_level(category, text(given, "PerformanceLevel"), "PL0"),
        name=text(given, "DiskName"),
        description=text(given, "Description"),
        device="/dev/xvda",
        image=image.id,
        portable=False,
    )


def _plan_data(world: World, kind: Type, zone: str, given: Mapping[str, Value], device: str) -> Disk:
    region = ZONES[zone].id
    category = text(given, "Category", "cloud_auto" if kind.is_essd_only else "cloud_efficiency")
    _check_category(category, kind, "InvalidDataDiskCategory.ValueNotSupported")
    level = _level(category, text(given, "PerformanceLevel"), "PL1")
    snapshot = _ready_snapshot(world, region, text(given, "SnapshotId"))
    size = number(given, "Size", snapshot.size if snapshot else 0)
    check_size(category, size, level, snapshot)
    return Disk(
        id="",
        region=region,
        zone=zone,
        category=category,
        size=size,
        kind="data",
        created=_UNSET,
        performance_level=level,
        name=text(given, "DiskName"),
        description=text(given, "Description"),
        device=text(given, "Device") or device,
        snapshot=snapshot.id if snapshot else "",
        delete_with_instance=flag(given, "DeleteWithInstance", default=True),
        encrypted=text(given, "Encrypted").lower() == "true",
    )


def device_name(index: int) -> str:
    """`/dev/xvdb` for the first data disk."""
    return f"/dev/xvd{chr(ord('b') + index)}"


def _check_category(category: str, kind: Type, code: str) -> None:
    if category not in DISKS:
        raise Problem(code, f"The specified disk category {category} is not supported.")
    if category not in disk_categories(kind):
        raise Problem(
            "InvalidInstanceType.NotSupportDiskCategory",
            f"The instance type {kind.name} does not support the disk category {category}.",
        )


def _level(category: str, given: str, default: str) -> str:
    if category != "cloud_essd":
        return ""
    level = given or default
    if level not in LEVELS:
        raise Problem(
            "InvalidPerformanceLevel.Malformed", f"The specified PerformanceLevel is not valid: {level}."
        )
    return level


def check_size(category: str, size: int, level: str, snapshot: Snapshot | None) -> None:
    """Refuse a size that the category doesn't come in, or that the snapshot doesn't fit."""
    least, most, _ = DISKS[category]
    least = LEVELS[level][0] if level else least
    if not least <= size <= most:
        raise Problem(
            "InvalidDataDiskSize.ValueNotSupported",
            f"The specified size {size} is not supported: {category} has {least} to {most} GiB.",
        )
    if snapshot and size < snapshot.size:
        raise denied("InvalidDiskSize.TooSmall", "The specified disk size is less than that of the snapshot.")


def _ready_snapshot(world: World, region: str, snapshot_id: str) -> Snapshot | None:
    if not snapshot_id:
        return None
    snapshot = world.snapshots.get(snapshot_id)
    if snapshot is None or snapshot.region != region:
        raise not_found("InvalidSnapshotId.NotFound", "The specified SnapshotId does not exist.")
    if snapshot.status != "accomplished":
        raise denied("InvalidSnapshotId.NotReady", "The specified snapshot has not completed yet.")
    if snapshot.disk_kind != "data":
        raise denied("InvalidSnapshotId.NotDataDiskSnapshot", "The specified snapshot is of a system disk.")
    return snapshot


# --- actions


def describe_disks(world: World, call: Call) -> dict[str, Value]:
    """DescribeDisks."""
    region = require_region(call)
    refuse_dry_run(call)
    ids = json_list(call, "DiskIds")
    rows = [
        disk
        for disk in world.disks.values()
        if disk.region == region and (ids is None or disk.id in ids) and _fits(disk, call)
    ]
    shown, fields = by_token(call, rows, _show_disk, name=lambda disk: disk.id, most=500)
    return {"Disks": {"Disk": shown}, **fields}


def _fits(disk: Disk, call: Call) -> bool:
    kind, status = call.text("DiskType", "all"), call.text("Status", "All")
    exact = {
        "ZoneId": disk.zone,
        "InstanceId": disk.instance,
        "Category": disk.category,
        "SnapshotId": disk.snapshot,
        "PerformanceLevel": disk.performance_level,
        "DiskChargeType": disk.charge,
    }
    return (
        all(call.text(name) in {"", "all", value} for name, value in exact.items())
        and kind in {"all", disk.kind}
        and status in {"All", disk.status}
        and (not call.given("Portable") or call.flag("Portable") == disk.portable)
        and (
            not call.given("DeleteWithInstance")
            or call.flag("DeleteWithInstance") == disk.delete_with_instance
        )
        and matches(call.text("DiskName"), disk.name)
        and has_tags(disk.tags, call.structs("Tag"))
    )


def _show_disk(disk: Disk) -> Value:
    attached: Value = {
        "AttachedTime": minute(disk.attached),
        "Device": disk.device,
        "InstanceId": disk.instance,
    }
    return {
        "DiskId": disk.id,
        "RegionId": disk.region,
        "ZoneId": disk.zone,
        "DiskName": disk.name,
        "Description": disk.description,
        "Type": disk.kind,
        "Category": disk.category,
        "PerformanceLevel": disk.performance_level,
        "Size": disk.size,
        "Status": disk.status,
        "InstanceId": disk.instance,
        "Device": disk.device,
        "Portable": disk.portable,
        "DeleteWithInstance": disk.delete_with_instance,
        "DeleteAutoSnapshot": True,
        "EnableAutoSnapshot": True,
        "Encrypted": disk.encrypted,
        "ImageId": disk.image,
        "SourceSnapshotId": disk.snapshot,
        "DiskChargeType": disk.charge,
        "CreationTime": second(disk.created),
        "AttachedTime": second(disk.attached),
        "DetachedTime": second(disk.detached),
        "ExpiredTime": "2999-09-08T16:00Z",
        "MultiAttach": "Disabled",
        "SerialNumber": disk.id.removeprefix("d-"),
        "Attachments": {"Attachment": [attached] if disk.instance else []},
        "MountInstances": {"MountInstance": []},
        "OperationLocks": {"OperationLock": []},
        "Tags": ecs_tags(disk.tags),
    }


def create_disk(world: World, call: Call) -> dict[str, Value]:
    """CreateDisk."""
    region = require_region(call)
    instance = world.instances.get(call.text("InstanceId"))
    zone = call.text("ZoneId") or (instance.zone if instance else "")
    if call.given("InstanceId") and instance is None:
        raise not_found("InvalidInstanceId.NotFound", "The specified InstanceId does not exist.")
    if zone not in ZONES or ZONES[zone].id != region:
        raise not_found("InvalidZoneId.NotFound", f"The specified zone does not exist: {zone}.")
    category = call.text("DiskCategory", "cloud_efficiency")
    if category not in DISKS:
        raise Problem("InvalidDataDiskCategory.ValueNotSupported", f"{category} is not supported.")
    level = _level(category, call.text("PerformanceLevel"), "PL1")
    snapshot = _ready_snapshot(world, region, call.text("SnapshotId"))
    size = call.number("Size", snapshot.size if snapshot else 0)
    check_size(category, size, level, snapshot)
    tags = read_tags(call.structs("Tag"))
    require_disk_quota(world, region, 1)
    disk = Disk(
        id=world.new_id("d-", region),
        region=region,
        zone=zone,
        category=category,
        size=size,
        kind="data",
        created=call.now,
        performance_level=level,
        name=call.text("DiskName"),
        description=call.text("Description"),
        snapshot=snapshot.id if snapshot else "",
        delete_with_instance=False,
        encrypted=call.flag("Encrypted"),
        status="Creating",
        tags=tags,
        due=call.now + world.options.duration("disk"),
    )
    world.disks[disk.id] = disk
    ledger.bill_disk(world, disk, call.now)
    if instance is not None:
        _attach(disk, instance, call.now, world)
    return {"DiskId": disk.id}


def require_disk_quota(world: World, region: str, more: int) -> None:
    """Refuse more disks than the account may have."""
    used = sum(disk.region == region for disk in world.disks.values())
    if used + more > world.options.quotas.disks:
        raise denied("QuotaExceed.PostPaidDisk", "The number of pay-as-you-go disks exceeds the quota.")


def find_disk(world: World, disk_id: str) -> Disk:
    """A disk that exists."""
    if disk_id not in world.disks:
        raise not_found("InvalidDiskId.NotFound", f"The specified disk does not exist: {disk_id}.")
    return world.disks[disk_id]


def _find_idle(world: World, call: Call) -> Instance:
    instance = world.instances.get(call.required("InstanceId"))
    if instance is None or instance.deleting:
        raise not_found("InvalidInstanceId.NotFound", "The specified InstanceId does not exist.")
    if instance.status not in IDLE:
        raise Problem("IncorrectInstanceStatus", "The current status of the resource does not support this.")
    return instance


def attach_disk(world: World, call: Call) -> dict[str, Value]:
    """AttachDisk."""
    disk, instance = find_disk(world, call.required("DiskId")), _find_idle(world, call)
    if disk.status != "Available":
        raise denied("DiskId.StatusNotSupported", f"The disk is {disk.status}, not Available.")
    if disk.zone != instance.zone:
        raise denied("ResourcesNotInSameZone", "The disk and the instance are not in the same zone.")
    if disk.category not in disk_categories(TYPES[instance.type]):
        raise denied("DiskId.ValueNotSupported", f"{instance.type} does not take {disk.category}.")
    if len(world.disks_of(instance.id)) > MOST_DISKS:
        raise denied("InstanceDiskLimitExceeded", "The instance has as many disks as it can.")
    disk.delete_with_instance = call.flag("DeleteWithInstance")
    _attach(disk, instance, call.now, world, device=call.text("Device"))
    return {}


def _attach(disk: Disk, instance: Instance, now: datetime, world: World, device: str = "") -> None:
    taken = {one.device for one in world.disks_of(instance.id)}
    free = next(device_name(index) for index in range(MOST_DISKS + 1) if device_name(index) not in taken)
    if device and device in taken:
        raise denied("InvalidDevice.InUse", f"The specified device is in use: {device}.")
    disk.device, disk.instance, disk.attached = device or free, instance.id, now
    disk.status, disk.due = "Attaching", now + world.options.duration("disk")


def detach_disk(world: World, call: Call) -> dict[str, Value]:
    """DetachDisk."""
    disk, instance = find_disk(world, call.required("DiskId")), _find_idle(world, call)
    if disk.instance != instance.id or disk.status != "In_use":
        raise denied("IncorrectDiskStatus", "The current disk status does not support this operation.")
    if not disk.portable:
        raise denied("DiskNotPortable", "The specified disk is not a portable disk.")
    disk.instance, disk.device, disk.detached = "", "", call.now
    disk.status, disk.due = "Detaching", call.now + world.options.duration("disk")
    return {}


def delete_disk(world: World, call: Call) -> dict[str, Value]:
    """DeleteDisk."""
    disk = find_disk(world, call.required("DiskId"))
    if disk.status != "Available":
        raise denied("IncorrectDiskStatus", "The current disk status does not support this operation.")
    ledger.close(world, disk.id, call.now)
    del world.disks[disk.id]
    return {}


def _require_staying(world: World, disk: Disk) -> None:
    """Refuse changes to the disk of an instance that is being released."""
    instance = world.instances.get(disk.instance)
    if instance is not None and instance.deleting:
        raise denied("IncorrectDiskStatus", "The current disk status does not support this operation.")


def modify_disk(world: World, call: Call) -> dict[str, Value]:
    """ModifyDiskAttribute: of one disk or of many."""
    ids = call.texts("DiskIds") or [call.required("DiskId")]
    disks = [find_disk(world, one) for one in ids]
    for disk in disks:
        _require_staying(world, disk)
    for disk in disks:
        disk.name = call.text("DiskName", disk.name)
        disk.description = call.text("Description", disk.description)
        disk.delete_with_instance = call.flag("DeleteWithInstance", default=disk.delete_with_instance)
    return {}


def resize_disk(world: World, call: Call) -> dict[str, Value]:
    """ResizeDisk: only ever larger; billed by its new size from now on."""
    disk, size = find_disk(world, call.required("DiskId")), call.number("NewSize")
    _require_staying(world, disk)
    if disk.status not in {"In_use", "Available"}:
        raise denied("IncorrectDiskStatus", "The current disk status does not support this operation.")
    if size <= disk.size:
        raise denied("InvalidDiskSize.TooSmall", f"The disk has {disk.size} GiB already.")
    check_size(disk.category, size, disk.performance_level, None)
    disk.size = size
    ledger.close(world, disk.id, call.now)
    ledger.bill_disk(world, disk, call.now)
    return {"OrderId": ""}


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "DescribeDisks"): describe_disks,
    ("ecs", "CreateDisk"): create_disk,
    ("ecs", "AttachDisk"): attach_disk,
    ("ecs", "DetachDisk"): detach_disk,
    ("ecs", "DeleteDisk"): delete_disk,
    ("ecs", "ModifyDiskAttribute"): modify_disk,
    ("ecs", "ResizeDisk"): resize_disk,
}
