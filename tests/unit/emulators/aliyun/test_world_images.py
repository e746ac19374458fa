"""Images: families, filters, making one of an instance, and what keeps one from being deleted."""

from __future__ import annotations

import pytest

from emulated import IMAGE, Cloud


@pytest.fixture
def cloud():
    return Cloud().ready()


def find(cloud, **parameters):
    rows = cloud.ecs("DescribeImages", PageSize=100, **parameters)["Images"]["Image"]
    return [row["ImageId"] for row in rows]


def test_images_are_found_by_family_name_owner_and_id(cloud):
    assert find(cloud, ImageFamily="acs:ubuntu_22_04_x64")[0] == IMAGE
    assert all("ubuntu" in one for one in find(cloud, ImageName="ubuntu"))
    assert find(cloud, ImageId=f"{IMAGE},m-none") == [IMAGE]
    assert find(cloud, ImageOwnerAlias="self") == []
    (market,) = find(cloud, ImageOwnerAlias="marketplace", ImageName="aiacc-dlimg-ubuntu2004:1.5.0")
    assert market not in find(cloud)
    assert find(cloud, ImageId=market) == [market]
    assert find(cloud, ImageName="ubuntu_18_04_64_20G_alibase_20190624.vhd")
    assert len(cloud.ecs("DescribeImages")["Images"]["Image"]) == 10
    refused = cloud.refused("ecs", "DescribeImages", ImageOwnerAlias="nobody")
    assert refused == "InvalidImageOwnerAlias.ValueNotSupported"


def test_the_newest_of_a_family_is_told(cloud):
    body = cloud.ecs("DescribeImageFromFamily", ImageFamily="acs:ubuntu_24_04_x64")
    assert body["Image"]["ImageId"] == "ubuntu_24_04_x64_20G_alibase_20260119.vhd"
    assert cloud.ecs("DescribeImageFromFamily", ImageFamily="acs:alibaba_cloud_linux_3_x64") == {}


def test_only_images_that_a_type_boots_are_shown(cloud):
    shown = find(cloud, InstanceType="ecs.ebmgn8v.48xlarge")
    assert shown
    assert all("uefi" in one for one in shown)
    refused = cloud.refused("ecs", "DescribeImages", InstanceType="ecs.none")
    assert refused == "InvalidInstanceType.ValueNotSupported"


def test_an_image_of_an_instance_takes_its_time_and_can_be_run(cloud):
    (name,) = cloud.running(SystemDisk={"Category": "cloud_essd", "Size": 60})
    image = cloud.ecs("CreateImage", InstanceId=name, ImageName="mine-1", ImageFamily="fam")["ImageId"]
    assert image.startswith("m-2ze")
    assert find(cloud, ImageOwnerAlias="self") == []  # only Available ones show by default
    (row,) = cloud.ecs("DescribeImages", ImageId=image, Status="Creating")["Images"]["Image"]
    assert (row["Status"], row["Progress"], row["Size"]) == ("Creating", "0%", 60)
    assert (
        cloud.refused("ecs", "RunInstances", **{**cloud.launch, "ImageId": image})
        == "OperationDenied.ImageNotValid"
    )
    cloud.later(30)
    (row,) = cloud.ecs("DescribeImages", ImageId=image, Status="Creating,Available")["Images"]["Image"]
    assert row["Progress"] == "50%"
    cloud.later(30)
    (row,) = cloud.ecs("DescribeImages", ImageId=image)["Images"]["Image"]
    assert (row["Status"], row["Progress"], row["ImageOwnerAlias"]) == ("Available", "100%", "self")
    assert len(row["DiskDeviceMappings"]["DiskDeviceMapping"]) == 1
    assert cloud.run(ImageId=image)
    assert cloud.refused("ecs", "DeleteImage", ImageId=image) == "ImageInUse"
    snapshot = row["DiskDeviceMappings"]["DiskDeviceMapping"][0]["SnapshotId"]
    assert cloud.refused("ecs", "DeleteSnapshot", SnapshotId=snapshot) == "SnapshotCreatedImage"
    cloud.ecs("DeleteImage", ImageId=image, Force=True)
    cloud.ecs("DeleteSnapshot", SnapshotId=snapshot)
    assert cloud.refused("ecs", "DeleteImage", ImageId=image) == "InvalidImageId.NotFound"


def test_images_are_not_made_of_what_is_not_settled(cloud):
    (name,) = cloud.run()
    assert cloud.refused("ecs", "CreateImage", InstanceId=name) == "IncorrectInstanceStatus"
    assert cloud.refused("ecs", "CreateImage", InstanceId="i-none") == "InvalidInstanceId.NotFound"
    assert cloud.refused("ecs", "CreateImage") == "InvalidParameter.AllEmpty"
    cloud.later(30)
    cloud.ecs("CreateImage", InstanceId=name, ImageName="same")
    assert (
        cloud.refused("ecs", "CreateImage", InstanceId=name, ImageName="same")
        == "InvalidImageName.Duplicated"
    )
    assert (
        cloud.refused("ecs", "CreateImage", InstanceId=name, ImageName="1x") == "InvalidImageName.Malformed"
    )
    cloud.world.set_options({"quotas": {"images": 1}})
    assert cloud.refused("ecs", "CreateImage", InstanceId=name, ImageName="other") == "QuotaExceed.Image"


def test_an_image_is_copied_into_another_region(cloud):
    (name,) = cloud.running()
    image = cloud.ecs("CreateImage", InstanceId=name, ImageName="mine")["ImageId"]
    copy = {"ImageId": image, "DestinationRegionId": "cn-hangzhou", "DestinationImageName": "copied"}
    assert cloud.refused("ecs", "CopyImage", **copy) == "IncorrectImageStatus"
    cloud.later(60)
    copied = cloud.ecs("CopyImage", **copy)["ImageId"]
    cloud.later(60)
    assert copied in find(cloud, RegionId="cn-hangzhou", ImageOwnerAlias="self")
    assert copied not in find(cloud, ImageOwnerAlias="self")


def test_an_image_is_made_of_a_snapshot(cloud):
    (name,) = cloud.running()
    system = cloud.world.disks_of(name)[0]
    snapshot = cloud.ecs("CreateSnapshot", DiskId=system.id)["SnapshotId"]
    assert cloud.refused("ecs", "CreateImage", SnapshotId=snapshot) == "InvalidSnapshotId.NotReady"
    cloud.later(20)
    assert cloud.ecs("CreateImage", SnapshotId=snapshot)["ImageId"]
