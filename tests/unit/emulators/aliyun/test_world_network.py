"""VPCs, vSwitches, elastic addresses: states, ranges, one at a time, and the order of deletion."""

from __future__ import annotations

import pytest

from emulated import ZONE, Cloud


@pytest.fixture
def cloud():
    return Cloud()


def test_a_vpc_is_pending_and_then_available(cloud):
    vpc = cloud.vpc("CreateVpc", CidrBlock="192.168.0.0/16", VpcName="ncluster-vpc")["VpcId"]
    (row,) = cloud.vpc("DescribeVpcs", VpcName="ncluster-vpc")["Vpcs"]["Vpc"]
    assert (row["VpcId"], row["Status"], row["CidrBlock"]) == (vpc, "Pending", "192.168.0.0/16")
    made = {"VpcId": vpc, "ZoneId": ZONE, "CidrBlock": "192.168.0.0/20"}
    assert cloud.refused("vpc", "CreateVSwitch", **made) == "IncorrectVpcStatus"
    assert cloud.refused("ecs", "CreateSecurityGroup", VpcId=vpc) == "IncorrectVpcStatus"
    cloud.later(1)
    assert cloud.vpc("DescribeVpcAttribute", VpcId=vpc)["Status"] == "Available"
    assert cloud.vpc("DescribeVpcs", VpcId=f"{vpc},vpc-none")["TotalCount"] == 1
    assert cloud.vpc("DescribeVpcs", VpcName="other")["TotalCount"] == 0


def test_vswitches_of_one_vpc_are_made_one_after_the_other(cloud):
    vpc, _ = cloud.network()
    first = {"VpcId": vpc, "ZoneId": ZONE, "CidrBlock": "192.168.16.0/20"}
    second = {"VpcId": vpc, "ZoneId": "cn-beijing-g", "CidrBlock": "192.168.32.0/20"}
    made = cloud.vpc("CreateVSwitch", **first, VSwitchName="v-h")["VSwitchId"]
    assert cloud.refused("vpc", "CreateVSwitch", **second) == "TaskConflict"
    other, _ = cloud.network()  # another VPC is free
    assert other != vpc
    cloud.vpc("CreateVSwitch", **second)
    (row,) = cloud.vpc("DescribeVSwitches", VSwitchName="v-h", VpcId=vpc)["VSwitches"]["VSwitch"]
    assert (row["VSwitchId"], row["AvailableIpAddressCount"]) == (made, 4092)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"CidrBlock": "192.168.8.0/24"}, "InvalidCidrBlock.Overlapped"),
        ({"CidrBlock": "10.0.0.0/24"}, "InvalidCidrBlock"),
        ({"CidrBlock": "192.168.64.0/30"}, "InvalidCidrBlock"),
        ({"CidrBlock": "192.168.64.1/24"}, "InvalidCidrBlock.Malformed"),
        ({"ZoneId": "cn-beijing-zz"}, "InvalidZoneId.NotFound"),
        ({"ZoneId": "cn-hangzhou-h"}, "InvalidZoneId.NotFound"),
        ({"VpcId": "vpc-none"}, "InvalidVpcId.NotFound"),
    ],
)
def test_a_wrong_vswitch_is_refused(cloud, change, code):
    vpc, _ = cloud.network()
    right = {"VpcId": vpc, "ZoneId": ZONE, "CidrBlock": "192.168.64.0/20"}
    assert cloud.refused("vpc", "CreateVSwitch", **{**right, **change}) == code


def test_a_wrong_vpc_is_refused(cloud):
    assert cloud.refused("vpc", "CreateVpc", CidrBlock="8.8.0.0/16") == "InvalidVpcCidrBlock"
    assert cloud.refused("vpc", "CreateVpc", CidrBlock="nonsense") == "InvalidCidrBlock.Malformed"
    assert cloud.refused("vpc", "CreateVpc", RegionId="moon") == "InvalidRegionId.NotFound"


def test_quotas_hold(cloud):
    for _ in range(10):
        vpc = cloud.vpc("CreateVpc")["VpcId"]
    assert cloud.refused("vpc", "CreateVpc") == "QuotaExceeded.Vpc"
    cloud.vpc("CreateVpc", RegionId="cn-hangzhou")
    cloud.world.set_options({"quotas": {"vswitches": 1}})
    cloud.later(1)
    cloud.vpc("CreateVSwitch", VpcId=vpc, ZoneId=ZONE, CidrBlock="172.16.0.0/24")
    cloud.later(1)
    refused = cloud.refused("vpc", "CreateVSwitch", VpcId=vpc, ZoneId=ZONE, CidrBlock="172.16.1.0/24")
    assert refused == "QuotaExceeded.VSwitch"


def test_networks_are_removed_from_the_inside_out(cloud):
    cloud.ready()
    (name,) = cloud.running()
    vpc, vswitch, group = (
        next(iter(cloud.world.vpcs)),
        cloud.launch["VSwitchId"],
        cloud.launch["SecurityGroupId"],
    )
    assert cloud.refused("vpc", "DeleteVpc", VpcId=vpc) == "DependencyViolation.VSwitch"
    assert cloud.refused("vpc", "DeleteVSwitch", VSwitchId=vswitch) == "DependencyViolation"
    assert cloud.refused("ecs", "DeleteSecurityGroup", SecurityGroupId=group) == "DependencyViolation"
    cloud.ecs("DeleteInstances", InstanceId=[name], Force=True)
    assert cloud.refused("vpc", "DeleteVSwitch", VSwitchId=vswitch) == "DependencyViolation"  # lingers
    cloud.later(3)
    cloud.vpc("DeleteVSwitch", VSwitchId=vswitch)
    assert cloud.refused("vpc", "DeleteVpc", VpcId=vpc) == "DependencyViolation.SecurityGroup"
    cloud.ecs("DeleteSecurityGroup", SecurityGroupId=group)
    cloud.vpc("DeleteVpc", VpcId=vpc)
    assert cloud.refused("vpc", "DeleteVpc", VpcId=vpc) == "InvalidVpcId.NotFound"
    assert (cloud.world.vpcs, cloud.world.vswitches, cloud.world.groups) == ({}, {}, {})


def test_an_occupied_subnet_has_fewer_addresses(cloud):
    _, vswitch = cloud.network("192.168.0.0/28")
    cloud.world.occupy(vswitch, 10)
    shown = cloud.vpc("DescribeVSwitchAttributes", VSwitchId=vswitch)
    assert shown["AvailableIpAddressCount"] == 2


def test_an_elastic_address_stays_when_its_instance_goes(cloud):
    cloud.ready()
    (name,) = cloud.running()
    eip = cloud.vpc("AllocateEipAddress", Bandwidth="10")
    cloud.vpc("AssociateEipAddress", AllocationId=eip["AllocationId"], InstanceId=name)
    (row,) = cloud.vpc("DescribeEipAddresses")["EipAddresses"]["EipAddress"]
    assert row["Status"] == "Associating"
    cloud.later(1)
    assert cloud.show(name)["EipAddress"]["IpAddress"] == eip["EipAddress"]
    assert cloud.world.machines(cloud.now)[0].public_address == eip["EipAddress"]
    cloud.ecs("StopInstances", InstanceId=[name], StoppedMode="StopCharging")
    cloud.later(10)
    cloud.ecs("StartInstances", InstanceId=[name])
    cloud.later(20)
    assert cloud.show(name)["EipAddress"]["IpAddress"] == eip["EipAddress"]
    refused = cloud.refused("vpc", "ReleaseEipAddress", AllocationId=eip["AllocationId"])
    assert refused == "IncorrectEipStatus"
    cloud.ecs("DeleteInstances", InstanceId=[name], Force=True)
    cloud.later(3)
    (row,) = cloud.vpc("DescribeEipAddresses", AllocationId=eip["AllocationId"])["EipAddresses"]["EipAddress"]
    assert (row["Status"], row["InstanceId"]) == ("Available", "")
    cloud.vpc("ReleaseEipAddress", AllocationId=eip["AllocationId"])


def test_an_elastic_address_can_be_unbound(cloud):
    cloud.ready()
    (name,) = cloud.running()
    eip = cloud.vpc("AllocateEipAddress")["AllocationId"]
    cloud.vpc("AssociateEipAddress", AllocationId=eip, InstanceId=name)
    assert cloud.refused("vpc", "UnassociateEipAddress", AllocationId=eip) == "IncorrectEipStatus"
    cloud.later(1)
    cloud.vpc("UnassociateEipAddress", AllocationId=eip)
    cloud.later(1)
    assert cloud.show(name)["EipAddress"]["IpAddress"] == ""
    cloud.vpc("ReleaseEipAddress", AllocationId=eip)


def test_zones_and_regions_are_listed(cloud):
    assert ZONE in {row["ZoneId"] for row in cloud.vpc("DescribeZones")["Zones"]["Zone"]}
    rows = cloud.ecs("DescribeRegions")["Regions"]["Region"]
    endpoints = {row["RegionId"]: row["RegionEndpoint"] for row in rows}
    assert endpoints["cn-hangzhou"] == "ecs-cn-hangzhou.aliyuncs.com"
    assert endpoints["cn-beijing"] == "ecs.cn-beijing.aliyuncs.com"
