"""GPU machine types with their zones and prices, for `querygpu`. `catalogue.py` fetches the types."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import TypeVar

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.launch.catalogue import (
    Level,
    MachineRequest,
    Price,
    TypeInfo,
    fetch_gpu_types,
    fetch_price,
    fetch_spot_prices,
    fetch_stock,
)
from trainyard.lib.aio import map_bounded
from trainyard.lib.errors import CapacityError, InvalidError, NotFoundError

T = TypeVar("T")

CONCURRENT_PRICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A type with GPUs as `querygpu` shows it."""

    type: TypeInfo
    zones: tuple[str, ...]  # with stock
    price: Price | None = None
    spot_price: Price | None = None  # the lowest of the zones


async def fetch_gpu_offers(client: Client, *, with_prices: bool = True) -> tuple[Offer, ...]:
    """All types with GPUs, where they can be had, and what they cost without disks; those with stock first."""
    types = await fetch_gpu_types(client)
    zones: dict[str, list[str]] = {}
    for each in await fetch_stock(client):
        if each.type in types and each.level is not Level.NONE:
            zones.setdefault(each.type, []).append(each.zone_id)

    async def offer(name: str) -> Offer:
        there = tuple(sorted(zones.get(name, ())))
        if not there or not with_prices:
            return Offer(type=types[name], zones=there)
        spot = list((await _or_nothing(fetch_spot_prices(client, name)) or {}).values())
        price = await _or_nothing(fetch_price(client, name, MachineRequest(types=(name,)), zone_id=there[0]))
        return Offer(
            type=types[name],
            zones=there,
            price=_machine_only(price),
            spot_price=min(spot, key=lambda each: each.amount) if spot else None,
        )

    found = await map_bounded(offer, sorted(types), limit=CONCURRENT_PRICES)
    offers: list[Offer] = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        offers.append(one)
    return tuple(
        sorted(offers, key=lambda each: (not each.zones, each.type.gpu_model, each.type.gpus, each.type.name))
    )


async def _or_nothing(asking: Awaitable[T]) -> T | None:
    """A type that is listed but has no price is shown without one."""
    try:
        return await asking
    except (CapacityError, NotFoundError, InvalidError):
        return None


def _machine_only(price: Price | None) -> Price | None:
    own = price.parts.get("instanceType") if price else None
    return replace(price, amount=own) if price and own is not None else price
