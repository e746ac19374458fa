"""Changes to what exists: types, sizes, memberships, roles, rules, and what they cost from then on."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from emulated import CPU, TYPE, ZONE, Cloud
from trainyard.emulators.aliyun.cloud.catalogue import TYPES, instance_price


@pytest.fixture
def cloud():
    return Cloud().ready()


def test_a_stopped_instance_takes_another_type_and_costs_what_that_costs(cloud):
    (name,) = cloud.running(InstanceType=CPU)
    change = {"InstanceId": name, "InstanceType": TYPE}
    assert cloud.refused("ecs", "ModifyInstanceSpec", **change) == "IncorrectInstanceStatus"
    cloud.ecs("StopInstances", InstanceId=[name])
    cloud.later(10)
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=0)
    assert cloud.refused("ecs", "ModifyInstanceSpec", **change) == "OperationDenied.NoStock"
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=1)
    cloud.ecs("ModifyInstanceSpec", **change)
    assert cloud.show(name)["InstanceType"] == TYPE
    assert cloud.world.rate(cloud.now, name) == instance_price(TYPES[TYPE], "cn-beijing")
    assert cloud.world.stock(ZONE, TYPE, spot=False) == 0


def test_another_type_must_fit_the_quota(cloud):
    (name,) = cloud.running(InstanceType=CPU)
    cloud.ecs("StopInstances", InstanceId=[name])
    cloud.later(10)
    cloud.world.set_options({"quotas": {"vcpus": 4}})
    refused = cloud.refused("ecs", "ModifyInstanceSpec", InstanceId=name, InstanceType=TYPE)
    assert refused == "QuotaExceed.ElasticQuota"


def test_disks_grow_and_never_shrink(cloud):
    disk = cloud.ecs("CreateDisk", ZoneId=ZONE, Size=20, DiskCategory="cloud_essd")["DiskId"]
    assert cloud.refused("ecs", "ResizeDisk", DiskId=disk, NewSize=40) == "IncorrectDiskStatus"
    cloud.later(1)
    rate = cloud.world.rate(cloud.now, disk)
    cloud.ecs("ResizeDisk", DiskId=disk, NewSize=40)
    assert cloud.world.rate(cloud.now, disk) == pytest.approx(2 * rate, abs=Decimal("1e-5"))
    assert cloud.refused("ecs", "ResizeDisk", DiskId=disk, NewSize=30) == "InvalidDiskSize.TooSmall"


def test_a_disk_can_be_made_to_outlive_its_instance(cloud):
    (name,) = cloud.running()
    system = cloud.world.disks_of(name)[0].id
    cloud.ecs("ModifyDiskAttribute", DiskId=system, DeleteWithInstance=False, DiskName="kept")
    cloud.ecs("DeleteInstances", InstanceId=[name], Force=True)
    cloud.later(5)
    (row,) = cloud.ecs("DescribeDisks", DiskName="kept")["Disks"]["Disk"]
    assert row["Status"] == "Available"
    assert cloud.world.rate(cloud.now) > 0


def test_instances_join_and_leave_groups_but_stay_in_one(cloud):
    (name,) = cloud.running()
    first = cloud.launch["SecurityGroupId"]
    second = cloud.ecs("CreateSecurityGroup", VpcId=next(iter(cloud.world.vpcs)))["SecurityGroupId"]
    both = {"InstanceId": name, "SecurityGroupId": second}
    cloud.ecs("JoinSecurityGroup", **both)
    assert cloud.refused("ecs", "JoinSecurityGroup", **both) == "InvalidInstanceId.AlreadyExists"
    assert cloud.show(name)["SecurityGroupIds"]["SecurityGroupId"] == [first, second]
    cloud.ecs("LeaveSecurityGroup", InstanceId=name, SecurityGroupId=first)
    assert cloud.refused("ecs", "LeaveSecurityGroup", **both) == "InstanceLastSecurityGroup"
    refused = cloud.refused("ecs", "LeaveSecurityGroup", InstanceId=name, SecurityGroupId=first)
    assert refused == "InstanceNotInSecurityGroup"


def test_a_rule_changes_where_it_is_named_and_nowhere_else(cloud):
    group = {"SecurityGroupId": cloud.launch["SecurityGroupId"]}
    rule = {"IpProtocol": "tcp", "PortRange": "22/22", "SourceCidrIp": "1.2.3.4", "Description": "d"}
    cloud.ecs("AuthorizeSecurityGroup", **group, Permissions=[rule, {**rule, "PortRange": "23/23"}])

    def rules():
        return cloud.ecs("DescribeSecurityGroupAttribute", **group)["Permissions"]["Permission"]

    named = {**group, "SecurityGroupRuleId": rules()[0]["SecurityGroupRuleId"]}
    cloud.ecs("ModifySecurityGroupRule", **named, SourceCidrIp="5.6.7.8")
    assert [row["SourceCidrIp"] for row in rules()] == ["5.6.7.8", "1.2.3.4"]
    assert rules()[0]["PortRange"] == "22/22"
    repeat = {"SourceCidrIp": "1.2.3.4", "PortRange": "23/23"}
    refused = cloud.refused("ecs", "ModifySecurityGroupRule", **named, **repeat)
    assert refused == "InvalidSecurityGroupRule.RuleRepeat"


def test_groups_that_name_a_group_are_told(cloud):
    first = cloud.launch["SecurityGroupId"]
    second = cloud.ecs("CreateSecurityGroup", VpcId=next(iter(cloud.world.vpcs)))["SecurityGroupId"]
    rule = {"IpProtocol": "all", "PortRange": "-1/-1", "SourceGroupId": first}
    cloud.ecs("AuthorizeSecurityGroup", SecurityGroupId=second, Permissions=[rule])
    body = cloud.ecs("DescribeSecurityGroupReferences", SecurityGroupId=[first, second])
    (row,) = body["SecurityGroupReferences"]["SecurityGroupReference"]
    assert row["SecurityGroupId"] == first
    naming = row["ReferencingSecurityGroups"]["ReferencingSecurityGroup"]
    assert [one["SecurityGroupId"] for one in naming] == [second]


def test_roles_come_and_go(cloud):
    a, b = cloud.running(Amount=2)
    ids = json.dumps([a, "i-none"])
    first = cloud.ecs("AttachInstanceRamRole", InstanceIds=ids, RamRoleName="r")
    assert (first["TotalCount"], first["FailCount"]) == (2, 1)
    assert cloud.ecs("AttachInstanceRamRole", InstanceIds=json.dumps([a]), RamRoleName="r")["FailCount"] == 1
    (row,) = cloud.ecs("DescribeInstanceRamRole")["InstanceRamRoleSets"]["InstanceRamRoleSet"]
    assert row == {"InstanceId": a, "RamRoleName": "r"}
    cloud.ecs("DetachInstanceRamRole", InstanceIds=json.dumps([a]), RamRoleName="r")
    rows = cloud.ecs("DescribeInstanceRamRole", InstanceIds=json.dumps([a, b]))
    assert [row["RamRoleName"] for row in rows["InstanceRamRoleSets"]["InstanceRamRoleSet"]] == ["", ""]


def test_an_image_is_renamed_and_deprecated(cloud):
    (name,) = cloud.running()
    image = cloud.ecs("CreateImage", InstanceId=name, ImageName="one")["ImageId"]
    cloud.later(60)
    cloud.ecs("ModifyImageAttribute", ImageId=image, ImageName="two", Status="Deprecated")
    assert cloud.ecs("DescribeImages", ImageOwnerAlias="self")["TotalCount"] == 0
    rows = cloud.ecs("DescribeImages", ImageOwnerAlias="self", Status="Deprecated")["Images"]["Image"]
    assert [row["ImageName"] for row in rows] == ["two"]


def test_the_metadata_can_be_made_to_want_tokens(cloud):
    (name,) = cloud.running()
    cloud.ecs("ModifyInstanceMetadataOptions", InstanceId=name, HttpEndpoint="enabled", HttpTokens="required")
    assert cloud.show(name)["MetadataOptions"]["HttpTokens"] == "required"


def test_kept_commands_are_listed(cloud):
    (name,) = cloud.running()
    script = {"Type": "RunShellScript", "CommandContent": "echo {{a}}", "InstanceId": [name]}
    cloud.ecs("RunCommand", **script, Name="kept", KeepCommand=True)
    cloud.ecs("RunCommand", **script, Name="gone")
    (row,) = cloud.ecs("DescribeCommands", ContentEncoding="PlainText")["Commands"]["Command"]
    assert (row["Name"], row["CommandContent"], row["InvokeTimes"]) == ("kept", "echo {{a}}", 1)
    cloud.ecs("InstallCloudAssistant", InstanceId=[name])


def test_mount_targets_and_access_rules_change():
    cloud = Cloud()
    vpc, vswitch = cloud.network()
    system = cloud.nas("CreateFileSystem", ProtocolType="NFS", StorageType="Capacity")["FileSystemId"]
    cloud.later(3)
    place = {"NetworkType": "Vpc", "VpcId": vpc, "VSwitchId": vswitch}
    domain = cloud.nas("CreateMountTarget", FileSystemId=system, **place)["MountTargetDomain"]
    one = {"FileSystemId": system, "MountTargetDomain": domain}
    assert (
        cloud.refused("nas", "ModifyMountTarget", **one, Status="Inactive") == "OperationDenied.InvalidState"
    )
    cloud.later(5)
    cloud.nas("ModifyMountTarget", **one, Status="Inactive")
    (row,) = cloud.nas("DescribeMountTargets", FileSystemId=system)["MountTargets"]["MountTarget"]
    assert row["Status"] == "Inactive"
    cloud.nas("CreateAccessGroup", AccessGroupName="g", AccessGroupType="Vpc")
    rules = [
        cloud.nas("CreateAccessRule", AccessGroupName="g", SourceCidrIp="1.1.1.1")["AccessRuleId"]
        for _ in range(2)
    ]
    cloud.nas("DeleteAccessRule", AccessGroupName="g", AccessRuleId=rules[0])
    assert (
        cloud.nas("CreateAccessRule", AccessGroupName="g", SourceCidrIp="2.2.2.2")["AccessRuleId"]
        not in rules
    )


def test_an_elastic_address_costs_more_when_it_is_wider(cloud):
    pay = {"Bandwidth": "5", "InternetChargeType": "PayByBandwidth"}
    eip = cloud.vpc("AllocateEipAddress", **pay)["AllocationId"]
    rate = cloud.world.rate(cloud.now, eip)
    cloud.vpc("ModifyEipAddressAttribute", AllocationId=eip, Bandwidth="50")
    assert cloud.world.rate(cloud.now, eip) > rate
