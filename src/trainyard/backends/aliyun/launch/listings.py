"""Makes the rows of `querygpu` and `queryimage`, and a Plan from launch candidates."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from trainyard.backends.aliyun.costs import money
from trainyard.backends.aliyun.launch.catalogue import Candidate, Level, Price
from trainyard.backends.aliyun.launch.gpu_offers import Offer
from trainyard.backends.aliyun.launch.images import Image
from trainyard.spec.machine import Machine, MachineState
from trainyard.spec.plan import Option, Plan

_STOCK = {Level.PLENTY: "plenty", Level.SOME: "some", Level.UNKNOWN: "unknown", Level.NONE: "none"}


def type_rows(offers: Sequence[Offer]) -> list[dict[str, str]]:
    """One row a type; those that somebody has come first. A narrow terminal shows the first columns."""
    return [
        {
            "Type": offer.type.name,
            "GPU": f"{offer.type.gpu_model} x {offer.type.gpus}",
            "Price/h": _price(offer.price),
            "Spot/h": _price(offer.spot_price),
            "In stock": _zones(offer.zones),
            "GPU memory": f"{offer.type.gpu_memory_mib // 1024} GiB",
            "CPUs": str(offer.type.cpus),
            "Memory": f"{offer.type.memory_mib // 1024} GiB",
        }
        for offer in offers
    ]


def _zones(zones: Sequence[str]) -> str:
    """`cn-beijing-g,h`: what is common to all is written once."""
    stem = zones[0].rpartition("-")[0] + "-" if zones else ""
    if not all(zone.startswith(stem) for zone in zones):
        return " ".join(zones)
    return (stem + ",".join(zone.removeprefix(stem) for zone in zones)) or "-"


def _price(price: Price | None) -> str:
    return f"{money(price.amount)} {price.currency}" if price else "-"


def image_rows(images: Sequence[Image]) -> list[dict[str, str]]:
    """One row an image, newest first."""
    return [
        {
            "Image": image.id,
            "Name": image.name,
            "System": " ".join(image.system.split()),
            "Family": image.family or "-",
            "Size": f"{image.size_gib} GiB",
            "Driver": "yes" if image.has_driver else "-",
            "Owner": image.owner,
        }
        for image in images
    ]


def plan_of(
    names: Sequence[str],
    there: dict[str, Machine],
    *,
    image: Image | None = None,
    candidates: Sequence[Candidate] = (),
) -> Plan:
    """What acquiring these names would do."""
    have = [there[name] for name in names if name in there]
    still = [one for one in have if one.state in {MachineState.STOPPED, MachineState.STOPPING}]
    prices = [Decimal(one.details["price_per_hour"]) for one in still if "price_per_hour" in one.details]
    currencies = [each.price.currency for each in candidates if each.price]
    currencies += [one.details["currency"] for one in have if "currency" in one.details]
    return Plan(
        new=[name for name in names if name not in there],
        existing=[one.name for one in have],
        starting=[one.name for one in still],
        currency=currencies[0] if currencies else "",
        image=image.id if image else "",
        options=[_option(each) for each in candidates],
        notes=[image.note] if image and image.note else [],
        started_price_per_hour=sum(prices, Decimal(0)),
    )


def _option(candidate: Candidate) -> Option:
    return Option(
        type=candidate.type,
        place=candidate.zone_id,
        spot=candidate.is_spot,
        stock=_STOCK[candidate.level],
        price_per_hour=candidate.price.amount if candidate.price else None,
    )
