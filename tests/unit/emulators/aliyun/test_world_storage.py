"""NAS: file systems and mount targets that take their time, access groups, the order of deletion."""

from __future__ import annotations

import pytest

from emulated import Cloud


@pytest.fixture
def cloud():
    cloud = Cloud()
    cloud.where = dict(zip(("VpcId", "VSwitchId"), cloud.network(), strict=True))
    return cloud


def make(cloud, **parameters):
    given = {"ProtocolType": "NFS", "StorageType": "Performance", **parameters}
    return cloud.nas("CreateFileSystem", **given)["FileSystemId"]


def target(cloud, system, **parameters):
    given = {"FileSystemId": system, "NetworkType": "Vpc", **cloud.where, **parameters}
    return cloud.nas("CreateMountTarget", **given)["MountTargetDomain"]


def test_a_file_system_and_its_target_become_ready_one_after_the_other(cloud):
    system = make(cloud, Description="trainyard")
    (row,) = cloud.nas("DescribeFileSystems", FileSystemId=system)["FileSystems"]["FileSystem"]
    assert (row["Status"], row["Description"]) == ("Pending", "trainyard")
    given = {"FileSystemId": system, "NetworkType": "Vpc", **cloud.where}
    assert cloud.refused("nas", "CreateMountTarget", **given) == "OperationDenied.InvalidState"
    cloud.later(3)
    domain = target(cloud, system)
    assert domain.startswith(system)
    assert domain.endswith(".cn-beijing.nas.aliyuncs.com")
    (row,) = cloud.nas("DescribeMountTargets", FileSystemId=system)["MountTargets"]["MountTarget"]
    assert (row["Status"], row["VswId"]) == ("Pending", cloud.where["VSwitchId"])
    cloud.later(5)
    (row,) = cloud.nas("DescribeFileSystems", VpcId=cloud.where["VpcId"])["FileSystems"]["FileSystem"]
    (mounted,) = row["MountTargets"]["MountTarget"]
    assert (mounted["Status"], mounted["MountTargetDomain"]) == ("Active", domain)


def test_calling_twice_makes_two_targets_and_then_the_limit_is_reached(cloud):
    system = make(cloud)
    cloud.later(3)
    assert target(cloud, system) != target(cloud, system)
    given = {"FileSystemId": system, "NetworkType": "Vpc", **cloud.where}
    assert cloud.refused("nas", "CreateMountTarget", **given) == "OperationDenied.MountTargetCountsExceeded"


def test_targets_go_before_their_file_system_and_their_vswitch(cloud):
    system = make(cloud)
    cloud.later(3)
    domain = target(cloud, system)
    assert (
        cloud.refused("nas", "DeleteFileSystem", FileSystemId=system) == "OperationDenied.MountTargetNotEmpty"
    )
    refused = cloud.refused("vpc", "DeleteVSwitch", VSwitchId=cloud.where["VSwitchId"])
    assert refused == "DependencyViolation.MountTarget"
    given = {"FileSystemId": system, "MountTargetDomain": domain}
    assert cloud.refused("nas", "DeleteMountTarget", **given) == "OperationDenied.InvalidState"
    cloud.later(5)
    cloud.nas("DeleteMountTarget", **given)
    assert cloud.refused("nas", "DeleteMountTarget", **given) == "InvalidMountTarget.NotFound"
    cloud.nas("DeleteFileSystem", FileSystemId=system)
    assert cloud.refused("nas", "DeleteFileSystem", FileSystemId=system) == "InvalidFileSystem.NotFound"
    cloud.vpc("DeleteVSwitch", VSwitchId=cloud.where["VSwitchId"])


def test_wrong_requests_are_refused(cloud):
    given = {"ProtocolType": "NFS", "StorageType": "Golden"}
    assert cloud.refused("nas", "CreateFileSystem", **given) == "InvalidParameter.StorageType"
    system = make(cloud)
    cloud.later(3)
    wrong = {"FileSystemId": system, "NetworkType": "Vpc", **cloud.where}
    assert (
        cloud.refused("nas", "CreateMountTarget", **{**wrong, "VpcId": "vpc-x"})
        == "InvalidVSwitchId.NotFound"
    )
    refused = cloud.refused("nas", "CreateMountTarget", **wrong, AccessGroupName="none")
    assert refused == "InvalidAccessGroup.NotFound"
    cloud.world.set_options({"account": {"nas_activated": False}})
    assert cloud.refused("nas", "DescribeFileSystems") == "User.Disabled"


def test_access_groups_have_rules(cloud):
    cloud.nas("CreateAccessGroup", AccessGroupName="g", AccessGroupType="Vpc")
    refused = cloud.refused("nas", "CreateAccessGroup", AccessGroupName="g", AccessGroupType="Vpc")
    assert refused == "InvalidAccessGroup.AlreadyExisted"
    cloud.nas("CreateAccessRule", AccessGroupName="g", SourceCidrIp="192.168.0.0/16")
    (rule,) = cloud.nas("DescribeAccessRules", AccessGroupName="g")["AccessRules"]["AccessRule"]
    assert (rule["SourceCidrIp"], rule["RWAccess"], rule["UserAccess"]) == (
        "192.168.0.0/16",
        "RDWR",
        "no_squash",
    )
    rows = cloud.nas("DescribeAccessGroups")["AccessGroups"]["AccessGroup"]
    assert [row["AccessGroupName"] for row in rows] == ["DEFAULT_VPC_GROUP_NAME", "g"]
    cloud.nas("DeleteAccessGroup", AccessGroupName="g")
    assert cloud.refused("nas", "DescribeAccessRules", AccessGroupName="g") == "InvalidAccessGroup.NotFound"


def test_places_are_listed(cloud):
    assert cloud.nas("DescribeRegions", PageSize=100)["TotalCount"] > 10
    zones = cloud.nas("DescribeZones", RegionId="cn-beijing")["Zones"]["Zone"]
    assert "cn-beijing-h" in [row["ZoneId"] for row in zones]
