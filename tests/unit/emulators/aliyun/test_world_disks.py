"""Disks and snapshots on their own: made, attached, detached, copied, deleted."""

from __future__ import annotations

import json

import pytest

from emulated import IMAGE, ZONE, Cloud


@pytest.fixture
def cloud():
    return Cloud().ready()


def find(cloud, **parameters):
    return cloud.ecs("DescribeDisks", **parameters)["Disks"]["Disk"]


def test_a_disk_is_made_attached_detached_and_deleted(cloud):
    (name,) = cloud.running()
    disk = cloud.ecs("CreateDisk", ZoneId=ZONE, Size=100, DiskCategory="cloud_essd", DiskName="d")["DiskId"]
    (row,) = find(cloud, DiskIds=json.dumps([disk]))
    assert row["Status"] == "Creating"
    attach = {"DiskId": disk, "InstanceId": name}
    assert cloud.refused("ecs", "AttachDisk", **attach) == "DiskId.StatusNotSupported"
    cloud.later(1)
    cloud.ecs("AttachDisk", **attach, DeleteWithInstance=True)
    assert find(cloud, DiskName="d")[0]["Status"] == "Attaching"
    cloud.later(1)
    (row,) = find(cloud, InstanceId=name, DiskType="data")
    assert (row["Status"], row["Device"], row["DeleteWithInstance"]) == ("In_use", "/dev/xvdb", True)
    assert cloud.refused("ecs", "DeleteDisk", DiskId=disk) == "IncorrectDiskStatus"
    assert cloud.refused("ecs", "AttachDisk", **attach) == "DiskId.StatusNotSupported"
    cloud.ecs("DetachDisk", **attach)
    cloud.later(1)
    assert find(cloud, DiskIds=json.dumps([disk]))[0]["Status"] == "Available"
    cloud.ecs("DeleteDisk", DiskId=disk)
    assert find(cloud, DiskIds=json.dumps([disk])) == []
    assert cloud.refused("ecs", "DeleteDisk", DiskId=disk) == "InvalidDiskId.NotFound"


def test_disks_stay_in_their_zone(cloud):
    (name,) = cloud.running()
    disk = cloud.ecs("CreateDisk", ZoneId="cn-beijing-g", Size=20)["DiskId"]
    cloud.later(1)
    assert cloud.refused("ecs", "AttachDisk", DiskId=disk, InstanceId=name) == "ResourcesNotInSameZone"


def test_wrong_disks_are_refused(cloud):
    assert cloud.refused("ecs", "CreateDisk", ZoneId="nowhere", Size=20) == "InvalidZoneId.NotFound"
    size = "InvalidDataDiskSize.ValueNotSupported"
    assert cloud.refused("ecs", "CreateDisk", ZoneId=ZONE, Size=1) == size
    assert cloud.refused("ecs", "CreateDisk", ZoneId=ZONE, Size=99999) == size
    assert cloud.refused("ecs", "CreateDisk", ZoneId=ZONE) == size
    category = "InvalidDataDiskCategory.ValueNotSupported"
    assert cloud.refused("ecs", "CreateDisk", ZoneId=ZONE, Size=20, DiskCategory="x") == category
    cloud.world.set_options({"quotas": {"disks": 1}})
    cloud.ecs("CreateDisk", ZoneId=ZONE, Size=20)
    assert cloud.refused("ecs", "CreateDisk", ZoneId=ZONE, Size=20) == "QuotaExceed.PostPaidDisk"
    assert cloud.refused("ecs", "RunInstances", **cloud.launch) == "QuotaExceed.PostPaidDisk"


def test_the_system_disk_cannot_be_taken_out(cloud):
    (name,) = cloud.running()
    system = cloud.world.disks_of(name)[0]
    assert cloud.refused("ecs", "DetachDisk", DiskId=system.id, InstanceId=name) == "DiskNotPortable"


def test_snapshots_tell_how_far_they_are(cloud):
    disk = cloud.ecs("CreateDisk", ZoneId=ZONE, Size=20)["DiskId"]
    cloud.later(1)
    snapshot = cloud.ecs("CreateSnapshot", DiskId=disk, SnapshotName="s")["SnapshotId"]
    cloud.later(5)
    (row,) = cloud.ecs("DescribeSnapshots", SnapshotIds=json.dumps([snapshot]))["Snapshots"]["Snapshot"]
    assert (row["Status"], row["Progress"], row["SourceDiskSize"]) == ("progressing", "25%", "20")
    cloud.later(15)
    (row,) = cloud.ecs("DescribeSnapshots", DiskId=disk)["Snapshots"]["Snapshot"]
    assert (row["Status"], row["Progress"]) == ("accomplished", "100%")
    made = cloud.ecs("CreateDisk", ZoneId=ZONE, SnapshotId=snapshot)["DiskId"]
    assert cloud.world.disks[made].size == 20
    cloud.ecs("DeleteSnapshot", SnapshotId=snapshot)
    assert cloud.refused("ecs", "DeleteSnapshot", SnapshotId=snapshot) == "InvalidSnapshotId.NotFound"


def test_disks_are_listed_by_token_too(cloud):
    cloud.running(Amount=25)
    assert len(find(cloud)) == 10
    assert len(find(cloud, PageSize=100)) == 25
    first = cloud.ecs("DescribeDisks", MaxResults=20)
    second = cloud.ecs("DescribeDisks", MaxResults=20, NextToken=first["NextToken"])
    assert second["NextToken"] == ""
    ids = {row["DiskId"] for body in (first, second) for row in body["Disks"]["Disk"]}
    assert len(ids) == 25
    assert cloud.refused("ecs", "DescribeDisks", NextToken="nonsense") == "InvalidParameter.NextToken"


def test_an_instance_begins_anew_when_it_gets_another_system_disk(cloud):
    (name,) = cloud.running(Amount=1)
    (before,) = cloud.world.machines(cloud.now)
    old = cloud.world.disks_of(name)[0]
    wanted = {"InstanceId": name, "ImageId": IMAGE}
    assert cloud.refused("ecs", "ReplaceSystemDisk", **wanted) == "IncorrectInstanceStatus"
    cloud.ecs("StopInstance", InstanceId=name)
    cloud.later(30)
    assert (
        cloud.refused("ecs", "ReplaceSystemDisk", InstanceId=name, ImageId="m-none")
        == "InvalidImageId.NotFound"
    )
    made = cloud.ecs("ReplaceSystemDisk", **wanted)["DiskId"]
    (disk,) = cloud.world.disks_of(name)
    assert (disk.id, disk.kind, disk.size, disk.category) == (made, "system", old.size, old.category)
    assert made != old.id
    assert old.id not in cloud.world.disks
    (after,) = cloud.world.machines(cloud.now)
    assert (before.disk, after.disk) == (old.id, made)
    assert after.user_data == before.user_data
