"""What spot machines cost after their first hour, as the emulated market has it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from cloud import called, make_client

from trainyard.backends.aliyun.spot_prices import fetch_history, fetch_rates, rates_since
from trainyard.lib.clock import ManualClock
from trainyard.spec.machine import Machine, MachineState

pytestmark = pytest.mark.slow  # an emulator of its own

TYPE, ZONE = "ecs.g7.large", "cn-beijing-h"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def machine(name: str, created: datetime | None, **more: object) -> Machine:
    values = {"spot": True, "details": {"exact_stopped_price_per_hour": "0.01"}, **more}
    return Machine(
        name=name, id=f"i-{name}", backend="aliyun", state=MachineState.RUNNING, type=TYPE, zone=ZONE, created=created,
        **values,
    )  # fmt: skip


def test_prices_hold_from_the_end_of_the_first_hour_when_they_move_later():
    history = [(NOON - HOUR, Decimal(1)), (NOON, Decimal(2)), (NOON + HOUR, Decimal(2)), (NOON + 2 * HOUR, Decimal(3))]  # fmt: skip
    begin = NOON + timedelta(minutes=30)
    found = rates_since(begin, history, Decimal("0.5"))
    assert found == ((begin, Decimal("2.5")), (NOON + 2 * HOUR, Decimal("3.5")))
    assert rates_since(NOON - 2 * HOUR, history, Decimal(0))[0] == (NOON - HOUR, Decimal(1))
    assert rates_since(NOON, [], Decimal(1)) == ()


async def test_the_markets_prices_are_told_when_machines_are_older_than_an_hour(emulated_cloud, isolation):
    began = datetime.fromisoformat(emulated_cloud.control("GET", "clock")["now"])
    for price in (0.11, 0.22, 0.33):
        emulated_cloud.control("POST", "price", {"zone": ZONE, "type": TYPE, "price": price})
        emulated_cloud.control("POST", "clock", {"advance_seconds": 3600})
    now = datetime.fromisoformat(emulated_cloud.control("GET", "clock")["now"])
    client = make_client(emulated_cloud, isolation, ManualClock(now))
    emulated_cloud.control("DELETE", "calls")
    old, second = machine("old", began), machine("other", began)
    young, plain, unknown = machine("young", now), machine("plain", began, spot=False), machine("x", None)
    found = await fetch_rates(client, [old, second, young, plain, unknown])
    assert called(emulated_cloud, "DescribeSpotPriceHistory").count("DescribeSpotPriceHistory") <= 2
    assert found.keys() == {"i-old", "i-other"}
    prices = [price for _, price in found["i-old"]]
    assert prices == [Decimal("0.12"), Decimal("0.23"), Decimal("0.34")][-len(prices) :]
    assert len(prices) >= 2
    assert found["i-old"][0][0] == began + HOUR
    assert await fetch_rates(client, []) == {}
    assert len(await fetch_history(client, TYPE, ZONE, since=now - timedelta(days=28))) > 600
