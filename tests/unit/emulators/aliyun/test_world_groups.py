"""Security groups: rules granted once however often they are asked for, limits, members, deletion."""

from __future__ import annotations

import json

import pytest

from emulated import Cloud

SSH = {"IpProtocol": "tcp", "PortRange": "22/22", "SourceCidrIp": "203.0.113.7/32", "Description": "me"}


@pytest.fixture
def cloud():
    return Cloud().ready()


def rules(cloud, group=None):
    body = cloud.ecs(
        "DescribeSecurityGroupAttribute",
        SecurityGroupId=group or cloud.launch["SecurityGroupId"],
        NicType="intranet",
    )
    return body["Permissions"]["Permission"]


def test_a_rule_is_there_once_when_it_is_granted_twice(cloud):
    group = {"SecurityGroupId": cloud.launch["SecurityGroupId"]}
    cloud.ecs("AuthorizeSecurityGroup", **group, Permissions=[SSH, SSH])
    cloud.ecs("AuthorizeSecurityGroup", **group, Permissions=[{**SSH, "Description": "other words"}])
    cloud.ecs("AuthorizeSecurityGroup", **group, Permissions=[{**SSH, "SourceCidrIp": "203.0.113.7"}])
    cloud.ecs("AuthorizeSecurityGroup", **group, **SSH)  # the older, flat form
    (rule,) = rules(cloud)
    assert rule["IpProtocol"] == "TCP"
    assert rule["PortRange"] == "22/22"
    assert rule["SourceCidrIp"] == "203.0.113.7/32"
    assert rule["Policy"] == "Accept"
    assert rule["Description"] == "me"
    assert rule["Direction"] == "ingress"


def test_rules_are_taken_away_by_content_or_id(cloud):
    group = {"SecurityGroupId": cloud.launch["SecurityGroupId"]}
    wide = {"IpProtocol": "icmp", "PortRange": "-1/-1", "SourceCidrIp": "0.0.0.0/0"}
    cloud.ecs("AuthorizeSecurityGroup", **group, Permissions=[SSH, wide])
    cloud.ecs("RevokeSecurityGroup", **group, Permissions=[SSH])
    cloud.ecs("RevokeSecurityGroup", **group, Permissions=[SSH])
    (rule,) = rules(cloud)
    cloud.ecs("RevokeSecurityGroup", **group, SecurityGroupRuleId=[rule["SecurityGroupRuleId"]])
    assert rules(cloud) == []
    refused = cloud.refused("ecs", "RevokeSecurityGroup", **group, SecurityGroupRuleId=["sgr-none"])
    assert refused == "InvalidGroupAuthItem.NotFound"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"IpProtocol": "carrier-pigeon"}, "InvalidIpProtocol.ValueNotSupported"),
        ({"PortRange": "22"}, "InvalidIpPortRange.Malformed"),
        ({"PortRange": "23/22"}, "InvalidIpPortRange.Malformed"),
        ({"PortRange": "1/70000"}, "InvalidIpPortRange.Malformed"),
        ({"SourceCidrIp": "300.0.0.1"}, "InvalidSourceCidrIp.Malformed"),
        ({"SourceCidrIp": "::1/128"}, "InvalidSourceCidrIp.Malformed"),
        ({"SourceCidrIp": ""}, "MissingParameter.Source"),
        ({"Policy": "maybe"}, "InvalidPolicy.Malformed"),
        ({"Priority": "101"}, "InvalidPriority.ValueNotSupported"),
        ({"SourceCidrIp": "", "SourceGroupId": "sg-none"}, "InvalidSourceGroupId.NotFound"),
    ],
)
def test_a_wrong_rule_is_refused_and_none_of_the_call_is_granted(cloud, change, code):
    group = {"SecurityGroupId": cloud.launch["SecurityGroupId"]}
    wrong = [{**SSH, "PortRange": "80/80"}, {**SSH, **change}]
    assert cloud.refused("ecs", "AuthorizeSecurityGroup", **group, Permissions=wrong) == code
    assert rules(cloud) == []


def test_a_group_has_so_many_rules_and_no_more(cloud):
    group = {"SecurityGroupId": cloud.launch["SecurityGroupId"]}
    many = [{**SSH, "PortRange": f"{port}/{port}"} for port in range(1, 201)]
    cloud.ecs("AuthorizeSecurityGroup", **group, Permissions=many[:100])
    cloud.ecs("AuthorizeSecurityGroup", **group, Permissions=many[100:])
    assert (
        cloud.refused("ecs", "AuthorizeSecurityGroup", **group, Permissions=many[:101]) == "InvalidParameter"
    )
    more = [{**SSH, "PortRange": "1000/1000"}]
    assert (
        cloud.refused("ecs", "AuthorizeSecurityGroup", **group, Permissions=more)
        == "AuthorizationLimitExceed"
    )
    cloud.ecs("AuthorizeSecurityGroup", **group, Permissions=many[:100])  # nothing new


def test_groups_are_found_by_name_vpc_and_tag(cloud):
    vpc = next(iter(cloud.world.vpcs))
    tagged = {"Tag": [{"Key": "a", "Value": "b"}], "SecurityGroupName": "train.x"}
    made = cloud.ecs("CreateSecurityGroup", VpcId=vpc, **tagged)["SecurityGroupId"]

    def find(**parameters):
        rows = cloud.ecs("DescribeSecurityGroups", **parameters)["SecurityGroups"]["SecurityGroup"]
        return [row["SecurityGroupId"] for row in rows]

    assert len(find(VpcId=vpc)) == 2
    assert find(SecurityGroupName="train.x") == [made]
    assert find(SecurityGroupName="train", FuzzyQuery=True) == [made]
    assert find(SecurityGroupName="train") == []
    assert find(Tag=[{"Key": "a", "Value": "b"}]) == [made]
    assert find(SecurityGroupIds=json.dumps([made])) == [made]
    assert find(MaxResults=100) == find()


def test_a_group_cannot_go_while_another_names_it(cloud):
    vpc, first = next(iter(cloud.world.vpcs)), cloud.launch["SecurityGroupId"]
    second = cloud.ecs("CreateSecurityGroup", VpcId=vpc)["SecurityGroupId"]
    named = {"IpProtocol": "all", "PortRange": "-1/-1", "SourceGroupId": first}
    cloud.ecs("AuthorizeSecurityGroup", SecurityGroupId=second, Permissions=[named])
    assert cloud.refused("ecs", "DeleteSecurityGroup", SecurityGroupId=first) == "DependencyViolation"
    cloud.ecs("DeleteSecurityGroup", SecurityGroupId=second)
    cloud.ecs("DeleteSecurityGroup", SecurityGroupId=first)


def test_members_of_enterprise_groups_are_isolated(cloud):
    vpc = next(iter(cloud.world.vpcs))
    made = cloud.ecs("CreateSecurityGroup", VpcId=vpc, SecurityGroupType="enterprise")["SecurityGroupId"]
    assert cloud.ecs("DescribeSecurityGroupAttribute", SecurityGroupId=made)["InnerAccessPolicy"] == "Drop"
    usual = cloud.launch["SecurityGroupId"]
    assert cloud.ecs("DescribeSecurityGroupAttribute", SecurityGroupId=usual)["InnerAccessPolicy"] == "Accept"


def test_a_group_of_another_vpc_does_not_fit(cloud):
    other, _ = cloud.network()
    foreign = cloud.ecs("CreateSecurityGroup", VpcId=other)["SecurityGroupId"]
    launch = {**cloud.launch, "SecurityGroupId": foreign}
    assert cloud.refused("ecs", "RunInstances", **launch) == "InvalidParameter.Mismatch"


def test_a_group_has_so_many_members_and_no_more(cloud):
    cloud.world.set_options({"quotas": {"group_members": 2}})
    cloud.run(Amount=2)
    assert cloud.refused("ecs", "RunInstances", **cloud.launch) == "SecurityGroupInstanceLimitExceed"
