"""Spot: prices anybody computes alike, limits, notices, and what becomes of an instance that is taken."""

from __future__ import annotations

from decimal import Decimal

import pytest

from emulated import TYPE, ZONE, Cloud
from trainyard.emulators.aliyun.cloud import market
from trainyard.emulators.aliyun.cloud.catalogue import TYPES, instance_price

SPOT = {"SpotStrategy": "SpotAsPriceGo"}


@pytest.fixture
def cloud():
    return Cloud().ready()


def locks(cloud, name):
    return [row["LockReason"] for row in cloud.show(name)["OperationLocks"]["LockReason"]]


def test_an_interrupted_instance_has_five_minutes_and_then_is_gone(cloud):
    (name,) = cloud.running(**SPOT)
    assert cloud.world.termination_time(name) == ""
    cloud.world.interrupt(name, cloud.now)
    assert locks(cloud, name) == ["Recycling"]
    assert cloud.world.termination_time(name) == "2026-03-01T12:35:52Z"
    cloud.later(299)
    cloud.world.interrupt(name, cloud.now)  # a second notice gives no second life
    assert cloud.show(name)["Status"] == "Running"
    assert cloud.world.machines(cloud.now)[0].running
    cloud.later(1)
    assert cloud.show(name) is None
    assert cloud.world.disks == {}
    assert cloud.world.rate(cloud.now) == 0
    (event,) = cloud.ecs("DescribeInstanceHistoryEvents")["InstanceSystemEventSet"]["InstanceSystemEventType"]
    assert event["EventCycleStatus"]["Name"] == "Executed"
    assert event["EventType"]["Name"] == "PreemptibleInstanceInterruption"


def test_an_interrupted_instance_is_stopped_when_it_was_asked_to(cloud):
    (name,) = cloud.running(**SPOT, SpotInterruptionBehavior="Stop")
    cloud.world.interrupt(name, cloud.now)
    rows = cloud.ecs("DescribeInstancesFullStatus", InstanceId=[name])
    (row,) = rows["InstanceFullStatusSet"]["InstanceFullStatusType"]
    assert len(row["ScheduledSystemEventSet"]["ScheduledSystemEventType"]) == 1
    cloud.later(300)
    assert cloud.show(name)["Status"] == "Stopping"
    cloud.later(10)
    shown = cloud.show(name)
    assert (shown["Status"], shown["StoppedMode"]) == ("Stopped", "StopCharging")
    assert locks(cloud, name) == []
    cloud.ecs("StartInstances", InstanceId=[name])
    cloud.later(20)
    assert cloud.show(name)["Status"] == "Running"


def test_a_notice_passes_over_an_instance_that_gave_its_machine_back(cloud):
    (name,) = cloud.running(**SPOT)
    cloud.ecs("StopInstances", InstanceId=[name], StoppedMode="StopCharging")
    cloud.later(10)
    cloud.world.interrupt(name, cloud.now)
    cloud.later(days=1)
    assert cloud.show(name)["Status"] == "Stopped"
    assert locks(cloud, name) == []


@pytest.mark.parametrize("verb", ["StopInstances", "RebootInstances"])
def test_the_machine_is_taken_from_an_instance_that_is_not_running_too(cloud, verb):
    (name,) = cloud.running(**SPOT, SpotInterruptionBehavior="Stop")
    cloud.world.interrupt(name, cloud.now)
    cloud.later(295)
    cloud.ecs(verb, InstanceId=[name])
    cloud.later(30)
    shown = cloud.show(name)
    assert (shown["Status"], shown["StoppedMode"]) == ("Stopped", "StopCharging")
    assert cloud.world.rate(cloud.now, name) == 0


def test_an_instance_under_notice_cannot_be_started(cloud):
    (name,) = cloud.running(**SPOT)
    cloud.ecs("StopInstances", InstanceId=[name])
    cloud.later(10)
    cloud.world.interrupt(name, cloud.now)
    assert cloud.refused("ecs", "StartInstances", InstanceId=[name]) == "InstanceNotReady"
    cloud.later(300)
    assert cloud.show(name) is None


def test_local_disks_forbid_the_stop_behaviour(cloud):
    _, vswitch = cloud.network("192.168.16.0/20", "cn-beijing-f", next(iter(cloud.world.vpcs)))
    launch = {**cloud.launch, "InstanceType": "ecs.gn5-c4g1.xlarge", "VSwitchId": vswitch}
    refused = cloud.refused("ecs", "RunInstances", **launch, **SPOT, SpotInterruptionBehavior="Stop")
    assert refused == "InvalidSpotInterruptionBehavior.LocalDiskNotSupport"


def test_an_instance_on_demand_is_never_interrupted(cloud):
    (name,) = cloud.running()
    cloud.world.interrupt(name, cloud.now)
    assert locks(cloud, name) == []


def test_a_price_above_the_limit_takes_an_instance_once_its_hour_is_over(cloud):
    (name,) = cloud.running(SpotStrategy="SpotWithPriceLimit", SpotPriceLimit=10)
    cloud.world.set_spot_price(ZONE, TYPE, price=Decimal(20), now=cloud.now)
    cloud.later(minutes=40)  # past the full hour, yet protected
    assert locks(cloud, name) == []
    cloud.later(minutes=50)
    assert cloud.show(name) is None or "Recycling" in locks(cloud, name)
    cloud.later(minutes=10)
    assert cloud.show(name) is None


def test_no_price_takes_an_instance_that_goes_with_the_market(cloud):
    (name,) = cloud.running(**SPOT)
    cloud.world.set_spot_price(ZONE, TYPE, price=Decimal(20), now=cloud.now)
    cloud.later(days=2)
    assert cloud.show(name)["Status"] == "Running"


def test_a_start_is_refused_when_the_price_passed_the_limit_meanwhile(cloud):
    (name,) = cloud.running(SpotStrategy="SpotWithPriceLimit", SpotPriceLimit=10)
    cloud.ecs("StopInstances", InstanceId=[name], StoppedMode="StopCharging")
    cloud.later(10)
    cloud.world.set_spot_price(ZONE, TYPE, price=Decimal(20), now=cloud.now)
    code = "OperationDenied.SpotPriceLowerThanPublicPrice"
    assert cloud.refused("ecs", "StartInstances", InstanceId=[name]) == code
    cloud.world.set_spot_price(ZONE, TYPE, price=None, now=cloud.now)
    cloud.ecs("StartInstances", InstanceId=[name])


def test_spot_and_demand_have_stocks_of_their_own(cloud):
    cloud.world.set_stock(ZONE, TYPE, spot=True, free=1)
    assert cloud.run(**SPOT)
    assert cloud.refused("ecs", "RunInstances", **cloud.launch, **SPOT) == "OperationDenied.NoStock"
    assert cloud.run()


def test_prices_move_within_bounds_and_are_the_same_for_everyone(cloud):
    listed = instance_price(TYPES[TYPE], "cn-beijing")
    moments = [cloud.now + market.HOUR * step for step in range(500)]
    prices = [market.spot_price(cloud.world, ZONE, TYPE, one) for one in moments]
    assert prices == [market.spot_price(Cloud().world, ZONE, TYPE, one) for one in moments]
    assert len(set(prices)) > 50
    assert all(listed / 10 <= price <= listed for price in prices)
    assert sum(prices) / len(prices) < listed / 4


def test_the_price_stands_still_when_there_is_no_market():
    cloud = Cloud(market=False)
    prices = {
        market.spot_price(cloud.world, ZONE, TYPE, cloud.now + market.HOUR * step) for step in range(50)
    }
    assert len(prices) == 1


def test_the_history_has_a_row_for_each_zone_and_hour(cloud):
    body = cloud.ecs("DescribeSpotPriceHistory", InstanceType=TYPE, NetworkType="vpc")
    rows = body["SpotPrices"]["SpotPriceType"]
    assert body["Currency"] == "CNY"
    assert {row["ZoneId"] for row in rows} == {"cn-beijing-g", "cn-beijing-h", "cn-beijing-i"}
    here = [row for row in rows if row["ZoneId"] == ZONE]
    assert [row["Timestamp"] for row in here] == [f"2026-03-01T{hour:02d}:00:00Z" for hour in (9, 10, 11, 12)]
    assert here[-1]["SpotPrice"] == float(market.spot_price(cloud.world, ZONE, TYPE, cloud.now))
    wrong = {"InstanceType": TYPE, "NetworkType": "vpc", "StartTime": "2026-01-01T00:00:00Z"}
    assert cloud.refused("ecs", "DescribeSpotPriceHistory", **wrong) == "InvalidParams.EndTime"


def test_advice_tells_the_average_discount(cloud):
    body = cloud.ecs("DescribeSpotAdvice", InstanceTypes=[TYPE], ZoneId=ZONE)
    (zone,) = body["AvailableSpotZones"]["AvailableSpotZone"]
    (row,) = zone["AvailableSpotResources"]["AvailableSpotResource"]
    assert 10 <= row["AverageSpotDiscount"] <= 40
