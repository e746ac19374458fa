"""Snapshots of disks; images are made of them too."""

from __future__ import annotations

from datetime import datetime

from trainyard.emulators.aliyun.api.answers import (
    by_number,
    ecs_tags,
    has_tags,
    json_list,
    matches,
    read_tags,
    require_limit,
    require_region,
    second,
)
from trainyard.emulators.aliyun.api.call import Call, Handler, Value
from trainyard.emulators.aliyun.api.problems import denied, not_found
from trainyard.emulators.aliyun.cloud import ledger
from trainyard.emulators.aliyun.cloud.records import Disk, Snapshot
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.ecs.disks import find_disk


def create_snapshot(world: World, call: Call) -> dict[str, Value]:
    """CreateSnapshot."""
    disk = find_disk(world, call.required("DiskId"))
    if disk.status not in {"In_use", "Available"}:
        raise denied("IncorrectDiskStatus", "The current disk status does not support this operation.")
    used = sum(one.region == disk.region for one in world.snapshots.values())
    require_limit(used, world.options.quotas.snapshots, "QuotaExceed.Snapshot", "Too many snapshots.")
    tags = read_tags(call.structs("Tag"))
    snapshot = make_snapshot(world, disk, call.now, name=call.text("SnapshotName"))
    snapshot.description, snapshot.tags = call.text("Description"), tags
    return {"SnapshotId": snapshot.id}


def make_snapshot(world: World, disk: Disk, now: datetime, *, name: str = "") -> Snapshot:
    """Begin a snapshot of a disk."""
    snapshot = Snapshot(
        id=world.new_id("s-", disk.region),
        region=disk.region,
        name=name,
        disk=disk.id,
        disk_kind=disk.kind,
        size=disk.size,
        created=now,
        due=now + world.options.duration("snapshot"),
    )
    world.snapshots[snapshot.id] = snapshot
    ledger.bill_snapshot(world, snapshot, now)
    return snapshot


def describe_snapshots(world: World, call: Call) -> dict[str, Value]:
    """DescribeSnapshots."""
    region = require_region(call)
    ids = json_list(call, "SnapshotIds")
    rows = [
        one
        for one in world.snapshots.values()
        if one.region == region
        and (ids is None or one.id in ids)
        and call.text("DiskId") in {"", one.disk}
        and call.text("Status", "all") in {"all", one.status}
        and call.text("SourceDiskType", "").lower() in {"", one.disk_kind}
        and matches(call.text("SnapshotName"), one.name)
        and has_tags(one.tags, call.structs("Tag"))
    ]
    shown, fields = by_number(call, rows, lambda one: _show_snapshot(one, call.now), most=100)
    return {"Snapshots": {"Snapshot": shown}, **fields}


def progress(created: datetime, due: datetime | None, now: datetime) -> str:
    """How far something has come, by the clock alone."""
    if due is None or due <= now:
        return "100%"
    return f"{max(0, int(100 * (now - created) / (due - created)))}%"


def _show_snapshot(snapshot: Snapshot, now: datetime) -> Value:
    return {
        "SnapshotId": snapshot.id,
        "SnapshotName": snapshot.name,
        "Description": snapshot.description,
        "Progress": progress(snapshot.created, snapshot.due, now),
        "Status": snapshot.status,
        "SourceDiskId": snapshot.disk,
        "SourceDiskSize": str(snapshot.size),
        "SourceDiskType": snapshot.disk_kind,
        "CreationTime": second(snapshot.created),
        "Usage": "none",
        "Tags": ecs_tags(snapshot.tags),
    }


def delete_snapshot(world: World, call: Call) -> dict[str, Value]:
    """DeleteSnapshot."""
    snapshot = world.snapshots.get(call.required("SnapshotId"))
    if snapshot is None:
        raise not_found("InvalidSnapshotId.NotFound", "The specified snapshot does not exist.")
    if any(snapshot.id in image.snapshots for image in world.images.values()):
        raise denied("SnapshotCreatedImage", "The snapshot has created an image.")
    ledger.close(world, snapshot.id, call.now)
    del world.snapshots[snapshot.id]
    return {}


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "CreateSnapshot"): create_snapshot,
    ("ecs", "DescribeSnapshots"): describe_snapshots,
    ("ecs", "DeleteSnapshot"): delete_snapshot,
}
