"""Money: billed by the second, by the market for spot, on and on for disks; nothing after the end."""

from __future__ import annotations

from decimal import Decimal

import pytest

from emulated import CPU, TYPE, ZONE, Cloud
from trainyard.emulators.aliyun.cloud import market
from trainyard.emulators.aliyun.cloud.catalogue import TYPES, disk_price, instance_price

HOUR = 3600


@pytest.fixture
def cloud():
    return Cloud().ready()


def test_an_instance_costs_its_list_price_by_the_second(cloud):
    (name,) = cloud.run()
    cloud.later(90 * 60)
    listed = instance_price(TYPES[TYPE], "cn-beijing")
    assert cloud.world.spent(cloud.now, name) == listed * 3 / 2
    cloud.later(1)
    assert cloud.world.spent(cloud.now, name) == listed * 5401 / 3600
    assert cloud.world.rate(cloud.now, name) == listed


def test_disks_cost_on_while_the_machine_rests(cloud):
    (name,) = cloud.run(SystemDisk={"Category": "cloud_essd", "Size": 100})
    (disk,) = cloud.world.disks_of(name)
    cloud.later(30)
    cloud.ecs("StopInstances", InstanceId=[name], StoppedMode="StopCharging")
    cloud.later(10)
    spent = cloud.world.spent(cloud.now, name)
    cloud.later(HOUR - 40)
    assert (
        cloud.world.spent(cloud.now, name) == spent == instance_price(TYPES[TYPE], "cn-beijing") * 40 / 3600
    )
    assert cloud.world.spent(cloud.now, disk.id) == disk_price("cloud_essd", 100, "PL0", "cn-beijing")
    assert cloud.world.rate(cloud.now) == cloud.world.rate(cloud.now, disk.id) > 0


def test_an_ordinary_stop_saves_nothing(cloud):
    (name,) = cloud.running()
    cloud.ecs("StopInstances", InstanceId=[name])
    cloud.later(HOUR - 30)
    assert cloud.world.spent(cloud.now, name) == instance_price(TYPES[TYPE], "cn-beijing")


def test_billing_begins_again_with_a_start(cloud):
    (name,) = cloud.running()
    cloud.ecs("StopInstances", InstanceId=[name], StoppedMode="StopCharging")
    cloud.later(HOUR)
    cloud.ecs("StartInstances", InstanceId=[name])
    before = cloud.world.spent(cloud.now, name)
    cloud.later(HOUR)
    assert cloud.world.spent(cloud.now, name) - before == instance_price(TYPES[TYPE], "cn-beijing")


def test_spot_pays_its_first_price_for_an_hour_and_the_market_s_after(cloud):
    (name,) = cloud.run(SpotStrategy="SpotAsPriceGo")
    first = market.spot_price(cloud.world, ZONE, TYPE, cloud.now)
    cloud.world.set_spot_price(ZONE, TYPE, price=Decimal(20), now=cloud.now)
    cloud.later(HOUR)
    assert cloud.world.spent(cloud.now, name) == first
    cloud.later(HOUR)
    assert cloud.world.spent(cloud.now, name) == first + 20
    cloud.world.set_spot_price(ZONE, TYPE, price=Decimal(8), now=cloud.now)
    cloud.later(HOUR // 2)
    assert cloud.world.spent(cloud.now, name) == first + 24
    assert cloud.world.rate(cloud.now, name) == 8


def test_spot_without_protection_pays_the_market_from_the_start(cloud):
    cloud.world.set_spot_price(ZONE, TYPE, price=Decimal(6), now=cloud.now)
    (name,) = cloud.run(SpotStrategy="SpotAsPriceGo", SpotDuration=0)
    cloud.later(HOUR // 2)
    cloud.world.set_spot_price(ZONE, TYPE, price=Decimal(4), now=cloud.now)
    cloud.later(HOUR // 2)
    assert cloud.world.spent(cloud.now, name) == 5


def test_nothing_is_billed_after_a_delete(cloud):
    cloud.running(Amount=3, InternetMaxBandwidthOut=10, InternetChargeType="PayByBandwidth", InstanceType=CPU)
    cloud.ecs("DeleteInstances", InstanceId=list(cloud.world.instances), Force=True)
    spent = cloud.world.spent(cloud.now)
    assert spent > 0
    assert cloud.world.rate(cloud.now) == 0
    cloud.later(days=1)
    assert cloud.world.spent(cloud.now) == spent
    assert sum(line.cost for line in cloud.world.statement(cloud.now)) == spent
    assert all(line.end for line in cloud.world.statement(cloud.now))


def test_fixed_bandwidth_is_billed_while_there_is_an_address(cloud):
    pay = {"InternetChargeType": "PayByBandwidth", "InstanceType": CPU}
    (name,) = cloud.running(InternetMaxBandwidthOut=10, **pay)
    rate = cloud.world.rate(cloud.now, name)
    cloud.ecs("ModifyInstanceNetworkSpec", InstanceId=name, InternetMaxBandwidthOut=20)
    assert cloud.world.rate(cloud.now, name) == rate + Decimal("0.63")
    cloud.ecs("StopInstances", InstanceId=[name], StoppedMode="StopCharging")
    cloud.later(10)
    assert cloud.world.rate(cloud.now, name) == 0


def test_an_elastic_address_costs_while_it_is_bound_to_nothing(cloud):
    eip = cloud.vpc("AllocateEipAddress", Bandwidth="5", InternetChargeType="PayByTraffic")["AllocationId"]
    assert cloud.world.rate(cloud.now, eip) == Decimal("0.02")
    (name,) = cloud.running()
    cloud.vpc("AssociateEipAddress", AllocationId=eip, InstanceId=name)
    assert cloud.world.rate(cloud.now, eip) == 0
    cloud.ecs("DeleteInstances", InstanceId=[name], Force=True)
    cloud.later(5)
    assert cloud.world.rate(cloud.now, eip) == Decimal("0.02")
    cloud.vpc("ReleaseEipAddress", AllocationId=eip)
    assert cloud.world.rate(cloud.now) == 0


def test_the_price_that_is_told_is_the_price_that_is_billed(cloud):
    disks = {"SystemDisk": {"Category": "cloud_essd", "Size": 100, "PerformanceLevel": "PL1"}}
    data = [{"Category": "cloud_efficiency", "Size": 200}]
    price = cloud.ecs(
        "DescribePrice", InstanceType=TYPE, ZoneId=ZONE, PriceUnit="Hour", DataDisk=data, **disks
    )
    told = price["PriceInfo"]["Price"]
    cloud.run(**disks, DataDisk=data)
    cloud.later(HOUR)
    assert float(cloud.world.spent(cloud.now)) == pytest.approx(told["TradePrice"])
    assert [row["Resource"] for row in told["DetailInfos"]["DetailInfo"]] == [
        "instanceType",
        "systemDisk",
        "dataDisk",
    ]


def test_the_price_of_several_and_of_spot_is_told(cloud):
    def price(**parameters):
        body = cloud.ecs("DescribePrice", InstanceType=TYPE, ZoneId=ZONE, **parameters)
        return body["PriceInfo"]["Price"]

    one, many, spot = price(), price(Amount=8), price(SpotStrategy="SpotAsPriceGo")
    assert many["TradePrice"] == pytest.approx(8 * one["TradePrice"])
    assert spot["TradePrice"] < one["TradePrice"] / 2
    assert spot["OriginalPrice"] == pytest.approx(one["OriginalPrice"])
    assert price(PriceUnit="Month")["TradePrice"] == pytest.approx(720 * one["TradePrice"])
    assert (
        cloud.refused("ecs", "DescribePrice", InstanceType="ecs.x") == "InvalidInstanceType.ValueNotSupported"
    )
    assert cloud.refused("ecs", "DescribePrice", InstanceType="ecs.gn5t.14xlarge") == "PriceNotFound"
