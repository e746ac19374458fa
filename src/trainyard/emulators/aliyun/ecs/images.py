"""Images: the provider's, the marketplace's and the account's own, made from an instance or a snapshot."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from trainyard.emulators.aliyun.api.answers import (
    by_number,
    ecs_tags,
    has_tags,
    read_tags,
    refuse_dry_run,
    require_limit,
    require_region,
    second,
)
from trainyard.emulators.aliyun.api.call import Call, Handler, Value, text
from trainyard.emulators.aliyun.api.problems import Problem, denied, missing, not_found
from trainyard.emulators.aliyun.cloud import ledger
from trainyard.emulators.aliyun.cloud.catalogue import REGIONS, TYPES, Type
from trainyard.emulators.aliyun.cloud.public_images import IMAGES
from trainyard.emulators.aliyun.cloud.records import Image
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.ecs.snapshots import make_snapshot, progress

_NAME = re.compile(r"[^\W\d_][\w:.\-/ ]{1,127}")
OWNERS = frozenset({"system", "self", "others", "marketplace"})
_LISTED_ONLY = frozenset(
    {"BootMode", "Features", "IsPublic", "LoginAsNonRootSupported", "OSNameEn", "Usable"}
)  # what DescribeImages shows and DescribeImageFromFamily does not
_FILTERS = {"FirstRegister", "expired-start-time", "creation-start-time", "creation-end-time"}


def images_in(world: World, region: str) -> list[Image]:
    """Every image of a region, the newest of the provider first, the account's own before."""
    retired = world.options.retired_images
    public = [one for one in IMAGES.values() if not any(fnmatchcase(one.id, name) for name in retired)]
    own = [one for one in world.images.values() if one.region == region]
    return [
        *sorted(own, key=lambda one: one.created, reverse=True),
        *sorted(public, key=lambda one: one.created, reverse=True),
    ]


def find_image(world: World, region: str, image_id: str, family: str = "") -> Image:
    """The image that RunInstances names by id or by family, ready to boot from."""
    if not image_id and not family:
        raise missing("ImageId")
    for image in images_in(world, region):
        named = image.id == image_id if image_id else image.family == family and image.status == "Available"
        if named and image.status != "Available":
            raise denied("OperationDenied.ImageNotValid", f"The image {image.id} is {image.status}.")
        if named:
            return image
    raise not_found("InvalidImageId.NotFound", f"The specified ImageId does not exist: {image_id or family}.")


def suits(image: Image, kind: Type) -> bool:
    """Whether a type boots the image: the newest bare metal wants UEFI."""
    return not kind.family.startswith(("ecs.ebmgn8", "ecs.ebmgn9")) or image.boot_mode == "UEFI"


def describe_images(world: World, call: Call) -> dict[str, Value]:
    """DescribeImages."""
    region = require_region(call)
    refuse_dry_run(call)
    kind_name, owner = call.text("InstanceType"), call.text("ImageOwnerAlias")
    if kind_name and kind_name not in TYPES:
        raise Problem("InvalidInstanceType.ValueNotSupported", f"There is no type {kind_name}.")
    if owner and owner not in OWNERS:
        raise Problem("InvalidImageOwnerAlias.ValueNotSupported", f"{owner} is not supported.")
    for one in call.structs("Filter"):
        if text(one, "Key") not in _FILTERS:
            raise not_found("InvalidFilterKey.NotFound", f"{text(one, 'Key')} is not a filter.")
    rows = [
        image
        for image in images_in(world, region)
        if _fits(image, call) and (not kind_name or suits(image, TYPES[kind_name]))
    ]
    shown, fields = by_number(call, rows, lambda image: _show(world, image, call), most=100)
    return {"Images": {"Image": shown}, "RegionId": region, **fields}


def _fits(image: Image, call: Call) -> bool:
    ids = [one.strip() for one in call.text("ImageId").split(",") if one.strip()]
    owner, status = call.text("ImageOwnerAlias"), call.text("Status", "Available")
    # Marketplace images show only where they are asked for.
    owned = image.owner == owner if owner else image.owner != "marketplace" or bool(ids)
    name = call.text("ImageName")
    return (
        (not ids or image.id in ids)
        and owned
        and image.status in {one.strip() for one in status.split(",")}
        and (not name or name.strip("*") in image.name)
        and call.text("ImageFamily") in {"", image.family}
        and call.text("Architecture") in {"", image.architecture}
        and call.text("OSType") in {"", image.os_type}
        and call.text("SnapshotId") in {"", *image.snapshots}
        and has_tags(image.tags, call.structs("Tag"))
    )


def _show(world: World, image: Image, call: Call) -> dict[str, Value]:
    used = any(one.image == image.id for one in world.instances.values())
    mapping: Value = [
        {
            "Device": "/dev/xvda" if not index else f"/dev/xvd{chr(ord('a') + index)}",
            "Size": str(world.snapshots[snapshot].size if snapshot in world.snapshots else image.size),
            "SnapshotId": snapshot,
            "Type": "data" if index else "system",
            "Format": "",
        }
        for index, snapshot in enumerate(image.snapshots)
    ]
    return {
        "ImageId": image.id,
        "ImageName": image.name,
        "ImageFamily": image.family,
        "ImageOwnerAlias": image.owner,
        "ImageVersion": image.version,
        "Description": image.description,
        "Architecture": image.architecture,
        "BootMode": image.boot_mode,
        "OSName": image.os_name,
        "OSNameEn": image.os_name.replace("64位", "64 bit"),
        "OSType": image.os_type,
        "Platform": image.platform,
        "Size": image.size,
        "Status": image.status,
        "Progress": progress(image.created, image.due, call.now),
        "CreationTime": second(image.created),
        "Usage": "instance" if used else "none",
        "IsPublic": image.owner == "system",
        "IsCopied": image.copied,
        "IsSelfShared": "",
        "IsSubscribed": False,
        "IsSupportCloudinit": True,
        "IsSupportIoOptimized": True,
        "LoginAsNonRootSupported": True,
        "ProductCode": "",
        "Usable": True,
        "Features": {"NvmeSupport": "supported", "ImdsSupport": "v2"},
        "DiskDeviceMappings": {"DiskDeviceMapping": mapping},
        "Tags": ecs_tags(image.tags),
    }


def describe_image_from_family(world: World, call: Call) -> dict[str, Value]:
    """DescribeImageFromFamily: the newest image of a family, or nothing."""
    region, family = require_region(call), call.required("ImageFamily")
    found = [one for one in images_in(world, region) if one.family == family and one.status == "Available"]
    newest = max(found, key=lambda one: one.created, default=None)
    if newest is None:
        return {}
    return {
        "Image": {name: one for name, one in _show(world, newest, call).items() if name not in _LISTED_ONLY}
    }


def create_image(world: World, call: Call) -> dict[str, Value]:
    """CreateImage: from an instance, a snapshot, or several."""
    region = require_region(call)
    name = call.text("ImageName")
    if name and (not _NAME.fullmatch(name) or name.startswith(("http://", "https://", "acs:"))):
        raise Problem("InvalidImageName.Malformed", f"The specified Image name is wrongly formed: {name!r}.")
    _require_new(world, region, name)
    tags = read_tags(call.structs("Tag"))
    image = _draft(world, call, region)
    refuse_dry_run(call)
    image.id = world.new_id("m-", region)
    image.name = name or image.id
    image.tags = tags
    instance = world.instances.get(call.text("InstanceId"))
    if instance is not None:
        disks = world.disks_of(instance.id)
        image.snapshots = [make_snapshot(world, disk, call.now, name=image.name).id for disk in disks]
    world.images[image.id] = image
    return {"ImageId": image.id}


def _require_new(world: World, region: str, name: str, *, more: int = 1) -> None:
    own = [one for one in world.images.values() if one.region == region]
    if name and any(one.name == name for one in own):
        raise Problem(
            "InvalidImageName.Duplicated", f"The specified Image name has already been used: {name}."
        )
    require_limit(
        len(own) + more - 1, world.options.quotas.images, "QuotaExceed.Image", "Too many custom images."
    )


def _draft(world: World, call: Call, region: str) -> Image:
    if call.given("InstanceId"):
        return _draft_of_instance(world, call, region)
    ids = [call.text("SnapshotId")] if call.given("SnapshotId") else []
    ids += [text(one, "SnapshotId") for one in call.structs("DiskDeviceMapping") if text(one, "SnapshotId")]
    if not ids:
        raise Problem(
            "InvalidParameter.AllEmpty", "InstanceId, SnapshotId and DiskDeviceMapping are all empty."
        )
    for snapshot_id in ids:
        snapshot = world.snapshots.get(snapshot_id)
        if snapshot is None:
            raise not_found("InvalidSnapshotId.NotFound", f"There is no snapshot {snapshot_id}.")
        if snapshot.status != "accomplished":
            raise denied("InvalidSnapshotId.NotReady", "The specified snapshot has not completed yet.")
    if all(world.snapshots[one].disk_kind != "system" for one in ids):
        raise denied("InvalidSystemSnapshot.Missing", "There is no snapshot of a system disk.")
    return _empty(world, call, region, size=world.snapshots[ids[0]].size, snapshots=ids)


def _draft_of_instance(world: World, call: Call, region: str) -> Image:
    instance = world.instances.get(call.text("InstanceId"))
    if instance is None or instance.region != region or instance.deleting:
        raise not_found("InvalidInstanceId.NotFound", "The specified InstanceId does not exist.")
    if instance.status not in {"Running", "Stopped"}:
        raise Problem("IncorrectInstanceStatus", "The current status of the resource does not support this.")
    source = next((one for one in images_in(world, region) if one.id == instance.image), None)
    system = next(disk for disk in world.disks_of(instance.id) if disk.kind == "system")
    image = _empty(world, call, region, size=system.size, snapshots=[])
    if source is not None:
        image.os_name, image.boot_mode, image.os_type = source.os_name, source.boot_mode, source.os_type
        image.platform = source.platform
    return image


def _empty(world: World, call: Call, region: str, *, size: int, snapshots: list[str]) -> Image:
    return Image(
        id="",
        name="",
        region=region,
        family=call.text("ImageFamily"),
        owner="self",
        created=call.now,
        size=size,
        os_name="Linux 64位",
        platform=call.text("Platform", "Others Linux"),
        architecture=call.text("Architecture", "x86_64"),
        boot_mode=call.text("BootMode", "BIOS"),
        description=call.text("Description"),
        version=call.text("ImageVersion"),
        status="Creating",
        snapshots=snapshots,
        due=call.now + world.options.duration("image"),
    )


def copy_image(world: World, call: Call) -> dict[str, Value]:
    """CopyImage: the account's own, into another region."""
    region, target = require_region(call), call.required("DestinationRegionId")
    source = world.images.get(call.required("ImageId"))
    if source is None or source.region != region:
        raise not_found("InvalidImageId.NotFound", "The specified ImageId does not exist.")
    if target not in REGIONS:
        raise not_found("InvalidRegionId.NotFound", "The specified DestinationRegionId does not exist.")
    if target == region:
        raise Problem("InvalidRegionId.DestinationRegionId", "Source and destination are the same region.")
    if source.status != "Available":
        raise denied("IncorrectImageStatus", "The status of the image does not support this operation.")
    name = call.text("DestinationImageName")
    _require_new(world, target, name)
    tags = read_tags(call.structs("Tag"))
    refuse_dry_run(call)
    image = _empty(world, call, target, size=source.size, snapshots=[])
    image.id, image.copied, image.family = world.new_id("m-", target), True, source.family
    image.os_name, image.platform, image.boot_mode = source.os_name, source.platform, source.boot_mode
    image.name = name or image.id
    image.description = call.text("DestinationDescription")
    image.tags = tags
    world.images[image.id] = image
    return {"ImageId": image.id}


def modify_image(world: World, call: Call) -> dict[str, Value]:
    """ModifyImageAttribute: the name, the family, the description, and whether it is deprecated."""
    region, image = require_region(call), world.images.get(call.required("ImageId"))
    name, status = call.text("ImageName"), call.text("Status")
    if image is None or image.region != region:
        raise not_found("InvalidImageId.NotFound", "The specified ImageId does not exist.")
    if status and {status, image.status} != {"Deprecated", "Available"} and status != image.status:
        raise denied("IncorrectImageStatus", f"The image is {image.status}, it cannot become {status}.")
    if name and name != image.name:
        _require_new(world, region, name, more=0)
    refuse_dry_run(call)
    image.name, image.status = name or image.name, status or image.status
    image.family = call.text("ImageFamily", image.family)
    image.description = call.text("Description", image.description)
    return {}


def delete_image(world: World, call: Call) -> dict[str, Value]:
    """DeleteImage: only the account's own; one in use goes by force alone. Its snapshots stay."""
    region, image = require_region(call), world.images.get(call.required("ImageId"))
    if image is None or image.region != region:
        raise not_found("InvalidImageId.NotFound", "The specified ImageId does not exist.")
    if image.status == "Creating" and not call.flag("Force"):
        raise denied("IncorrectImageStatus", "The image is being created.")
    if any(one.image == image.id for one in world.instances.values()) and not call.flag("Force"):
        raise denied("ImageInUse", "The specified image has been used to create instances; set Force.")
    refuse_dry_run(call)
    ledger.close(world, image.id, call.now)
    del world.images[image.id]
    return {}


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "DescribeImages"): describe_images,
    ("ecs", "DescribeImageFromFamily"): describe_image_from_family,
    ("ecs", "CreateImage"): create_image,
    ("ecs", "CopyImage"): copy_image,
    ("ecs", "ModifyImageAttribute"): modify_image,
    ("ecs", "DeleteImage"): delete_image,
}
