"""Computes the costs of machines from their tags: the price at the purchase, and the amount spent until a stop.

Pure: listing machines costs no further calls. The prices in the tags come from `catalogue.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from trainyard.backends.aliyun.api.wire import format_time, parse_time
from trainyard.backends.aliyun.launch.catalogue import Price

PRICE_TAG = "trainyard-price"  # "26.46 0.07 CNY": running, stopped, currency
SPENT_TAG = "trainyard-spent"  # "12.3400 2026-01-01T00:00:00Z": so much until then
HOUR = timedelta(hours=1)
CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Money for an hour of one machine."""

    running: Decimal
    stopped: Decimal  # the disks go on costing
    currency: str


def price_text(price: Price | None) -> str:
    """A price as the tag holds it."""
    if price is None:
        return ""
    disks = sum((part for name, part in price.parts.items() if "disk" in name.lower()), Decimal(0))
    return f"{price.amount.normalize():f} {disks.normalize():f} {price.currency}"


def read_rates(tags: Mapping[str, str]) -> Rates | None:
    """Parse the price tag; None if it is missing or cannot be read."""
    words = tags.get(PRICE_TAG, "").split()
    if len(words) != 3:
        return None
    try:
        return Rates(running=Decimal(words[0]), stopped=Decimal(words[1]), currency=words[2])
    except ArithmeticError:
        return None


def spent_text(amount: Decimal, moment: datetime) -> str:
    """Format the amount spent until a moment, for the tag."""
    return f"{amount:.4f} {format_time(moment)}"


def spent(
    rates: Rates,
    tags: Mapping[str, str],
    *,
    created: datetime,
    started: datetime | None,
    is_stopped: bool,
    is_charged_in_full: bool,
    now: datetime,
) -> Decimal | None:
    """Return the cost of a machine so far; None if the time of its stop was not recorded."""
    amount, moment = _read_spent(tags)
    if is_stopped:
        if is_charged_in_full:
            return amount + rates.running * _hours(moment or created, now)
        is_known = moment is not None and (started is None or started <= moment)  # else it has run since then
        return amount + rates.stopped * _hours(moment, now) if moment and is_known else None
    if moment is None:
        return rates.running * _hours(created, now)
    since = max(moment, started or moment)
    return amount + rates.stopped * _hours(moment, since) + rates.running * _hours(since, now)


def _read_spent(tags: Mapping[str, str]) -> tuple[Decimal, datetime | None]:
    amount, _, stamp = tags.get(SPENT_TAG, "").partition(" ")
    try:
        return Decimal(amount or "0"), parse_time(stamp)
    except ArithmeticError:
        return Decimal(0), None


def _hours(begin: datetime, end: datetime) -> Decimal:
    return Decimal(max(0.0, (end - begin) / HOUR))


def money(amount: Decimal | None) -> str:
    """For people and details: two digits; small prices keep four."""
    if amount is None:
        return ""
    return f"{amount:.2f}" if amount == 0 or amount >= CENT * 10 else f"{amount:.4f}"
