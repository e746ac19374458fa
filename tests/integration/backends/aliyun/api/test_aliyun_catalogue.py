"""Types, stock, prices, candidates and images, as the emulator has them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from cloud import called
from hypothesis import given
from hypothesis import strategies as st

from trainyard.backends.aliyun.launch.catalogue import (
    Candidate,
    Disk,
    Level,
    MachineRequest,
    Price,
    SoldOutPlaces,
    fetch_price,
    fetch_regions,
    fetch_spot_prices,
    fetch_stock,
    fetch_types,
    fetch_zones,
    find_candidates,
    rank,
    read_type,
)
from trainyard.backends.aliyun.launch.gpu_offers import fetch_gpu_offers
from trainyard.backends.aliyun.launch.images import fetch_images, find_image
from trainyard.lib.clock import ManualClock
from trainyard.lib.errors import CapacityError, InvalidError, NotFoundError

pytestmark = pytest.mark.slow  # an emulator of its own

V100 = "ecs.gn6v-c8g1.2xlarge"
CHEAP = "ecs.g7.large"


async def test_regions_and_zones_are_listed(emulated_client):
    assert "cn-beijing" in await fetch_regions(emulated_client)
    assert "cn-beijing-h" in await fetch_zones(emulated_client)
    assert all(
        zone.startswith("cn-hangzhou-")
        for zone in await fetch_zones(emulated_client.in_region("cn-hangzhou"))
    )


async def test_a_types_figures_are_read(emulated_client):
    found = await fetch_types(emulated_client, [V100, "ecs.gn5-c4g1.xlarge", "ecs.nothing.large"])
    assert set(found) == {V100, "ecs.gn5-c4g1.xlarge"}
    v100 = found[V100]
    assert (v100.cpus, v100.memory_mib, v100.gpus, v100.gpu_model) == (8, 32 * 1024, 1, "V100")
    assert v100.gpu_memory_mib == 16 * 1024
    assert v100.local_disks == 0
    assert found["ecs.gn5-c4g1.xlarge"].local_disks > 0


def test_gpu_memory_is_of_one_gpu_when_the_provider_gives_the_sum():
    assert read_type({"GPUAmount": 8, "GPUMemorySize": 640.0}).gpu_memory_mib == 80 * 1024
    assert read_type({"GPUAmount": 8, "GPUMemorySize": 80}).gpu_memory_mib == 80 * 1024
    assert read_type({}).gpus == 0


async def test_many_types_are_asked_for_ten_at_a_time(emulated_cloud, emulated_client):
    await fetch_types(emulated_client, [f"ecs.g7.{number}xlarge" for number in range(25)])
    assert called(emulated_cloud, "DescribeInstanceTypes") == ["DescribeInstanceTypes"] * 3


async def test_stock_is_by_zone(emulated_client):
    found = await fetch_stock(emulated_client, type_name=V100)
    assert found
    assert {each.type for each in found} == {V100}
    assert all(each.zone_id.startswith("cn-beijing-") for each in found)


async def test_a_zone_without_stock_is_left_out_and_one_that_runs_dry_comes_later(
    emulated_cloud, emulated_client
):
    type_name = "ecs.gn6i-c4g1.xlarge"
    zones = sorted(each.zone_id for each in await fetch_stock(emulated_client, type_name=type_name))
    for zone in zones:
        emulated_cloud.control("POST", "stock", {"zone": zone, "type": type_name, "free": 100})
    emulated_cloud.control("POST", "stock", {"zone": zones[0], "type": type_name, "free": 0})
    emulated_cloud.control(
        "POST", "stock", {"zone": zones[1], "type": type_name, "advice": "ClosedWithStock"}
    )
    found = await find_candidates(emulated_client, MachineRequest(types=(type_name,)))
    assert [each.zone_id for each in found] == [*zones[2:], zones[1]]


async def test_no_stock_is_no_crash_when_nothing_matches(emulated_client):
    assert await fetch_stock(
        emulated_client, type_name=V100, zone_id="cn-beijing-f", disk_category="cloud_essd_entry"
    ) in ((),)


async def test_a_price_has_its_parts_and_its_currency(emulated_client):
    wish = MachineRequest(types=(V100,), system_disk=Disk(gib=100), data_disks=(Disk(gib=500),))
    price = await fetch_price(emulated_client, V100, wish)
    assert price.currency == "CNY"
    assert price.parts["instanceType"] == Decimal("26.46")
    assert price.amount > price.parts["instanceType"]
    two = await fetch_price(emulated_client, V100, wish, amount=2)
    assert two.amount == 2 * price.amount


async def test_spot_prices_are_the_newest_of_each_zone(emulated_client):
    prices = await fetch_spot_prices(emulated_client, V100)
    assert prices
    assert all(Decimal(0) < price.amount <= price.original for price in prices.values())


async def test_candidates_have_prices_and_the_calls_do_not_grow_with_zones(emulated_cloud, emulated_client):
    emulated_cloud.control("DELETE", "calls")
    found = await find_candidates(emulated_client, MachineRequest(types=(V100,)))
    assert found
    assert all(each.price for each in found)
    assert len(called(emulated_cloud)) == 2
    emulated_cloud.control("DELETE", "calls")
    spot = await find_candidates(
        emulated_client, MachineRequest(types=(V100,), is_spot=True, may_fall_back=True)
    )
    assert len(called(emulated_cloud)) == 5
    assert spot[0].is_spot
    assert not spot[-1].is_spot
    assert spot[0].price.amount < spot[-1].price.amount


async def test_a_zone_can_be_pinned(emulated_client):
    found = await find_candidates(emulated_client, MachineRequest(types=(CHEAP,), zone_id="cn-beijing-h"))
    assert [each.zone_id for each in found] == ["cn-beijing-h"]


async def test_it_is_told_what_was_looked_at_when_there_is_nothing(emulated_client):
    with pytest.raises(CapacityError) as caught:
        await find_candidates(emulated_client, MachineRequest(types=("ecs.nothing.large", "ecs.none.large")))
    assert "ecs.nothing.large, ecs.none.large" in caught.value.message
    assert "querygpu" in caught.value.hint
    with pytest.raises(CapacityError, match="cn-beijing") as caught:
        await find_candidates(emulated_client, MachineRequest(types=(V100,), highest_price=Decimal("0.01")))
    assert "max_price_per_hour" in caught.value.hint


async def test_offers_show_stock_and_both_prices(emulated_client):
    offers = await fetch_gpu_offers(emulated_client)
    by_name = {offer.type.name: offer for offer in offers}
    v100 = by_name[V100]
    assert v100.zones
    assert v100.price.amount == Decimal("26.46")
    assert v100.spot_price.amount < v100.price.amount
    assert all(offer.type.gpus for offer in offers)
    quick = await fetch_gpu_offers(emulated_client, with_prices=False)
    assert {offer.type.name for offer in quick} == set(by_name)


# -- ranking is pure ---------------------------------------------------------------------------------------------------


def price(amount: str) -> Price:
    return Price(amount=Decimal(amount), original=Decimal(amount), currency="CNY")


candidates = st.builds(
    Candidate,
    zone_id=st.sampled_from(["a", "b", "c"]),
    type=st.sampled_from(["t1", "t2"]),
    is_spot=st.booleans(),
    level=st.sampled_from(Level),
    price=st.none() | st.sampled_from(["1", "2", "3"]).map(price),
)


@given(st.lists(candidates), st.booleans(), st.none() | st.just(Decimal(2)))
def test_what_is_sold_out_or_too_dear_is_never_tried(offers, is_spot, highest):
    wish = MachineRequest(types=("t1", "t2"), is_spot=is_spot, highest_price=highest)
    ranked = rank(offers, wish)
    assert all(each.level is not Level.NONE for each in ranked)
    assert all(highest is None or each.price is None or each.price.amount <= highest for each in ranked)
    ways = [each.is_spot == is_spot for each in ranked]
    assert ways == sorted(ways, reverse=True)
    for first, second in itertools.pairwise(ranked):
        if first.is_spot == second.is_spot:
            assert first.level <= second.level


def test_stock_goes_before_price_and_price_before_name():
    plenty = Candidate(zone_id="b", type="t", is_spot=False, level=Level.PLENTY, price=price("3"))
    cheap = replace(plenty, zone_id="c", price=price("1"))
    some = replace(plenty, zone_id="a", level=Level.SOME, price=price("0.5"))
    assert rank([some, plenty, cheap], MachineRequest(types=("t",))) == (cheap, plenty, some)


def test_a_place_that_failed_comes_last_for_some_minutes():
    clock = ManualClock()
    misses = SoldOutPlaces(clock)
    first = Candidate(zone_id="a", type="t", is_spot=False, level=Level.PLENTY)
    second = replace(first, zone_id="b")
    misses.add(first)
    wish = MachineRequest(types=("t",))
    assert rank([first, second], wish, misses=misses) == (second, first)
    clock.advance(timedelta(minutes=6).total_seconds())
    assert rank([first, second], wish, misses=misses) == (first, second)


def test_a_candidate_names_itself():
    spot = Candidate(zone_id="cn-beijing-h", type=V100, is_spot=True, level=Level.SOME)
    assert spot.about == f"{V100} (spot) in cn-beijing-h"


# -- images ------------------------------------------------------------------------------------------------------------


async def test_images_are_listed_over_all_pages_newest_first(emulated_client):
    found = await fetch_images(emulated_client, owner="system")
    assert len(found) > 10
    times = [image.created for image in found if image.created]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("", "ubuntu_22_04"),
        ("ubuntu", "ubuntu_22_04"),
        ("Aliyun", "aliyun_3"),
        ("aliyun_2", "aliyun_3"),
        ("CentOS", "centos_7_9"),
    ],
)
async def test_the_newest_image_of_a_kind_is_found(emulated_client, kind, start):
    image = await find_image(emulated_client, kind=kind)
    assert image.id.startswith(start)
    assert not image.has_driver


async def test_the_image_with_the_driver_is_found_when_it_is_asked_for(emulated_client):
    image = await find_image(emulated_client, kind="ubuntu", with_driver=True)
    assert image.has_driver
    plain = await find_image(emulated_client, kind="centos", with_driver=True)
    assert not plain.has_driver  # there is none: the driver has to be installed


async def test_aiacc_images_come_from_the_marketplace(emulated_client):
    image = await find_image(emulated_client, kind="aiacc")
    assert image.name.startswith("aiacc-dlimg")
    assert image.owner == "marketplace"
    assert image.has_driver


@pytest.mark.parametrize(
    "named", ["acs:ubuntu_24_04_x64", "ubuntu_18_04_64_20G_alibase_20190624.vhd", "aiacc-dlimg-centos7:1.3.1"]
)
async def test_an_image_is_found_by_family_id_or_name(emulated_client, named):
    image = await find_image(emulated_client, image=named)
    assert named in {image.family, image.id, image.name}
    assert image.note == ""


async def test_a_withdrawn_image_is_replaced_and_that_is_told(emulated_client):
    image = await find_image(emulated_client, image="ubuntu_20_04_x64_20G_alibase_20200101.vhd")
    assert image.id.startswith("ubuntu_20_04_x64_20G")
    assert "withdrawn" in image.note
    other = await find_image(emulated_client, image="ubuntu_16_04_64_20G_alibase_20180101.vhd")
    assert other.id.startswith("ubuntu_")
    assert other.note


@pytest.mark.parametrize("named", ["acs:nothing_like_it", "m-nothing", "my own image", "x'; $(id)\n中文"])
async def test_an_image_that_is_not_there_is_named(emulated_client, named):
    with pytest.raises(NotFoundError, match="there is no image") as caught:
        await find_image(emulated_client, image=named)
    assert "queryimage" in caught.value.hint


async def test_an_image_type_that_is_not_there_is_told_with_those_that_are(emulated_client):
    with pytest.raises(InvalidError) as caught:
        await find_image(emulated_client, kind="windows")
    assert "ubuntu, aliyun, centos, aiacc" in caught.value.hint
