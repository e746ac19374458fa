"""The spot market: a price for each type, zone and hour, computed from a seed.

Prices move on the hour. A price may be set by hand from a moment on; the past keeps what it had, so that bills stay right.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from trainyard.emulators.aliyun.cloud.catalogue import TYPES, ZONES, instance_price
from trainyard.emulators.aliyun.cloud.cloud_state import CloudState
from trainyard.emulators.aliyun.cloud.records import PricePoint

HOUR = timedelta(hours=1)
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_LEAST, _MOST = 0.1, 1.0  # the provider never sells below a tenth of the list price, nor above it
_SPIKE = 150  # one hour in so many is dear


def hour_of(moment: datetime) -> datetime:
    """The full hour that `moment` lies in."""
    return moment.replace(minute=0, second=0, microsecond=0)


def next_hour(moment: datetime) -> datetime:
    """The full hour after `moment`."""
    return hour_of(moment) + HOUR


def spot_price(cloud_state: CloudState, zone: str, kind: str, moment: datetime) -> Decimal:
    """What one hour costs on the spot market."""
    listed = instance_price(TYPES[kind], ZONES[zone].id)
    for point in reversed(cloud_state.price_points.get(f"{zone}/{kind}", ())):
        if point.start <= moment:
            if point.price is not None:
                return point.price
            break
    return (listed * Decimal(str(_fraction(cloud_state, zone, kind, moment)))).quantize(Decimal("0.001"))


def _fraction(cloud_state: CloudState, zone: str, kind: str, moment: datetime) -> float:
    base = 0.1 + 0.1 * _noise(cloud_state.seed, zone, kind)
    if not cloud_state.options.market:
        return round(base, 4)
    hours = int((hour_of(moment) - _EPOCH) / HOUR)
    day = 1 + 0.15 * math.sin(math.tau * ((hours % 24) / 24 + _noise(cloud_state.seed, zone)))
    step = 0.9 + 0.2 * _noise(cloud_state.seed, zone, kind, str(hours // 3))
    spike = 3 if _noise(cloud_state.seed, zone, kind, "spike", str(hours)) < 1 / _SPIKE else 1
    return round(min(_MOST, max(_LEAST, base * day * step * spike)), 4)


def _noise(*parts: str) -> float:
    digest = hashlib.sha256("/".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def stretches(
    cloud_state: CloudState, zone: str, kind: str, start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, Decimal]]:
    """The time between two moments cut where the price may change: from, to, price per hour."""
    cuts = [point.start for point in cloud_state.price_points.get(f"{zone}/{kind}", ())]
    while start < end:
        stop = min([next_hour(start), end, *(cut for cut in cuts if cut > start)])
        yield start, stop, spot_price(cloud_state, zone, kind, start)
        start = stop


def set_spot_price(
    cloud_state: CloudState, zone: str, kind: str, price: Decimal | None, now: datetime
) -> None:
    """Fix the spot price from now on; None gives it back to the market."""
    cloud_state.price_points.setdefault(f"{zone}/{kind}", []).append(PricePoint(start=now, price=price))
