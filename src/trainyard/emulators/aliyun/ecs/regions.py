"""Actions that list regions, zones, machine types and stock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from trainyard.emulators.aliyun.api.answers import by_token, require_region
from trainyard.emulators.aliyun.api.call import Call, Handler, Value
from trainyard.emulators.aliyun.api.problems import Problem, not_found
from trainyard.emulators.aliyun.cloud import stock
from trainyard.emulators.aliyun.cloud.catalogue import (
    DISKS,
    LEVELS,
    REGIONS,
    SYSTEM_SIZES,
    TYPES,
    ZONES,
    Type,
    disk_categories,
    is_sold,
)
from trainyard.emulators.aliyun.cloud.world import World

_LANGUAGES = frozenset({"", "zh-CN", "en-US", "ja"})
_DESTINATIONS = frozenset({"Zone", "IoOptimized", "InstanceType", "SystemDisk", "DataDisk", "Network", "ddh"})
_STRATEGIES = frozenset({"", "NoSpot", "SpotAsPriceGo", "SpotWithPriceLimit"})


def _check_language(call: Call) -> None:
    if call.text("AcceptLanguage") not in _LANGUAGES:
        raise not_found("InvalidAcceptLanguage.NotFound", "The specified AcceptLanguage does not exist.")


def describe_regions(world: World, call: Call) -> dict[str, Value]:
    """DescribeRegions: no page, no region needed."""
    del world
    _check_language(call)
    rows: Value = [
        {
            "RegionId": region.id,
            "RegionEndpoint": region.endpoint,
            "LocalName": region.id if call.text("AcceptLanguage") == "en-US" else region.name,
            "Status": "available",
        }
        for region in REGIONS.values()
    ]
    return {"Regions": {"Region": rows}}


def zones_of(region: str) -> list[str]:
    """The zones of a region."""
    return [zone for zone, home in ZONES.items() if home.id == region]


def describe_zones(world: World, call: Call) -> dict[str, Value]:
    """DescribeZones: what is sold where, whatever is in stock."""
    del world
    region = require_region(call)
    _check_language(call)
    verbose = call.flag("Verbose", default=True)
    return {"Zones": {"Zone": [_show_zone(zone, verbose=verbose) for zone in zones_of(region)]}}


def _show_zone(zone: str, *, verbose: bool) -> Value:
    short: dict[str, Value] = {
        "ZoneId": zone,
        "ZoneType": "AvailabilityZone",
        "LocalName": f"{ZONES[zone].name} {zone[-1].upper()}",
    }
    if not verbose:
        return short
    kinds = [name for name, kind in TYPES.items() if is_sold(kind, zone)]
    families = sorted({TYPES[name].family for name in kinds})
    categories = list(DISKS)
    info: Value = {
        "IoOptimized": True,
        "InstanceTypes": {"supportedInstanceType": kinds},
        "InstanceTypeFamilies": {"supportedInstanceTypeFamily": families},
        "InstanceGenerations": {"supportedInstanceGeneration": []},
        "SystemDiskCategories": {"supportedSystemDiskCategory": categories},
        "DataDiskCategories": {"supportedDataDiskCategory": categories},
        "NetworkTypes": {"supportedNetworkCategory": ["vpc"]},
    }
    return {
        **short,
        "AvailableInstanceTypes": {"InstanceTypes": kinds},
        "AvailableDiskCategories": {"DiskCategories": categories},
        "AvailableResourceCreation": {"ResourceTypes": ["VSwitch", "IoOptimized", "Instance", "Disk"]},
        "AvailableResources": {"ResourcesInfo": [info]},
        "AvailableVolumeCategories": {"VolumeCategories": []},
        "AvailableDedicatedHostTypes": {"DedicatedHostType": []},
        "DedicatedHostGenerations": {"DedicatedHostGeneration": []},
    }


# --- types


_BOUNDS: tuple[tuple[str, Callable[[Type], float]], ...] = (
    ("CpuCoreCount", lambda kind: kind.cpus),
    ("MemorySize", lambda kind: kind.memory_gib),
    ("GPUAmount", lambda kind: kind.gpus),
    ("EriQuantity", lambda kind: kind.eri),
    ("LocalStorageAmount", lambda kind: kind.local_disks),
    ("LocalStorageCapacity", lambda kind: kind.local_gib),
    ("InstanceBandwidthRx", lambda kind: kind.gigabits * 1_000_000),
    ("InstanceBandwidthTx", lambda kind: kind.gigabits * 1_000_000),
)


def describe_types(world: World, call: Call) -> dict[str, Value]:
    """DescribeInstanceTypes: figures only, never stock."""
    del world
    names = call.texts("InstanceTypes")
    if len(names) > 10:
        raise Problem("InvalidInstanceTypes.Malformed", "At most 10 InstanceTypes can be given.")
    rows = [kind for kind in TYPES.values() if (not names or kind.name in names) and _fits(kind, call)]
    paged = replace(call, parameters={"MaxResults": 1600, **call.parameters})
    shown, fields = by_token(paged, rows, _show_type, name=lambda kind: kind.name, most=1600)
    return {"InstanceTypes": {"InstanceType": shown}, "NextToken": fields["NextToken"]}


def _fits(kind: Type, call: Call) -> bool:
    spec, specs = call.text("GPUSpec"), call.texts("GpuSpecs")
    families = call.texts("InstanceTypeFamilies")
    for name, figure in _BOUNDS:
        low, high = call.real(f"Minimum{name}"), call.real(f"Maximum{name}", float("inf"))
        if not low <= figure(kind) <= high:
            return False
    return (
        call.text("InstanceTypeFamily") in {"", kind.family}
        and (not families or kind.family in families)
        and spec.lower() in _gpu_spec(kind).lower()
        and (not specs or _gpu_spec(kind) in specs)
        and call.text("CpuArchitecture", "X86") in {"", "X86"}
        and call.text("InstanceCategory") in {"", _category(kind)}
    )


def _gpu_spec(kind: Type) -> str:
    return f"NVIDIA {kind.gpu}" if kind.gpu else ""


def _category(kind: Type) -> str:
    if kind.gpus:
        return "ECS Bare Metal" if kind.is_metal else "GPU"
    return "Burstable" if kind.family in {"ecs.t5", "ecs.t6"} else "General-purpose"


def _show_type(kind: Type) -> Value:
    bandwidth = int(kind.gigabits * 1_000_000)
    entry = kind.family in {"ecs.t5", "ecs.t6", "ecs.e"}
    shown: dict[str, Value] = {
        "InstanceTypeId": kind.name,
        "InstanceTypeFamily": kind.family,
        "InstanceFamilyLevel": "EntryLevel" if entry else "EnterpriseLevel",
        "InstanceCategory": _category(kind),
        "CpuArchitecture": "X86",
        "CpuCoreCount": kind.cpus,
        "MemorySize": kind.memory_gib,
        "GPUAmount": kind.gpus,
        "GPUSpec": _gpu_spec(kind),
        "EriQuantity": kind.eri,
        "EniQuantity": 4,
        "EniPrivateIpAddressQuantity": 10,
        "DiskQuantity": 17,
        "InstanceBandwidthRx": bandwidth,
        "InstanceBandwidthTx": bandwidth,
        "InstancePpsRx": 1_000_000,
        "InstancePpsTx": 1_000_000,
        "NetworkCardQuantity": 2 if kind.is_metal and kind.eri else 1,
        "NvmeSupport": "supported" if kind.is_essd_only else "unsupported",
        "SupportedBootModes": {
            "SupportedBootMode": ["UEFI"] if kind.family.startswith("ecs.ebmgn8") else ["BIOS", "UEFI"]
        },
    }
    if kind.gpus:
        shown["GPUMemorySize"] = float(kind.gpu_memory)
    if kind.local_disks:
        shown["LocalStorageAmount"] = kind.local_disks
        shown["LocalStorageCapacity"] = kind.local_gib
        shown["LocalStorageCategory"] = "local_ssd_pro"
    return shown


def describe_families(world: World, call: Call) -> dict[str, Value]:
    """DescribeInstanceTypeFamilies."""
    del world
    region = require_region(call)
    sold = {kind.family for kind in TYPES.values() if any(is_sold(kind, zone) for zone in zones_of(region))}
    rows: Value = [{"InstanceTypeFamilyId": family, "Generation": "ecs-5"} for family in sorted(sold)]
    return {"InstanceTypeFamilies": {"InstanceTypeFamily": rows}}


# --- stock


def describe_available(world: World, call: Call) -> dict[str, Value]:
    """DescribeAvailableResource: advice, no promise. Where nothing fits, the list is missing altogether."""
    region, destination = require_region(call), call.required("DestinationResource")
    strategy, wanted = call.text("SpotStrategy"), call.text("InstanceType")
    if destination not in _DESTINATIONS:
        raise not_found("Invalid.DestinationResource", f"The DestinationResource {destination} is not valid.")
    if strategy not in _STRATEGIES:
        raise not_found("Invalid.SpotStrategy", "The specified SpotStrategy is not valid.")
    if call.text("NetworkCategory", "vpc") not in {"vpc", "classic"}:
        raise not_found("Invalid.NetworkCategory", "The specified NetworkCategory is not valid.")
    if wanted and wanted not in TYPES:
        return {}
    spot, taken = strategy not in {"", "NoSpot"}, stock.held(world)
    rows = []
    for zone in zones_of(region):
        if call.text("ZoneId") in {"", zone}:
            row = _available_in(world, call, zone, spot=spot, taken=taken)
            rows += [row] if row is not None else []
    return {"AvailableZones": {"AvailableZone": rows}} if rows else {}


def _available_in(world: World, call: Call, zone: str, *, spot: bool, taken: Counter[str]) -> Value:
    wanted, category = call.text("InstanceType"), call.text("SystemDiskCategory")
    kinds = [
        kind
        for kind in TYPES.values()
        if (not wanted or kind.name == wanted)
        and (not category or category in disk_categories(kind))
        and call.number("Cores", kind.cpus) == kind.cpus
        and call.real("Memory", kind.memory_gib) == kind.memory_gib
        and (is_sold(kind, zone) or stock.capacity(world, zone, kind.name, spot=spot))
    ]
    if not kinds:
        return None
    advice = {kind.name: stock.advice(world, zone, kind.name, spot=spot, taken=taken) for kind in kinds}
    destination = call.text("DestinationResource")
    resources = _resources(destination, kinds, advice)
    best = min(advice.values(), key=stock.CATEGORIES.index)
    return {
        "ZoneId": zone,
        "RegionId": ZONES[zone].id,
        "Status": _status(best),
        "StatusCategory": best,
        "AvailableResources": {
            "AvailableResource": [
                {"Type": destination, "SupportedResources": {"SupportedResource": resources}}
            ]
        },
    }


def _status(category: str) -> str:
    return "SoldOut" if category in {stock.WITHOUT_STOCK, stock.CLOSED} else "Available"


def _resources(destination: str, kinds: list[Type], advice: dict[str, str]) -> list[Value]:
    if destination == "InstanceType":
        return [
            {"Value": name, "Status": _status(category), "StatusCategory": category}
            for name, category in advice.items()
        ]
    if destination in {"SystemDisk", "DataDisk"}:
        names = sorted({name for kind in kinds for name in disk_categories(kind)})
        return [_disk_resource(destination, name) for name in names]
    value = {"IoOptimized": "optimized", "Network": "vpc"}.get(destination, "")
    return [{"Value": value, "Status": "Available", "StatusCategory": stock.WITH_STOCK}]


def _disk_resource(destination: str, category: str) -> Value:
    least, most, _ = DISKS[category]
    if destination == "SystemDisk":
        least, most = SYSTEM_SIZES
    elif category == "cloud_essd":
        least = min(bound for bound, _ in LEVELS.values())
    return {
        "Value": category,
        "Status": "Available",
        "StatusCategory": stock.WITH_STOCK,
        "Min": least,
        "Max": most,
        "Unit": "GiB",
    }


def describe_account(world: World, call: Call) -> dict[str, Value]:
    """DescribeAccountAttributes: the quotas."""
    region, names = require_region(call), call.texts("AttributeName")
    quotas = world.options.quotas
    figures: dict[str, list[Value]] = {
        "instance-network-type": ["vpc"],
        "max-security-groups": [str(quotas.groups)],
        "max-axt-command-count": ["10000"],
        "max-spot-instance-vcpu-count": [str(quotas.spot_vcpus)],
        "used-spot-instance-vcpu-count": [str(stock.used_vcpus(world, region, spot=True))],
        "max-postpaid-instance-vcpu-count": [str(quotas.vcpus)],
        "used-postpaid-instance-vcpu-count": [str(stock.used_vcpus(world, region, spot=False))],
        "real-name-authentication": ["yes" if world.options.account.verified else "no"],
    }
    rows: Value = [
        {"AttributeName": name, "AttributeValues": {"ValueItem": [{"Value": one} for one in values]}}
        for name, values in figures.items()
        if not names or name in names
    ]
    return {"AccountAttributeItems": {"AccountAttributeItem": rows}}


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "DescribeRegions"): describe_regions,
    ("vpc", "DescribeRegions"): describe_regions,
    ("ecs", "DescribeZones"): describe_zones,
    ("ecs", "DescribeInstanceTypes"): describe_types,
    ("ecs", "DescribeInstanceTypeFamilies"): describe_families,
    ("ecs", "DescribeAvailableResource"): describe_available,
    ("ecs", "DescribeAccountAttributes"): describe_account,
}
