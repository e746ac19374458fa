"""Every action that reads answers in the fields of the vendor's own clients, in a cloud that has one of everything."""

from __future__ import annotations

import pytest

from emulation import Emulation, emulated
from trainyard.emulators.aliyun.api.actions import ACTIONS
from trainyard.emulators.aliyun.api.parameters import has_action, schema, strange_fields

READING = ("Describe", "List")
# These show more than the vendor's clients read, which hurts nobody.
GENEROUS = {("ecs", "DescribeInstanceAttribute"), ("vpc", "DescribeRegions")}
RESOURCES = {"ecs": "instance", "vpc": "VPC", "nas": "filesystem"}


def populate(cloud: Emulation) -> dict[str, object]:
    """One of everything; the values that required parameters take."""
    network = cloud.network()
    disk = {"Size": 40, "Category": "cloud_essd"}
    [instance] = cloud.launch(
        network,
        Tag=[{"Key": "a", "Value": "b"}],
        InternetMaxBandwidthOut=5,
        SpotStrategy="SpotAsPriceGo",
        DataDisk=[disk],
    )
    cloud.ecs("CreateKeyPair", KeyPairName="mine")
    system = cloud.call(
        "nas", "CreateFileSystem", ProtocolType="NFS", StorageType="Performance", FileSystemType="standard"
    )["FileSystemId"]
    cloud.call(
        "nas",
        "CreateMountTarget",
        FileSystemId=system,
        NetworkType="Vpc",
        VpcId=network["VpcId"],
        VSwitchId=network["VSwitchId"],
        AccessGroupName="DEFAULT_VPC_GROUP_NAME",
    )
    cloud.ecs("CreateImage", InstanceId=instance, ImageName="image")
    cloud.ecs("RunCommand", Type="RunShellScript", CommandContent="true", InstanceId=[instance])
    cloud.call("vpc", "AllocateEipAddress", Bandwidth="5")
    cloud.control("POST", "interrupt", {"instance": instance})
    return {
        **network,
        "InstanceId": instance,
        "InstanceType": "ecs.g7.large",
        "FileSystemId": system,
        "NetworkType": "vpc",
        "DestinationResource": "InstanceType",
        "ImageFamily": "acs:ubuntu_22_04_x64",
        "AccessGroupName": "DEFAULT_VPC_GROUP_NAME",
    }


def parameters_of(product: str, action: str, known: dict[str, object]) -> dict[str, object]:
    """What the action requires, and what it is about."""
    tree = schema()[product][action]["request"]
    wanted: dict[str, object] = {}
    for marked, kind in tree.items():
        name = marked.removesuffix("*")
        if marked.endswith("*") and name != "RegionId":
            value = RESOURCES[product] if name == "ResourceType" else known[name]
            wanted[name] = [value] if isinstance(kind, list) else value
    if action == "ListTagResources":
        wanted["Tag"] = [{"Key": "a", "Value": "b"}]
    if action == "DescribePrice":
        wanted |= {"ResourceType": "instance", "InstanceType": "ecs.g7.large"}
    return wanted


@pytest.mark.slow  # an emulator is started, and asked for everything
def test_answers_have_the_vendors_fields(tmp_path):
    with emulated(tmp_path / "state") as cloud:
        known = populate(cloud)
        for product, action in ACTIONS:
            if has_action(product, action) and action.startswith(READING):
                given = parameters_of(product, action, known)
                answer = cloud.raw(product, action, RegionId=cloud.region, **given)
                assert answer.status == 200, f"{action}: {answer.body}"
                if (product, action) not in GENEROUS:
                    assert strange_fields(product, action, answer.body) == [], action


def test_no_action_is_made_up():
    # Of VPC both spellings are kept; the vendor writes UnTagResources there.
    assert {each for each in ACTIONS if not has_action(*each)} <= {("vpc", "UntagResources")}
