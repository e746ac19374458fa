"""Types, zones and stock: figures, advice that may lie, lists that are missing where nothing fits."""

from __future__ import annotations

import pytest

from emulated import CPU, TYPE, ZONE, Cloud
from trainyard.emulators.aliyun.cloud.catalogue import REGIONS, TYPES, ZONES, is_sold
from trainyard.spec import hardware


@pytest.fixture
def cloud():
    return Cloud().ready()


def available(cloud, **parameters):
    """Zone → status category of the type."""
    given = {"DestinationResource": "InstanceType", "InstanceType": TYPE, **parameters}
    zones = cloud.ecs("DescribeAvailableResource", **given).get("AvailableZones", {}).get("AvailableZone", [])
    found = {}
    for zone in zones:
        (resource,) = zone["AvailableResources"]["AvailableResource"]
        for row in resource["SupportedResources"]["SupportedResource"]:
            if row["Value"] == given.get("InstanceType", row["Value"]):
                found[zone["ZoneId"]] = (row["Status"], row["StatusCategory"])
    return found


def test_every_machine_type_of_the_manuals_is_sold_somewhere_with_the_same_figures():
    for name, kind in hardware.TYPES.items():
        if name == "local":
            continue
        ours = TYPES[name]
        assert (ours.cpus, ours.memory_gib * 1024, ours.gpus, ours.gpu) == (
            kind.cpus,
            kind.memory_mib,
            kind.gpus,
            kind.gpu_model,
        )
        assert any(is_sold(ours, zone) for zone in ZONES)


def test_every_type_is_sold_in_a_zone_that_exists():
    for kind in TYPES.values():
        assert any(is_sold(kind, zone) for zone in ZONES), kind.name
    assert ZONES["us-east-1a"] is REGIONS["us-east-1"]


def test_stock_is_told_by_zone(cloud):
    with_stock = ("Available", "WithStock")
    assert available(cloud) == dict.fromkeys(("cn-beijing-g", "cn-beijing-h", "cn-beijing-i"), with_stock)
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=0)
    cloud.world.set_stock("cn-beijing-g", TYPE, spot=False, free=1)
    found = available(cloud)
    assert found[ZONE] == ("SoldOut", "WithoutStock")
    assert found["cn-beijing-g"] == ("Available", "ClosedWithStock")
    assert available(cloud, SpotStrategy="SpotAsPriceGo")[ZONE] == with_stock
    assert available(cloud, ZoneId="cn-beijing-i") == {"cn-beijing-i": with_stock}


def test_the_list_is_missing_when_nothing_fits(cloud):
    given = {"DestinationResource": "InstanceType"}
    assert cloud.ecs("DescribeAvailableResource", **given, InstanceType="ecs.none") == {}
    assert cloud.ecs("DescribeAvailableResource", **given, InstanceType=TYPE, ZoneId="cn-beijing-l") == {}
    assert (
        cloud.refused("ecs", "DescribeAvailableResource", DestinationResource="Moon")
        == "Invalid.DestinationResource"
    )


def test_advice_may_lie(cloud):
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=0)
    cloud.world.set_advice(ZONE, TYPE, spot=False, category="WithStock")
    assert available(cloud)[ZONE] == ("Available", "WithStock")
    assert cloud.refused("ecs", "RunInstances", **cloud.launch) == "OperationDenied.NoStock"
    cloud.world.set_advice(ZONE, TYPE, spot=False, category=None)
    assert available(cloud)[ZONE] == ("SoldOut", "WithoutStock")


def test_stock_comes_back_when_instances_go(cloud):
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=5)
    ids = cloud.running(Amount=4)
    assert cloud.world.stock(ZONE, TYPE, spot=False) == 1
    cloud.ecs("StopInstances", InstanceId=ids[:2], StoppedMode="StopCharging")
    cloud.ecs("DeleteInstances", InstanceId=ids[2:], Force=True)
    assert cloud.world.stock(ZONE, TYPE, spot=False) == 1
    cloud.later(10)
    assert cloud.world.stock(ZONE, TYPE, spot=False) == 5


def test_a_type_can_be_put_on_sale_where_it_never_was(cloud):
    _, vswitch = cloud.network("192.168.16.0/20", "cn-beijing-l", next(iter(cloud.world.vpcs)))
    launch = {**cloud.launch, "VSwitchId": vswitch}
    assert cloud.refused("ecs", "RunInstances", **launch) == "Zone.NotOnSale"
    cloud.world.set_stock("cn-beijing-l", TYPE, spot=False, free=1)
    assert cloud.run(**launch)
    assert "cn-beijing-l" in available(cloud)


def test_disks_are_told_for_a_type(cloud):
    def values(kind, destination):
        given = {"DestinationResource": destination, "InstanceType": kind, "ZoneId": "cn-beijing-i"}
        (zone,) = cloud.ecs("DescribeAvailableResource", **given)["AvailableZones"]["AvailableZone"]
        (resource,) = zone["AvailableResources"]["AvailableResource"]
        return [row["Value"] for row in resource["SupportedResources"]["SupportedResource"]]

    assert values("ecs.gn7i-c8g1.2xlarge", "SystemDisk") == ["cloud_auto", "cloud_essd"]
    assert "cloud_efficiency" in values(CPU, "DataDisk")


def test_types_are_found_by_figures(cloud):
    def find(**parameters):
        rows = cloud.ecs("DescribeInstanceTypes", **parameters)["InstanceTypes"]["InstanceType"]
        return {row["InstanceTypeId"]: row for row in rows}

    everything = find()
    assert len(everything) == len(TYPES)
    row = find(InstanceTypes=[TYPE])[TYPE]
    assert (row["CpuCoreCount"], row["MemorySize"], row["GPUAmount"], row["GPUSpec"]) == (
        8,
        32.0,
        1,
        "NVIDIA V100",
    )
    assert row["GPUMemorySize"] == 16.0
    assert set(find(InstanceTypeFamily="ecs.gn6e")) == {name for name in TYPES if ".gn6e-" in name}
    assert all(one["GPUAmount"] >= 8 for one in find(MinimumGPUAmount=8).values())
    assert all("A10" in one["GPUSpec"] for one in find(GPUSpec="A10").values())
    assert find(InstanceTypes=["ecs.gn5-c4g1.xlarge"])["ecs.gn5-c4g1.xlarge"]["LocalStorageAmount"] == 1
    refused = cloud.refused("ecs", "DescribeInstanceTypes", InstanceTypes=list(TYPES)[:11])
    assert refused == "InvalidInstanceTypes.Malformed"
    page = cloud.ecs("DescribeInstanceTypes", MaxResults=5)
    assert len(page["InstanceTypes"]["InstanceType"]) == 5
    assert page["NextToken"]


def test_zones_tell_what_they_sell(cloud):
    zones = {row["ZoneId"]: row for row in cloud.ecs("DescribeZones")["Zones"]["Zone"]}
    assert TYPE in zones[ZONE]["AvailableInstanceTypes"]["InstanceTypes"]
    assert TYPE not in zones["cn-beijing-l"]["AvailableInstanceTypes"]["InstanceTypes"]
    short = cloud.ecs("DescribeZones", Verbose=False)["Zones"]["Zone"][0]
    assert set(short) == {"ZoneId", "ZoneType", "LocalName"}
    families = cloud.ecs("DescribeInstanceTypeFamilies", RegionId="cn-huhehaote")
    names = [row["InstanceTypeFamilyId"] for row in families["InstanceTypeFamilies"]["InstanceTypeFamily"]]
    assert "ecs.gn5t" in names
    assert "ecs.gn8v" not in names


def test_quotas_are_told(cloud):
    cloud.world.set_options({"quotas": {"vcpus": 100}})
    cloud.run(Amount=2)
    rows = cloud.ecs("DescribeAccountAttributes")["AccountAttributeItems"]["AccountAttributeItem"]
    told = {row["AttributeName"]: row["AttributeValues"]["ValueItem"][0]["Value"] for row in rows}
    assert told["max-postpaid-instance-vcpu-count"] == "100"
    assert told["used-postpaid-instance-vcpu-count"] == "16"


def test_candidates_are_tried_in_turn_when_a_group_is_provisioned(cloud):
    vpc = next(iter(cloud.world.vpcs))
    _, other = cloud.network("192.168.16.0/20", "cn-beijing-g", vpc)
    cloud.world.set_stock(ZONE, TYPE, spot=True, free=2)
    body = cloud.ecs(
        "CreateAutoProvisioningGroup",
        AutoProvisioningGroupType="instant",
        TotalTargetCapacity="5",
        SpotTargetCapacity="5",
        PayAsYouGoTargetCapacity="0",
        LaunchConfiguration={
            "ImageId": cloud.launch["ImageId"],
            "SecurityGroupId": cloud.launch["SecurityGroupId"],
            "SystemDiskCategory": "cloud_essd",
            "SystemDiskSize": 60,
            "Period": 1,
        },
        LaunchTemplateConfig=[
            {"InstanceType": "ecs.gn7i-c8g1.2xlarge", "VSwitchId": other},
            {"InstanceType": TYPE, "VSwitchId": cloud.launch["VSwitchId"]},
            {"InstanceType": TYPE, "VSwitchId": other},
        ],
    )
    rows = body["LaunchResults"]["LaunchResult"]
    assert [(row.get("ErrorCode"), row["Amount"]) for row in rows] == [
        ("Zone.NotOnSale", 0),
        (None, 2),
        (None, 3),
    ]
    assert len(cloud.world.instances) == 5
    assert all(one.is_spot for one in cloud.world.instances.values())


def test_deployment_sets_take_instances_but_no_spot(cloud):
    made = cloud.ecs("CreateDeploymentSet", Strategy="Availability", DeploymentSetName="ds")[
        "DeploymentSetId"
    ]
    (name,) = cloud.running(DeploymentSetId=made)
    (row,) = cloud.ecs("DescribeDeploymentSets")["DeploymentSets"]["DeploymentSet"]
    assert row["InstanceIds"]["InstanceId"] == [name]
    spot = {"DeploymentSetId": made, "SpotStrategy": "SpotAsPriceGo"}
    assert cloud.refused("ecs", "RunInstances", **cloud.launch, **spot) == "InvalidParameter.Conflict"
    assert (
        cloud.refused("ecs", "DeleteDeploymentSet", DeploymentSetId=made)
        == "OperationDenied.ResourceNotEmpty"
    )
