"""Tags: added, replaced, listed and taken away, on things of every product."""

from __future__ import annotations

import pytest

from emulated import PUBLIC_KEY, Cloud


@pytest.fixture
def cloud():
    return Cloud().ready()


def listed(cloud, product="ecs", **parameters):
    body = cloud.call(product, "ListTagResources", **parameters)
    return {
        (row["ResourceId"], row["TagKey"], row["TagValue"]) for row in body["TagResources"]["TagResource"]
    }


def test_tags_are_added_replaced_and_removed(cloud):
    a, b = cloud.running(Amount=2, Tag=[{"Key": "job", "Value": "x"}])
    cloud.ecs(
        "TagResources",
        ResourceType="instance",
        ResourceId=[a],
        Tag=[{"Key": "job", "Value": "y"}, {"Key": "k", "Value": "v"}],
    )
    everything = {(a, "job", "y"), (a, "k", "v"), (b, "job", "x")}
    assert listed(cloud, ResourceType="instance", ResourceId=[a, b]) == everything
    assert listed(cloud, ResourceType="instance", Tag=[{"Key": "job"}]) == everything
    assert listed(cloud, ResourceType="instance", Tag=[{"Key": "job", "Value": "x"}]) == {(b, "job", "x")}
    assert listed(cloud, ResourceType="instance", Tag=[{"Key": "none"}]) == set()
    cloud.ecs("UntagResources", ResourceType="instance", ResourceId=[a], TagKey=["job", "none"])
    assert listed(cloud, ResourceType="instance", ResourceId=[a]) == {(a, "k", "v")}
    cloud.ecs("UntagResources", ResourceType="instance", ResourceId=[a, b], All=True)
    assert listed(cloud, ResourceType="instance", ResourceId=[a, b]) == set()
    assert cloud.world.disks_of(a)[0].tags == {"job": "x"}  # a disk's tags are its own


def test_tags_are_on_everything_that_has_them(cloud):
    cloud.ecs("ImportKeyPair", KeyPairName="mine", PublicKeyBody=PUBLIC_KEY)
    (name,) = cloud.running()
    things = {
        ("ecs", "instance"): name,
        ("ecs", "disk"): cloud.world.disks_of(name)[0].id,
        ("ecs", "eni"): cloud.world.instances[name].interface,
        ("ecs", "securitygroup"): cloud.launch["SecurityGroupId"],
        ("ecs", "keypair"): "mine",
        ("vpc", "VSWITCH"): cloud.launch["VSwitchId"],
        ("vpc", "VPC"): next(iter(cloud.world.vpcs)),
        ("vpc", "EIP"): cloud.vpc("AllocateEipAddress")["AllocationId"],
        ("nas", "filesystem"): cloud.nas("CreateFileSystem", ProtocolType="NFS", StorageType="Performance")[
            "FileSystemId"
        ],
    }
    for (product, kind), thing in things.items():
        given = {"ResourceType": kind, "ResourceId": [thing]}
        cloud.call(product, "TagResources", **given, Tag=[{"Key": "t", "Value": "1"}])
        assert listed(cloud, product, **given) == {(thing, "t", "1")}
    (row,) = cloud.vpc("DescribeVpcs", Tag=[{"Key": "t", "Value": "1"}])["Vpcs"]["Vpc"]
    assert row["Tags"]["Tag"] == [{"Key": "t", "Value": "1"}]
    assert "Tags" not in cloud.show(name) or len(cloud.show(name)["Tags"]["Tag"]) == 1


def test_wrong_tags_are_refused(cloud):
    (name,) = cloud.running()
    one = {"ResourceType": "instance", "ResourceId": [name]}
    tag = [{"Key": "a", "Value": "b"}]
    assert (
        cloud.refused("ecs", "TagResources", **{**one, "ResourceId": ["i-none"]}, Tag=tag)
        == "InvalidResourceId.NotFound"
    )
    assert (
        cloud.refused("ecs", "TagResources", **{**one, "ResourceType": "cat"}, Tag=tag)
        == "InvalidResourceType.NotFound"
    )
    assert (
        cloud.refused("ecs", "TagResources", **one, Tag=[{"Key": "acs:x", "Value": ""}])
        == "InvalidTagKey.Malformed"
    )
    many = [f"i-{number}" for number in range(51)]
    assert (
        cloud.refused("ecs", "TagResources", **{**one, "ResourceId": many}, Tag=tag)
        == "NumberExceed.ResourceIds"
    )
    twenty = [{"Key": f"k{number}", "Value": ""} for number in range(20)]
    cloud.ecs("TagResources", **one, Tag=twenty)
    assert cloud.refused("ecs", "TagResources", **one, Tag=tag) == "QuotaExceed.Tags"


def test_long_lists_come_in_pages_of_fifty(cloud):
    ids = cloud.running(Amount=60, Tag=[{"Key": "a", "Value": "b"}, {"Key": "c", "Value": "d"}])
    found, token = [], None
    while token != "":
        given = {"NextToken": token} if token else {}
        body = cloud.ecs("ListTagResources", ResourceType="instance", Tag=[{"Key": "a"}], **given)
        rows = body["TagResources"]["TagResource"]
        assert len(rows) <= 50
        found += [(row["ResourceId"], row["TagKey"]) for row in rows]
        token = body["NextToken"]
    assert sorted(found) == sorted((one, key) for one in ids for key in "ac")
