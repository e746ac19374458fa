"""RunInstances: what it makes, what it refuses, and that a refusal leaves nothing behind."""

from __future__ import annotations

import base64
import json
from datetime import timedelta

import pytest

from emulated import CPU, IMAGE, PUBLIC_KEY, TYPE, ZONE, Cloud


@pytest.fixture
def cloud():
    return Cloud().ready()


def counts(cloud):
    world = cloud.world
    return len(world.instances), len(world.disks), len(world.charges), world.serial


def test_an_instance_has_all_that_was_asked_for_when_it_runs(cloud):
    cloud.ecs("ImportKeyPair", KeyPairName="mine", PublicKeyBody=PUBLIC_KEY)
    (name,) = cloud.run(
        InstanceName="task0.bert",
        HostName="task0-bert",
        Description="a b",
        KeyPairName="mine",
        UserData="IyEvYmluL3NoCg==",
        InternetMaxBandwidthOut=100,
        RamRoleName="role",
        DeletionProtection=True,
        ImageOptions={"LoginAsNonRoot": True},
        AutoReleaseTime="2026-03-01T14:00:59Z",
        Tag=[{"Key": "job", "Value": "b e'r\"t 中文"}],
        SystemDisk={"Category": "cloud_essd", "Size": 300, "PerformanceLevel": "PL1"},
        DataDisk=[{"Category": "cloud_essd", "Size": 100, "DeleteWithInstance": False, "DiskName": "data"}],
    )
    assert cloud.show(name) is None  # not visible yet
    cloud.later(1)
    assert cloud.show(name)["Status"] == "Pending"
    cloud.later(2)
    assert cloud.show(name)["Status"] == "Starting"
    cloud.later(15)
    shown = cloud.show(name)
    assert shown["Status"] == "Running"
    assert shown["InstanceName"] == "task0.bert"
    assert shown["HostName"] == "task0-bert"
    assert shown["ImageOptions"]["LoginAsNonRoot"]
    assert shown["CreationTime"] == "2026-03-01T12:30Z"
    assert shown["AutoReleaseTime"] == "2026-03-01T14:00Z"
    assert shown["StoppedMode"] == "Not-applicable"
    assert shown["Memory"] == 32 * 1024
    assert (shown["GPUAmount"], shown["GPUSpec"]) == (1, "NVIDIA V100")
    assert shown["Tags"]["Tag"] == [{"TagKey": "job", "TagValue": "b e'r\"t 中文"}]
    private, public = (
        shown["VpcAttributes"]["PrivateIpAddress"]["IpAddress"],
        shown["PublicIpAddress"]["IpAddress"],
    )
    assert len(private) == len(public) == 1
    assert private[0].startswith("127.")
    assert public[0].startswith("127.")
    assert private != public
    disks = cloud.ecs("DescribeDisks", InstanceId=name)["Disks"]["Disk"]
    assert [(one["Type"], one["Size"], one["DeleteWithInstance"]) for one in disks] == [
        ("system", 300, True),
        ("data", 100, False),
    ]
    assert disks[0]["Tags"]["Tag"][0]["TagKey"] == "job"
    (wish,) = cloud.world.machines(cloud.now)
    assert wish.instance_id == name
    assert wish.running
    assert wish.boot == 1
    assert wish.authorized_keys == (PUBLIC_KEY,)
    assert wish.user_data == b"#!/bin/sh\n"
    assert wish.hostname == "task0-bert"
    assert (wish.address, wish.public_address) == (private[0], public[0])


def test_many_are_made_in_one_call_when_amount_says_so(cloud):
    ids = cloud.running(Amount=100, InstanceName="w[7,3]x", HostName="w[7,3]x")
    assert len(set(ids)) == 100
    shown = [cloud.show(one) for one in (ids[0], ids[99])]
    assert [one["InstanceName"] for one in shown] == ["w007x", "w106x"]
    assert [one["HostName"] for one in shown] == ["w007x", "w106x"]
    addresses = [wish.address for wish in cloud.world.machines(cloud.now)]
    assert len(set(addresses)) == 100


def test_names_are_numbered_when_a_unique_suffix_is_wanted(cloud):
    ids = cloud.running(Amount=3, InstanceName="abc", UniqueSuffix=True)
    assert [cloud.show(one)["InstanceName"] for one in ids] == ["abc001", "abc002", "abc003"]


def test_names_are_alike_when_nothing_numbers_them(cloud):
    ids = cloud.running(Amount=2, InstanceName="task0.bert")
    assert {cloud.show(one)["InstanceName"] for one in ids} == {"task0.bert"}
    (bare,) = cloud.running()
    assert cloud.show(bare)["InstanceName"] == bare


def test_each_has_its_own_host_name_when_a_list_is_given(cloud):
    ids = cloud.running(Amount=2, HostNames=["aa", "bb"])
    assert [cloud.show(one)["HostName"] for one in ids] == ["aa", "bb"]
    (one,) = cloud.running(HostName="x-${instance_id}")
    assert cloud.show(one)["HostName"] == f"x-{one}"


def test_nothing_is_made_when_stock_is_short_and_all_are_wanted(cloud):
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=3)
    before = counts(cloud)
    assert cloud.refused("ecs", "RunInstances", **cloud.launch, Amount=4) == "OperationDenied.NoStock"
    assert counts(cloud) == before


def test_as_many_as_there_are_come_when_a_least_number_is_given(cloud):
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=3)
    assert len(cloud.run(Amount=5, MinAmount=2)) == 3
    assert (
        cloud.refused("ecs", "RunInstances", **cloud.launch, Amount=5, MinAmount=1)
        == "OperationDenied.NoStock"
    )


def test_a_dry_run_makes_nothing_and_still_judges_when_asked_for(cloud):
    before = counts(cloud)
    assert cloud.refused("ecs", "RunInstances", **cloud.launch, DryRun=True) == "DryRunOperation"
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=0)
    assert cloud.refused("ecs", "RunInstances", **cloud.launch, DryRun=True) == "OperationDenied.NoStock"
    assert counts(cloud) == before


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"InstanceType": "ecs.none.large"}, "InvalidInstanceType.ValueNotSupported"),
        ({"InstanceType": "ecs.gn7i-c8g1.2xlarge"}, "Zone.NotOnSale"),
        ({"ImageId": "gone.vhd"}, "InvalidImageId.NotFound"),
        ({"VSwitchId": "vsw-none"}, "InvalidVSwitchId.NotFound"),
        ({"VSwitchId": ""}, "InvalidVSwitchId.Necessary"),
        ({"ZoneId": "cn-beijing-g"}, "InvalidParameter.Mismatch"),
        ({"SecurityGroupId": "sg-none"}, "InvalidSecurityGroupId.NotFound"),
        ({"SecurityGroupIds": ["sg-none"]}, "InvalidParameter.Conflict"),
        ({"KeyPairName": "none"}, "InvalidKeyPairName.NotFound"),
        ({"Amount": 101}, "InvalidParam.Amount"),
        ({"Amount": 2, "MinAmount": 3}, "InvalidMinAmount.Malformed"),
        ({"InstanceName": "a"}, "InvalidInstanceName.Malformed"),
        ({"InstanceName": "1abc"}, "InvalidInstanceName.Malformed"),
        ({"InstanceName": "has space"}, "InvalidInstanceName.Malformed"),
        ({"InstanceName": "x" * 129}, "InvalidInstanceName.Malformed"),
        ({"HostName": "under_score"}, "InvalidHostName.Malformed"),
        ({"HostName": "-ab"}, "InvalidHostName.Malformed"),
        ({"HostName": "a..b"}, "InvalidHostName.Malformed"),
        ({"HostNames": ["aa"], "Amount": 2}, "InvalidParams.HostnameExceed"),
        ({"UserData": "not base64!"}, "InvalidUserData.Base64FormatInvalid"),
        ({"UserData": base64.b64encode(b"x" * 32769).decode()}, "InvalidUserData.SizeExceeded"),
        ({"Password": "short"}, "InvalidPassword.Malformed"),
        ({"InternetMaxBandwidthOut": 101}, "InvalidInternetMaxBandwidthOut.Malformed"),
        ({"AutoReleaseTime": "2026-03-01T12:50:00Z"}, "InvalidAutoReleaseTime.Malformed"),
        ({"AutoReleaseTime": "2030-03-01T12:50:00Z"}, "InvalidAutoReleaseTime.Malformed"),
        ({"AutoReleaseTime": "tomorrow"}, "InvalidAutoReleaseTime.Malformed"),
        ({"SystemDisk": {"Category": "floppy"}}, "InvalidSystemDiskCategory.ValueNotSupported"),
        ({"SystemDisk": {"Size": 10}}, "InvalidSystemDiskSize.LessThanImageSize"),
        ({"DataDisk": [{"Category": "cloud_essd", "Size": 5}]}, "InvalidDataDiskSize.ValueNotSupported"),
        (
            {"DataDisk": [{"Category": "cloud_essd", "PerformanceLevel": "PL3", "Size": 100}]},
            "InvalidDataDiskSize.ValueNotSupported",
        ),
        ({"DataDisk": [{"Size": 20}] * 17}, "InstanceDiskNumber.LimitExceed"),
        ({"DataDisk": [{"Size": 20, "SnapshotId": "s-none"}]}, "InvalidSnapshotId.NotFound"),
        ({"Tag": [{"Key": "aliyun-x", "Value": ""}]}, "InvalidTagKey.Malformed"),
        ({"Tag": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]}, "Duplicate.TagKey"),
        ({"Tag": [{"Key": f"k{n}", "Value": ""} for n in range(21)]}, "InvalidTagCount"),
        ({"SpotStrategy": "Cheap"}, "InvalidSpotStrategy"),
        ({"SpotStrategy": "SpotAsPriceGo", "SpotDuration": 2}, "InvalidSpotDuration"),
        (
            {"SpotStrategy": "SpotAsPriceGo", "InstanceChargeType": "PrePaid", "Period": 1},
            "InvalidSpotPrepaid",
        ),
        ({"SpotStrategy": "SpotWithPriceLimit"}, "InvalidSpotPriceLimit"),
        ({"SpotStrategy": "SpotWithPriceLimit", "SpotPriceLimit": 0.1234}, "InvalidSpotPriceLimit"),
        (
            {"SpotStrategy": "SpotWithPriceLimit", "SpotPriceLimit": 0.1},
            "InvalidSpotPriceLimit.LowerThanPublicPrice",
        ),
        ({"DeploymentSetId": "ds-none"}, "DeploymentSet.NotFound"),
        ({"LaunchTemplateId": "lt-none"}, "InvalidLaunchTemplate.NotFound"),
        ({"PrivateIpAddress": "10.0.0.1"}, "InvalidVSwitchId.IpInvalid"),
        ({"PrivateIpAddress": "192.168.0.0"}, "InvalidVSwitchId.IpInvalid"),
    ],
)
def test_a_wrong_request_is_refused_by_its_code_and_leaves_nothing(cloud, change, code):
    before = counts(cloud)
    assert cloud.refused("ecs", "RunInstances", **{**cloud.launch, **change}) == code
    assert counts(cloud) == before


def test_newer_types_take_only_newer_disks(cloud):
    _, vswitch = cloud.network(zone="cn-beijing-i", cidr="192.168.16.0/20", vpc=next(iter(cloud.world.vpcs)))
    launch = {**cloud.launch, "VSwitchId": vswitch, "InstanceType": "ecs.gn7i-c8g1.2xlarge"}
    refused = cloud.refused("ecs", "RunInstances", **launch, SystemDisk={"Category": "cloud_efficiency"})
    assert refused == "InvalidInstanceType.NotSupportDiskCategory"
    assert cloud.run(**launch)
    assert [disk.category for disk in cloud.world.disks.values()] == ["cloud_essd"]


def test_an_image_is_found_by_its_family_when_only_that_is_given(cloud):
    launch = {name: value for name, value in cloud.launch.items() if name != "ImageId"}
    cloud.launch = launch
    (name,) = cloud.running(ImageFamily="acs:ubuntu_22_04_x64")
    assert cloud.show(name)["ImageId"] == IMAGE
    assert cloud.refused("ecs", "RunInstances", **launch) == "MissingImageId"
    assert cloud.refused("ecs", "RunInstances", **launch, ImageFamily="acs:x") == "InvalidImageId.NotFound"


def test_a_retired_image_is_not_found():
    cloud = Cloud(retired_images=["ubuntu_22_04_*"]).ready()
    assert cloud.refused("ecs", "RunInstances", **cloud.launch) == "InvalidImageId.NotFound"


def test_the_primary_interface_replaces_vswitch_and_group_when_given(cloud):
    launch = dict(cloud.launch)
    card = {"InstanceType": "Primary", "VSwitchId": launch.pop("VSwitchId")}
    card["SecurityGroupIds"] = [launch.pop("SecurityGroupId")]
    assert cloud.ecs("RunInstances", **launch, NetworkInterface=[card])["InstanceIdSets"]["InstanceIdSet"]


def test_a_fresh_vswitch_is_refused_until_it_is_available(cloud):
    vpc = next(iter(cloud.world.vpcs))
    fresh = cloud.vpc("CreateVSwitch", VpcId=vpc, ZoneId=ZONE, CidrBlock="192.168.16.0/20")["VSwitchId"]
    launch = {**cloud.launch, "VSwitchId": fresh}
    assert cloud.refused("ecs", "RunInstances", **launch) == "IncorrectVSwitchStatus"
    cloud.later(1)
    assert cloud.run(VSwitchId=fresh)


def test_addresses_run_out_when_the_subnet_is_small(cloud):
    vpc = next(iter(cloud.world.vpcs))
    _, small = cloud.network("192.168.16.0/29", vpc=vpc)
    assert len(cloud.run(VSwitchId=small, Amount=3)) == 3
    assert (
        cloud.vpc("DescribeVSwitches", VSwitchId=small)["VSwitches"]["VSwitch"][0]["AvailableIpAddressCount"]
        == 1
    )
    launch = {**cloud.launch, "VSwitchId": small}
    assert cloud.refused("ecs", "RunInstances", **launch, Amount=2) == "InvalidVSwitchId.IpNotEnough"
    assert len(cloud.run(VSwitchId=small, Amount=5, MinAmount=1)) == 1
    assert cloud.refused("ecs", "RunInstances", **launch) == "InvalidVSwitchId.IpNotEnough"


def test_a_new_account_is_told_its_quota_when_it_is_zero():
    cloud = Cloud(quotas={"vcpus": 0}).ready()
    assert cloud.refused("ecs", "RunInstances", **cloud.launch) == "QuotaExceed.AfterpayInstance"
    assert cloud.run(SpotStrategy="SpotAsPriceGo")


def test_the_quota_of_cores_limits_what_is_made():
    cloud = Cloud(quotas={"vcpus": 20}).ready()
    assert cloud.refused("ecs", "RunInstances", **cloud.launch, Amount=3) == "QuotaExceed.ElasticQuota"
    assert len(cloud.run(Amount=3, MinAmount=1)) == 2
    assert cloud.run(InstanceType=CPU, Amount=2)
    assert (
        cloud.refused("ecs", "RunInstances", **{**cloud.launch, "InstanceType": CPU})
        == "QuotaExceed.ElasticQuota"
    )


@pytest.mark.parametrize(
    ("account", "code"),
    [
        ({"overdue": True}, "Account.Arrearage"),
        ({"verified": False}, "RealNameAuthenticationError"),
        ({"balance": "0"}, "InvalidAccountStatus.NotEnoughBalance"),
    ],
)
def test_an_account_in_bad_standing_gets_nothing(account, code):
    cloud = Cloud(account=account).ready()
    assert cloud.refused("ecs", "RunInstances", **cloud.launch) == code


def test_a_role_must_exist_when_one_is_named():
    cloud = Cloud(account={"roles": ["train*"]}).ready()
    assert cloud.refused("ecs", "RunInstances", **cloud.launch, RamRoleName="x") == "InvalidRamRole.NotFound"
    assert cloud.run(RamRoleName="trainyard")


def test_a_data_disk_can_be_made_of_a_snapshot(cloud):
    disk = cloud.ecs("CreateDisk", ZoneId=ZONE, Size=50, DiskCategory="cloud_essd")["DiskId"]
    cloud.later(1)
    snapshot = cloud.ecs("CreateSnapshot", DiskId=disk)["SnapshotId"]
    data = [{"SnapshotId": snapshot, "Category": "cloud_essd"}]
    assert cloud.refused("ecs", "RunInstances", **cloud.launch, DataDisk=data) == "InvalidSnapshotId.NotReady"
    cloud.later(30)
    (name,) = cloud.run(DataDisk=data)
    assert cloud.world.disks_of(name)[1].size == 50
    assert (
        cloud.refused("ecs", "RunInstances", **cloud.launch, DataDisk=[{**data[0], "Size": 40}])
        == "InvalidDiskSize.TooSmall"
    )


def test_slow_instances_take_longer_when_their_name_says_so():
    cloud = Cloud(slow=[{"names": "task1*", "starting": 500}]).ready()
    quick, slow = cloud.run(InstanceName="task[0,1].x", Amount=2)
    cloud.later(60)
    assert cloud.show(quick)["Status"] == "Running"
    assert cloud.show(slow)["Status"] == "Starting"
    cloud.later(500)
    assert cloud.show(slow)["Status"] == "Running"


def test_everything_is_there_at_once_when_nothing_takes_time():
    cloud = Cloud(instant=True).ready()
    (name,) = cloud.run()
    assert cloud.show(name)["Status"] == "Running"


def test_ids_are_the_same_when_the_same_is_done_again():
    first, second = Cloud().ready(), Cloud().ready()
    assert first.run(Amount=3) == second.run(Amount=3)
    assert first.run()[0].startswith("i-2ze")
    assert len(first.run()[0]) == 22
    assert Cloud(seed="other").ready().run() != Cloud().ready().run()


def test_a_year_passes_as_well_as_a_second_when_nobody_looks(cloud):
    ids = cloud.run(Amount=3, AutoReleaseTime="2026-03-02T00:00:00Z")
    cloud.now += timedelta(days=365)
    cloud.world.advance(cloud.now)
    assert [cloud.show(one) for one in ids] == [None] * 3
    assert json.dumps(cloud.world.dump())
