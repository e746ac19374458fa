"""Prices of spot machines after their first hour. The first hour has the price of the purchase; then the market's holds.

`costs.py` reads the price of the purchase from tags; this module asks the provider for the later ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.wire import Answer, Parameter, format_time, number, parse_time, rows, text
from trainyard.spec.machine import Machine

PROTECTED = timedelta(hours=1)  # the `SpotDuration` that machines are asked for with
LONGEST = timedelta(days=29)  # the provider answers for thirty days
MOST_PAGES = 20

Rate = tuple[datetime, Decimal]  # from when on, for an hour


async def fetch_rates(client: Client, machines: Sequence[Machine]) -> Mapping[str, Sequence[Rate]]:
    """By id, the prices of spot machines since their first hour ended; one question for each type and zone."""
    now = client.clock.now()
    found: dict[str, Sequence[Rate]] = {}
    places: dict[tuple[str, str], list[tuple[Machine, datetime]]] = {}
    for machine in machines:
        begin = machine.created + PROTECTED if machine.created is not None else now
        if machine.spot and begin < now:
            places.setdefault((machine.type, machine.zone), []).append((machine, begin))
    for (kind, zone), several in places.items():
        # From when the first was bought: the price that holds after its first hour may be older than that hour's end.
        since = max(min(begin for _, begin in several) - PROTECTED, now - LONGEST)
        history = await fetch_history(client, kind, zone, since=since)
        for machine, begin in several:
            disks = Decimal(machine.details.get("exact_stopped_price_per_hour") or 0)
            found[machine.id] = rates_since(begin, history, disks)
    return found


async def fetch_history(client: Client, type_name: str, zone_id: str, *, since: datetime) -> list[Rate]:
    """The market's prices of a type in a zone, the oldest first, from the one that held at `since`."""
    found: dict[datetime, Decimal] = {}
    offset = 0
    for _ in range(MOST_PAGES):
        parameters: dict[str, Parameter] = {
            "InstanceType": type_name,
            "NetworkType": "vpc",
            "OSType": "linux",
            "ZoneId": zone_id,
            "StartTime": format_time(since),
            "Offset": offset or None,
        }
        answer = await client.call("ecs", "DescribeSpotPriceHistory", parameters, about=type_name)
        page = list(_points(answer, zone_id))
        found |= dict(page)
        following = int(number(answer, "NextOffset"))
        if not page or following <= offset:
            break
        offset = following
    return sorted(found.items())


def rates_since(begin: datetime, history: Sequence[Rate], extra: Decimal) -> tuple[Rate, ...]:
    """The prices that hold from a moment on; `extra` comes to each of them."""
    before = [price for moment, price in history if moment <= begin]
    kept = [(begin, before[-1])] if before else []
    kept += [(moment, price) for moment, price in history if moment > begin]
    return tuple(
        (moment, price + extra)
        for place, (moment, price) in enumerate(kept)
        if not place or price != kept[place - 1][1]
    )


def _points(answer: Answer, zone_id: str) -> Iterable[Rate]:
    for row in rows(answer, "SpotPrices.SpotPriceType"):
        moment = parse_time(text(row, "Timestamp"))
        if moment is not None and text(row, "ZoneId") == zone_id:
            yield moment, number(row, "SpotPrice")
