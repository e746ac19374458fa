"""Prices: of a purchase, of the spot market over time, and how dear spot is on average."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

from trainyard.emulators.aliyun.api.answers import parse_time, require_region, second
from trainyard.emulators.aliyun.api.call import Call, Handler, Value, number, text
from trainyard.emulators.aliyun.api.problems import Problem, denied, missing, not_found
from trainyard.emulators.aliyun.cloud.catalogue import (
    BANDWIDTH_PRICE,
    CURRENCY,
    DISKS,
    HOURS_PER_MONTH,
    TYPES,
    ZONES,
    Type,
    disk_categories,
    disk_price,
    instance_price,
    is_sold,
)
from trainyard.emulators.aliyun.cloud.market import HOUR, next_hour, spot_price
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.ecs.regions import zones_of

_UNITS = {
    "Hour": 1,
    "Day": 24,
    "Week": 24 * 7,
    "Month": HOURS_PER_MONTH,
    "Year": 12 * HOURS_PER_MONTH,
}
_PAGE = 1000
_LONGEST = timedelta(days=30)


def describe_price(world: World, call: Call) -> dict[str, Value]:
    """DescribePrice: of instances with their disks, or of a disk."""
    region = require_region(call)
    kind = call.text("ResourceType", "instance")
    unit = call.text("PriceUnit", "Hour")
    if unit not in _UNITS:
        raise Problem("InvalidPriceUnit.ValueNotSupported", f"The specified PriceUnit is not valid: {unit}.")
    if kind == "instance":
        parts = _instance_parts(world, call, region)
    elif kind == "disk":
        parts = [_disk_part(disk, region, "dataDisk") for disk in call.structs("DataDisk")]
    else:
        raise Problem("InvalidResourceType.ValueNotSupported", f"{kind} is not supported here.")
    amount = call.number("Amount", 1)
    if not 1 <= amount <= 1000:
        raise denied("InvalidAmount.Malformed", "The specified Amount is not valid.")
    factor = _UNITS[unit] * max(1, call.number("Period", 1)) * amount
    return {"PriceInfo": {"Price": _total(parts, factor), "Rules": {"Rule": []}}}


def _total(parts: list[tuple[str, Decimal, Decimal]], factor: int) -> Value:
    original = sum((listed for _, listed, _ in parts), Decimal(0)) * factor
    trade = sum((price for _, _, price in parts), Decimal(0)) * factor
    details: Value = [
        {
            "Resource": name,
            "OriginalPrice": float(listed * factor),
            "DiscountPrice": float((listed - price) * factor),
            "TradePrice": float(price * factor),
            "SubRules": {"Rule": []},
        }
        for name, listed, price in parts
    ]
    return {
        "Currency": CURRENCY,
        "OriginalPrice": float(original),
        "DiscountPrice": float(original - trade),
        "TradePrice": float(trade),
        "DetailInfos": {"DetailInfo": details},
    }


def _instance_parts(world: World, call: Call, region: str) -> list[tuple[str, Decimal, Decimal]]:
    kind = _kind(call)
    zone = call.text("ZoneId") or next((one for one in zones_of(region) if is_sold(kind, one)), "")
    if not zone:
        raise Problem("PriceNotFound", f"The price of {kind.name} in {region} was not found.")
    if zone not in ZONES or ZONES[zone].id != region:
        raise not_found("InvalidZoneId.NotFound", f"The specified zone does not exist: {zone}.")
    listed = instance_price(kind, region)
    spot = call.text("SpotStrategy", "NoSpot") != "NoSpot"
    price = spot_price(world, zone, kind.name, call.now) if spot else listed
    parts = [
        ("instanceType", listed, price),
        _disk_part(call.struct("SystemDisk"), region, "systemDisk", kind),
    ]
    parts += [_disk_part(disk, region, "dataDisk", kind) for disk in call.structs("DataDisk")]
    bandwidth = call.number("InternetMaxBandwidthOut")
    if bandwidth and call.text("InternetChargeType") == "PayByBandwidth":
        parts.append(("bandwidth", BANDWIDTH_PRICE * bandwidth, BANDWIDTH_PRICE * bandwidth))
    return parts


def _kind(call: Call) -> Type:
    name = call.text("InstanceType")
    if not name:
        raise not_found("InvalidInstanceType.Missing", "InstanceType is mandatory.")
    if name not in TYPES:
        raise Problem("InvalidInstanceType.ValueNotSupported", f"The InstanceType {name} is not supported.")
    return TYPES[name]


def _disk_part(
    disk: Mapping[str, Value], region: str, name: str, kind: Type | None = None
) -> tuple[str, Decimal, Decimal]:
    default = "cloud_essd" if kind and kind.is_essd_only else "cloud_efficiency"
    category = text(disk, "Category", default)
    level = text(disk, "PerformanceLevel", "PL0" if name == "systemDisk" else "PL1")
    if category not in DISKS or (kind and category not in disk_categories(kind)):
        code = "SystemDisk" if name == "systemDisk" else "DataDisk"
        raise Problem(
            f"Invalid{code}Category.ValueNotSupported", f"The category {category} is not supported."
        )
    price = disk_price(category, number(disk, "Size", 40 if name == "systemDisk" else 20), level, region)
    return name, price, price


def describe_history(world: World, call: Call) -> dict[str, Value]:
    """DescribeSpotPriceHistory: a row for each zone and hour."""
    region, kind = require_region(call), call.required("InstanceType")
    if not call.text("NetworkType"):
        raise missing("NetworkType")
    if kind not in TYPES:
        raise Problem("InvalidInstanceType.ValueNotSupported", f"The InstanceType {kind} is not supported.")
    end = parse_time(call.text("EndTime")) if call.text("EndTime") else call.now
    start = parse_time(call.text("StartTime")) if call.text("StartTime") else call.now - timedelta(hours=3)
    if start is None or start > call.now:
        raise Problem("InvalidParams.StartTime", "The specified StartTime is not valid.")
    if end is None or end < start or end - start > _LONGEST:
        raise Problem(
            "InvalidParams.EndTime", "The specified EndTime is not valid: within 30 days of the start."
        )
    zones = [zone for zone in zones_of(region) if is_sold(TYPES[kind], zone)]
    if call.text("ZoneId"):
        zones = [zone for zone in zones if zone == call.text("ZoneId")]
    rows: list[Value] = []
    listed = float(instance_price(TYPES[kind], region))
    for zone in zones:
        moment = next_hour(start) - HOUR
        while moment <= min(end, call.now):
            rows.append(
                {
                    "ZoneId": zone,
                    "InstanceType": kind,
                    "NetworkType": "vpc",
                    "IoOptimized": "optimized",
                    "SpotPrice": float(spot_price(world, zone, kind, moment)),
                    "OriginPrice": listed,
                    "Timestamp": second(moment),
                }
            )
            moment += HOUR
    offset = call.number("Offset")
    page = rows[offset : offset + _PAGE]
    return {"SpotPrices": {"SpotPriceType": page}, "NextOffset": offset + len(page), "Currency": CURRENCY}


def describe_advice(world: World, call: Call) -> dict[str, Value]:
    """DescribeSpotAdvice: the average discount of the last days, and how often instances were taken."""
    region, names = require_region(call), call.texts("InstanceTypes")
    family, spec = call.text("InstanceTypeFamily"), call.text("GpuSpec")
    kinds = [
        kind
        for kind in TYPES.values()
        if (not names or kind.name in names)
        and family in {"", kind.family, kind.family.removeprefix("ecs.")}
        and spec.lower() in kind.gpu.lower()
        and call.number("GpuAmount", kind.gpus) == kind.gpus
        and call.number("Cores", kind.cpus) == kind.cpus
        and kind.cpus >= call.number("MinCores")
    ]
    rows: list[Value] = []
    for zone in zones_of(region):
        if call.text("ZoneId") not in {"", zone}:
            continue
        sold = [_advice(world, call, kind, zone) for kind in kinds if is_sold(kind, zone)]
        if sold:
            rows.append({"ZoneId": zone, "AvailableSpotResources": {"AvailableSpotResource": sold}})
    return {"RegionId": region, "AvailableSpotZones": {"AvailableSpotZone": rows}}


def _advice(world: World, call: Call, kind: Type, zone: str) -> Value:
    listed = instance_price(kind, ZONES[zone].id)
    sample = [spot_price(world, zone, kind.name, call.now - HOUR * step) for step in range(0, 72, 6)]
    return {
        "InstanceType": kind.name,
        "AverageSpotDiscount": round(sum(sample, Decimal(0)) / len(sample) / listed * 100),
        "InterruptRateDesc": "0-3%",
        "InterruptionRate": 1.5,
    }


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "DescribePrice"): describe_price,
    ("ecs", "DescribeSpotPriceHistory"): describe_history,
    ("ecs", "DescribeSpotAdvice"): describe_advice,
}
