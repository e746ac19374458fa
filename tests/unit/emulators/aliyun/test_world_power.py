"""Starting, stopping, rebooting, deleting: which status allows what, what stops costing, what changes its address."""

from __future__ import annotations

import json

import pytest

from emulated import TYPE, ZONE, Cloud


@pytest.fixture
def cloud():
    return Cloud().ready()


def stop(cloud, *ids, **parameters):
    body = cloud.ecs("StopInstances", InstanceId=list(ids), **parameters)
    cloud.later(10)
    return body


def test_an_economical_stop_gives_the_machine_back_and_a_start_takes_another_address(cloud):
    (name,) = cloud.running(InternetMaxBandwidthOut=10)
    before = cloud.show(name)
    body = cloud.ecs("StopInstances", InstanceId=[name], StoppedMode="StopCharging")
    assert body["InstanceResponses"]["InstanceResponse"] == [
        {
            "InstanceId": name,
            "Code": "200",
            "Message": "success",
            "PreviousStatus": "Running",
            "CurrentStatus": "Stopping",
        }
    ]
    assert not cloud.world.machines(cloud.now)[0].running
    cloud.later(10)
    stopped = cloud.show(name)
    assert (stopped["Status"], stopped["StoppedMode"]) == ("Stopped", "StopCharging")
    assert stopped["PublicIpAddress"]["IpAddress"] == []
    cloud.ecs("StartInstances", InstanceId=[name])
    assert cloud.show(name)["Status"] == "Starting"
    cloud.later(15)
    after = cloud.show(name)
    assert after["Status"] == "Running"
    assert after["StoppedMode"] == "Not-applicable"
    assert after["VpcAttributes"] == before["VpcAttributes"]
    assert after["PublicIpAddress"]["IpAddress"] != before["PublicIpAddress"]["IpAddress"]
    assert cloud.world.machines(cloud.now)[0].boot == 2


def test_an_ordinary_stop_keeps_machine_and_address(cloud):
    (name,) = cloud.running(InternetMaxBandwidthOut=10)
    before = cloud.show(name)["PublicIpAddress"]
    free = cloud.world.stock(ZONE, TYPE, spot=False)
    stop(cloud, name)
    assert cloud.show(name)["StoppedMode"] == "KeepCharging"
    assert cloud.world.stock(ZONE, TYPE, spot=False) == free
    cloud.ecs("StartInstances", InstanceId=[name])
    cloud.later(15)
    assert cloud.show(name)["PublicIpAddress"] == before


def test_the_account_switch_decides_when_a_stop_names_no_mode():
    cloud = Cloud(account={"economical": True}).ready()
    (name,) = cloud.running()
    stop(cloud, name)
    assert cloud.show(name)["StoppedMode"] == "StopCharging"


def test_an_economical_stop_is_silently_an_ordinary_one_when_the_type_has_local_disks(cloud):
    _, vswitch = cloud.network("192.168.16.0/20", "cn-beijing-f", next(iter(cloud.world.vpcs)))
    (name,) = cloud.running(InstanceType="ecs.gn5-c4g1.xlarge", VSwitchId=vswitch)
    rate = cloud.world.rate(cloud.now, name)
    stop(cloud, name, StoppedMode="StopCharging")
    assert cloud.show(name)["StoppedMode"] == "KeepCharging"
    assert cloud.world.rate(cloud.now, name) == rate > 0


def test_a_start_may_find_nothing_in_stock_when_the_machine_was_given_back(cloud):
    (name,) = cloud.running()
    stop(cloud, name, StoppedMode="StopCharging")
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=0)
    assert cloud.refused("ecs", "StartInstances", InstanceId=[name]) == "OperationDenied.NoStock"
    assert cloud.refused("ecs", "StartInstance", InstanceId=name) == "OperationDenied.NoStock"
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=1)
    cloud.ecs("StartInstance", InstanceId=name)


def test_a_start_of_several_is_all_or_none_when_stock_is_short(cloud):
    ids = cloud.running(Amount=3)
    stop(cloud, *ids, StoppedMode="StopCharging")
    cloud.world.set_stock(ZONE, TYPE, spot=False, free=2)
    assert cloud.refused("ecs", "StartInstances", InstanceId=ids) == "OperationDenied.NoStock"
    assert {cloud.show(one)["Status"] for one in ids} == {"Stopped"}
    rows = cloud.ecs("StartInstances", InstanceId=ids, BatchOptimization="SuccessFirst")
    codes = [row["Code"] for row in rows["InstanceResponses"]["InstanceResponse"]]
    assert codes == ["200", "200", "OperationDenied.NoStock"]


def test_each_answers_for_itself_when_success_comes_first(cloud):
    ids = cloud.running(Amount=2)
    stop(cloud, ids[0])
    rows = cloud.ecs("StopInstances", InstanceId=[*ids, "i-none"], BatchOptimization="SuccessFirst")[
        "InstanceResponses"
    ]["InstanceResponse"]
    assert [row["Code"] for row in rows] == ["IncorrectInstanceStatus", "200", "InvalidInstanceId.NotFound"]
    assert cloud.refused("ecs", "StopInstances", InstanceId=[*ids]) == "IncorrectInstanceStatus"


def test_verbs_are_refused_when_the_status_is_wrong(cloud):
    (name,) = cloud.run()
    one = {"InstanceId": [name]}
    assert cloud.refused("ecs", "StopInstances", **one) == "IncorrectInstanceStatus"
    assert cloud.refused("ecs", "StartInstances", **one) == "IncorrectInstanceStatus"
    assert cloud.refused("ecs", "RebootInstances", **one) == "IncorrectInstanceStatus"
    initializing = "IncorrectInstanceStatus.Initializing"
    assert cloud.refused("ecs", "DeleteInstances", **one, Force=True) == initializing
    cloud.later(5)
    assert cloud.refused("ecs", "DeleteInstance", InstanceId=name, Force=True) == initializing
    cloud.later(30)
    assert cloud.refused("ecs", "StartInstances", **one) == "IncorrectInstanceStatus"
    assert cloud.refused("ecs", "DeleteInstances", **one) == "IncorrectInstanceStatus"
    cloud.ecs("StopInstances", **one)
    assert cloud.refused("ecs", "StartInstances", **one) == "IncorrectInstanceStatus"
    assert cloud.refused("ecs", "DeleteInstances", **one, Force=True) == "IncorrectInstanceStatus"
    cloud.later(10)
    assert cloud.refused("ecs", "StopInstances", **one) == "IncorrectInstanceStatus"
    cloud.ecs("DeleteInstances", **one)


def test_a_reboot_stops_and_starts_and_counts_as_a_boot(cloud):
    (name,) = cloud.running()
    cloud.ecs("ModifyInstanceAttribute", InstanceId=name, HostName="new-name", InstanceName="renamed.x")
    assert cloud.show(name)["InstanceName"] == "renamed.x"
    assert cloud.show(name)["HostName"] != "new-name"
    cloud.ecs("RebootInstances", InstanceId=[name])
    assert cloud.show(name)["Status"] == "Stopping"
    cloud.later(10)
    assert cloud.show(name)["Status"] == "Starting"
    cloud.later(15)
    assert cloud.show(name)["Status"] == "Running"
    (wish,) = cloud.world.machines(cloud.now)
    assert (wish.boot, wish.hostname, wish.running) == (2, "new-name", True)


def test_a_deleted_instance_lingers_and_then_is_gone_with_its_disks(cloud):
    (name,) = cloud.running(DataDisk=[{"Category": "cloud_essd", "Size": 20, "DeleteWithInstance": False}])
    cloud.ecs("DeleteInstances", InstanceId=[name], Force=True)
    assert cloud.show(name)["Status"] == "Stopping"
    assert cloud.world.machines(cloud.now) == []
    assert cloud.refused("ecs", "DeleteInstances", InstanceId=[name], Force=True) == "IncorrectInstanceStatus"
    cloud.later(3)
    assert cloud.show(name) is None
    assert cloud.refused("ecs", "DeleteInstances", InstanceId=[name]) == "InvalidInstanceId.NotFound"
    (left,) = cloud.ecs("DescribeDisks")["Disks"]["Disk"]
    assert (left["Status"], left["InstanceId"], left["Type"]) == ("Available", "", "data")
    cloud.ecs("DeleteDisk", DiskId=left["DiskId"])
    assert cloud.world.rate(cloud.now) == 0


def test_an_instance_that_is_deleted_while_it_starts_never_runs_and_goes(cloud):
    (name,) = cloud.running()
    stop(cloud, name, StoppedMode="StopCharging")
    cloud.ecs("StartInstances", InstanceId=[name])
    assert cloud.show(name)["Status"] == "Starting"
    cloud.ecs("DeleteInstances", InstanceId=[name], Force=True)
    assert cloud.show(name)["Status"] == "Stopping"
    assert cloud.world.rate(cloud.now) == 0
    assert cloud.world.machines(cloud.now) == []
    cloud.later(3)
    assert cloud.show(name) is None
    cloud.later(60)  # the start that was on its way has nothing left to end
    assert (cloud.world.instances, cloud.world.disks) == ({}, {})


def test_instances_live_without_machines_when_none_are_wanted():
    cloud = Cloud(machines=False).ready()
    (name,) = cloud.running()
    assert cloud.show(name)["Status"] == "Running"
    assert cloud.world.machines(cloud.now) == []


def test_none_is_deleted_when_one_cannot_be(cloud):
    ids = cloud.running(Amount=2)
    cloud.ecs("ModifyInstanceAttribute", InstanceId=ids[1], DeletionProtection=True)
    refused = cloud.refused("ecs", "DeleteInstances", InstanceId=ids, Force=True)
    assert refused == "InvalidOperation.DeletionProtection"
    cloud.later(60)
    assert all(cloud.show(one) for one in ids)
    cloud.ecs("ModifyInstanceAttribute", InstanceId=ids[1], DeletionProtection=False)
    cloud.ecs("DeleteInstances", InstanceId=ids, Force=True)


def test_a_hundred_at_once_are_the_most(cloud):
    ids = [*cloud.running(Amount=100), *cloud.running()]
    assert cloud.refused("ecs", "StopInstances", InstanceId=ids) == "InvalidInstanceId.Malformed"
    assert cloud.refused("ecs", "DeleteInstances", InstanceId=ids) == "InvalidInstanceId.Malformed"
    cloud.ecs("DeleteInstances", InstanceId=ids[:100], Force=True)


def test_dry_runs_change_nothing(cloud):
    (name,) = cloud.running()
    assert cloud.refused("ecs", "StopInstances", InstanceId=[name], DryRun=True) == "DRYRUN.SUCCESS"
    assert (
        cloud.refused("ecs", "DeleteInstances", InstanceId=[name], Force=True, DryRun=True)
        == "DryRunOperation"
    )
    assert cloud.show(name)["Status"] == "Running"


def test_the_release_time_really_deletes_even_what_is_protected(cloud):
    (name,) = cloud.running(AutoReleaseTime="2026-03-01T13:30:00Z", DeletionProtection=True)
    cloud.later(minutes=50)
    assert cloud.show(name)
    cloud.ecs("ModifyInstanceAutoReleaseTime", InstanceId=name, AutoReleaseTime="2026-03-01T15:00:00Z")
    cloud.later(hours=1)
    assert cloud.show(name)["AutoReleaseTime"] == "2026-03-01T15:00Z"
    cloud.later(hours=1)
    assert cloud.show(name) is None
    assert cloud.world.disks == {}
    assert cloud.world.rate(cloud.now) == 0


def test_a_release_time_can_be_taken_back(cloud):
    (name,) = cloud.running(AutoReleaseTime="2026-03-01T13:30:00Z")
    cloud.ecs("ModifyInstanceAutoReleaseTime", InstanceId=name)
    cloud.later(days=3)
    assert cloud.show(name)["AutoReleaseTime"] == ""


def test_locked_instances_are_refused_but_can_be_deleted(cloud):
    (name,) = cloud.running()
    cloud.world.lock(name, "financial")
    assert cloud.show(name)["OperationLocks"]["LockReason"][0]["LockReason"] == "financial"
    assert cloud.refused("ecs", "StopInstances", InstanceId=[name]) == "InstanceExpiredOrInArrears"
    cloud.ecs("DeleteInstances", InstanceId=[name], Force=True)


def test_prepaid_instances_are_not_deleted_as_others_are(cloud):
    (name,) = cloud.running(InstanceChargeType="PrePaid", Period=1)
    assert cloud.refused("ecs", "DeleteInstances", InstanceId=[name], Force=True) == "ChargeTypeViolation"
    cloud.ecs("DeleteInstances", InstanceId=[name], Force=True, TerminateSubscription=True)


def test_pages_are_ten_long_unless_asked_otherwise(cloud):
    ids = cloud.running(Amount=23)
    body = cloud.ecs("DescribeInstances")
    assert len(body["Instances"]["Instance"]) == 10
    assert (body["TotalCount"], body["PageNumber"], body["PageSize"]) == (23, 1, 10)
    assert len(cloud.ecs("DescribeInstances", PageNumber=3)["Instances"]["Instance"]) == 3
    assert len(cloud.ecs("DescribeInstances", PageSize=100)["Instances"]["Instance"]) == 23
    found, token = [], None
    while token != "":
        given = {"NextToken": token} if token else {}
        body = cloud.ecs("DescribeInstances", MaxResults=3, **given)  # less than 10 becomes 10
        assert len(body["Instances"]["Instance"]) <= 10
        found += [row["InstanceId"] for row in body["Instances"]["Instance"]]
        token = body["NextToken"]
    assert sorted(found) == sorted(ids)
    assert len(found) == 23


def test_no_row_is_passed_over_when_others_vanish_between_two_pages(cloud):
    ids = cloud.running(Amount=30)
    first = cloud.ecs("DescribeInstances", MaxResults=10)
    seen = [row["InstanceId"] for row in first["Instances"]["Instance"]]
    cloud.ecs("DeleteInstances", InstanceId=seen[:5], Force=True)
    cloud.later(5)
    second = cloud.ecs("DescribeInstances", MaxResults=100, NextToken=first["NextToken"])
    rest = [row["InstanceId"] for row in second["Instances"]["Instance"]]
    assert sorted(rest) == sorted(set(ids) - set(seen))


def test_filters_find_what_they_name(cloud):
    a, b = cloud.running(Amount=2, InstanceName="task[0,1].bert", Tag=[{"Key": "job", "Value": "bert"}])
    (c,) = cloud.running(
        InstanceName="task0.gpt", Tag=[{"Key": "job", "Value": "gpt"}, {"Key": "x", "Value": ""}]
    )
    stop(cloud, b)

    def find(**parameters):
        body = cloud.ecs("DescribeInstances", **parameters)
        return sorted(row["InstanceId"] for row in body["Instances"]["Instance"])

    assert find(InstanceIds="[]") == []
    assert find(InstanceIds=json.dumps([a, "i-none"])) == [a]
    assert find(InstanceName="task0*") == sorted([a, c])
    assert find(InstanceName="task0.bert") == [a]
    assert find(Status="Stopped") == [b]
    assert find(Tag=[{"Key": "job", "Value": "bert"}]) == sorted([a, b])
    assert find(Tag=[{"Key": "job"}]) == sorted([a, b, c])
    assert find(Tag=[{"Key": "job", "Value": "gpt"}, {"Key": "x"}]) == [c]
    assert find(Tag=[{"Key": "job", "Value": "bert"}, {"Key": "x"}]) == []
    assert find(ZoneId="cn-beijing-g") == []
    assert find(
        VSwitchId=cloud.launch["VSwitchId"], SecurityGroupId=cloud.launch["SecurityGroupId"]
    ) == sorted([a, b, c])
    address = cloud.show(a)["VpcAttributes"]["PrivateIpAddress"]["IpAddress"][0]
    assert find(PrivateIpAddresses=json.dumps([address])) == [a]
    assert find(RegionId="cn-hangzhou") == []
    assert cloud.refused("ecs", "DescribeInstances", Status="Asleep") == "InvalidStatus.NotFound"
    assert cloud.refused("ecs", "DescribeInstances", RegionId="moon") == "InvalidRegionId.NotFound"
    too_many = json.dumps([f"i-{n}" for n in range(101)])
    assert cloud.refused("ecs", "DescribeInstances", InstanceIds=too_many) == "InvalidInstanceIds.Malformed"
    assert cloud.refused("ecs", "DescribeInstances", DryRun=True) == "DryRunOperation"


def test_tags_are_missing_altogether_when_there_are_none(cloud):
    (name,) = cloud.running()
    assert "Tags" not in cloud.show(name)


def test_statuses_are_listed_by_number(cloud):
    ids = cloud.running(Amount=12)
    body = cloud.ecs("DescribeInstanceStatus", PageSize=50, InstanceId=ids[:3])
    assert [row["Status"] for row in body["InstanceStatuses"]["InstanceStatus"]] == ["Running"] * 3
    assert cloud.ecs("DescribeInstanceStatus")["TotalCount"] == 12
    assert cloud.refused("ecs", "DescribeInstanceStatus", PageSize=51) == "InvalidParameter"


def test_a_public_address_comes_later_when_bandwidth_does(cloud):
    (name,) = cloud.running()
    refused = cloud.refused("ecs", "AllocatePublicIpAddress", InstanceId=name)
    assert refused == "AllocateIpInvalidInstanceBandwidth"
    cloud.ecs("ModifyInstanceNetworkSpec", InstanceId=name, InternetMaxBandwidthOut=5)
    address = cloud.ecs("AllocatePublicIpAddress", InstanceId=name)["IpAddress"]
    assert cloud.show(name)["PublicIpAddress"]["IpAddress"] == [address]
    assert cloud.refused("ecs", "AllocatePublicIpAddress", InstanceId=name) == "AllocatedAlready"


def test_user_data_changes_on_stopped_instances_only(cloud):
    (name,) = cloud.running(UserData="YQ==")
    assert cloud.ecs("DescribeUserData", InstanceId=name)["UserData"] == "YQ=="
    refused = cloud.refused("ecs", "ModifyInstanceAttribute", InstanceId=name, UserData="Yg==")
    assert refused == "IncorrectInstanceStatus"
    stop(cloud, name)
    cloud.ecs("ModifyInstanceAttribute", InstanceId=name, UserData="Yg==")
    assert cloud.world.machines(cloud.now)[0].user_data == b"b"


def test_interfaces_are_listed(cloud):
    (name,) = cloud.running()
    (row,) = cloud.ecs("DescribeNetworkInterfaces", InstanceId=name)["NetworkInterfaceSets"][
        "NetworkInterfaceSet"
    ]
    assert row["PrivateIpAddress"] == cloud.show(name)["VpcAttributes"]["PrivateIpAddress"]["IpAddress"][0]
