"""The provider's offers: machine types, stock by zone, prices, and the best candidates for a request.

Stock is what the provider says, and a launch may still be refused: the caller goes on to the next candidate and tells
`SoldOutPlaces`, which leaves a place out for some minutes. Asking is here; ordering is pure (`rank`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Any

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.errors import code_of
from trainyard.backends.aliyun.api.paging import batches, fetch_all
from trainyard.backends.aliyun.api.wire import Answer, Parameter, number, rows, text
from trainyard.lib.aio import gather_all
from trainyard.lib.clock import Clock
from trainyard.lib.errors import CapacityError, NotFoundError
from trainyard.spec.hardware import short_model

TYPES_A_CALL = 10
MISS = timedelta(minutes=5)  # stock comes back; quotas are raised
SPOT = "SpotAsPriceGo"


class Level(IntEnum):
    """How much the provider says it has; lower is better."""

    PLENTY = 0  # WithStock
    SOME = 1  # ClosedWithStock: there is some, but it will not be filled up
    UNKNOWN = 2
    NONE = 3  # WithoutStock, ClosedWithoutStock


_LEVELS = {
    "WithStock": Level.PLENTY,
    "ClosedWithStock": Level.SOME,
    "WithoutStock": Level.NONE,
    "ClosedWithoutStock": Level.NONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeInfo:
    """What a machine type holds, as the provider says."""

    name: str
    family: str = ""
    cpus: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_model: str = ""
    gpu_memory_mib: int = 0  # of one GPU
    local_disks: int = 0
    rdma_interfaces: int = 0
    network_mbit: int = 0
    architecture: str = "X86"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Money for an hour. `original` is the price without discounts."""

    amount: Decimal
    currency: str
    original: Decimal
    parts: Mapping[str, Decimal] = field(default_factory=dict)  # instanceType, systemDisk, bandwidth …


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A disk to ask for."""

    gib: int
    category: str = "cloud_essd"
    performance_level: str = ""

    def parameters(self) -> dict[str, Parameter]:
        """As the provider's actions take it."""
        return {
            "Category": self.category,
            "Size": self.gib,
            "PerformanceLevel": self.performance_level or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRequest:
    """What machines are wanted, as far as stock and price depend on it."""

    types: Sequence[str]
    is_spot: bool = False
    may_fall_back: bool = False  # from spot to on demand
    zone_id: str = ""  # only there
    system_disk: Disk = field(default_factory=lambda: Disk(gib=40))
    data_disks: Sequence[Disk] = ()
    bandwidth_mbit: int = 0
    highest_price: Decimal | None = None  # for an hour of one machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One place to try."""

    zone_id: str
    type: str
    is_spot: bool
    level: Level
    price: Price | None = None

    @property
    def about(self) -> str:
        """For error messages: `ecs.gn6v-c8g1.2xlarge (spot) in cn-beijing-h`."""
        return f"{self.type}{' (spot)' if self.is_spot else ''} in {self.zone_id}"


class SoldOutPlaces:
    """Places that had nothing a moment ago."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[tuple[str, str, bool], datetime] = {}

    def add(self, candidate: Candidate) -> None:
        """It was refused there just now."""
        self._until[self._key(candidate)] = self._clock.now() + MISS

    def has(self, candidate: Candidate) -> bool:
        """Whether it was refused there within the last minutes."""
        return self._until.get(self._key(candidate), self._clock.now()) > self._clock.now()

    @staticmethod
    def _key(candidate: Candidate) -> tuple[str, str, bool]:
        return candidate.zone_id, candidate.type, candidate.is_spot


# -- places -------------------------------------------------------------------------------------------------------------


async def fetch_regions(client: Client) -> tuple[str, ...]:
    """The regions that the account may use."""
    answer = await client.call("ecs", "DescribeRegions")
    return tuple(sorted(text(row, "RegionId") for row in rows(answer, "Regions.Region")))


async def fetch_zones(client: Client) -> tuple[str, ...]:
    """The zones of the client's region."""
    answer = await client.call("ecs", "DescribeZones", {"Verbose": False})
    return tuple(sorted(text(row, "ZoneId") for row in rows(answer, "Zones.Zone")))


# -- types --------------------------------------------------------------------------------------------------------------


async def fetch_types(client: Client, names: Sequence[str]) -> dict[str, TypeInfo]:
    """The figures of these types; one that the provider does not know is not in the answer."""
    found: dict[str, TypeInfo] = {}
    for batch in batches(list(dict.fromkeys(names)), TYPES_A_CALL):
        for row in await fetch_all(client, "ecs", "DescribeInstanceTypes", {"InstanceTypes": batch}):
            found[text(row, "InstanceTypeId")] = read_type(row)
    return found


async def fetch_gpu_types(client: Client) -> dict[str, TypeInfo]:
    """The figures of all types with GPUs."""
    found = await fetch_all(client, "ecs", "DescribeInstanceTypes", {"MinimumGPUAmount": 1})
    return {text(row, "InstanceTypeId"): read_type(row) for row in found}


def read_type(row: Answer) -> TypeInfo:
    """A row of DescribeInstanceTypes. Whether GPUMemorySize is of one GPU or of all is not documented: see below."""
    gpus = int(number(row, "GPUAmount"))
    memory = number(row, "GPUMemorySize")
    if gpus > 1 and memory > 192:  # GiB; no GPU has so much, so it is the sum
        memory /= gpus
    return TypeInfo(
        name=text(row, "InstanceTypeId"),
        family=text(row, "InstanceTypeFamily"),
        cpus=int(number(row, "CpuCoreCount")),
        memory_mib=int(number(row, "MemorySize") * 1024),
        gpus=gpus,
        gpu_model=short_model(text(row, "GPUSpec")),
        gpu_memory_mib=int(memory * 1024),
        local_disks=int(number(row, "LocalStorageAmount")),
        rdma_interfaces=int(number(row, "EriQuantity")),
        network_mbit=int(number(row, "InstanceBandwidthTx") / 1000),
        architecture=text(row, "CpuArchitecture") or "X86",
    )


# -- stock --------------------------------------------------------------------------------------------------------------


async def fetch_stock(
    client: Client, *, type_name: str = "", is_spot: bool = False, disk_category: str = "", zone_id: str = ""
) -> tuple[Candidate, ...]:
    """What the provider says it has, by zone and type; of all types if none is named."""
    parameters: dict[str, Parameter] = {
        "DestinationResource": "InstanceType",
        "InstanceChargeType": "PostPaid",
        "IoOptimized": "optimized",
        "NetworkCategory": "vpc",
        "InstanceType": type_name or None,
        "SpotStrategy": SPOT if is_spot else "NoSpot",
        "SystemDiskCategory": disk_category or None,
        "ZoneId": zone_id or None,
    }
    answer = await client.call("ecs", "DescribeAvailableResource", parameters, about=type_name)
    return tuple(
        Candidate(
            zone_id=text(zone, "ZoneId"),
            type=text(offer, "Value"),
            is_spot=is_spot,
            level=_LEVELS.get(text(offer, "StatusCategory"), _by_status(text(offer, "Status"))),
        )
        for zone in rows(answer, "AvailableZones.AvailableZone")
        for resource in rows(zone, "AvailableResources.AvailableResource")
        if text(resource, "Type") == "InstanceType"
        for offer in rows(resource, "SupportedResources.SupportedResource")
        if not type_name or text(offer, "Value") == type_name
    )


def _by_status(status: str) -> Level:
    return {"Available": Level.SOME, "SoldOut": Level.NONE}.get(status, Level.UNKNOWN)


# -- prices -------------------------------------------------------------------------------------------------------------


async def fetch_price(
    client: Client,
    type_name: str,
    wish: MachineRequest,
    *,
    zone_id: str = "",
    is_spot: bool = False,
    amount: int = 1,
) -> Price:
    """What so many machines cost in an hour, disks and bandwidth included."""
    parameters: dict[str, Parameter] = {
        "ResourceType": "instance",
        "InstanceType": type_name,
        "InstanceNetworkType": "vpc",
        "IoOptimized": "optimized",
        "PriceUnit": "Hour",
        "Amount": amount,
        "ZoneId": zone_id or None,
        "SystemDisk": wish.system_disk.parameters(),
        "DataDisk": [disk.parameters() for disk in wish.data_disks],
        "InternetMaxBandwidthOut": wish.bandwidth_mbit or None,
        "InternetChargeType": "PayByTraffic" if wish.bandwidth_mbit else None,
        "SpotStrategy": SPOT if is_spot else "NoSpot",
        "SpotDuration": 1 if is_spot else None,
    }
    answer = await client.call("ecs", "DescribePrice", parameters, about=type_name)
    found = _price_part(answer)
    return Price(
        amount=number(found, "TradePrice"),
        original=number(found, "OriginalPrice"),
        currency=text(found, "Currency") or "CNY",
        parts={
            text(row, "Resource"): number(row, "TradePrice") for row in rows(found, "DetailInfos.DetailInfo")
        },
    )


def _price_part(answer: Answer) -> Answer:
    info = answer.get("PriceInfo")
    found = info.get("Price") if isinstance(info, dict) else None
    return found if isinstance(found, dict) else {}


async def fetch_spot_prices(client: Client, type_name: str) -> dict[str, Price]:
    """The present spot price of a type by zone, without disks."""
    parameters: dict[str, Parameter] = {"InstanceType": type_name, "NetworkType": "vpc", "OSType": "linux"}
    answer = await client.call("ecs", "DescribeSpotPriceHistory", parameters, about=type_name)
    newest: dict[str, tuple[str, Price]] = {}
    for row in rows(answer, "SpotPrices.SpotPriceType"):
        zone, stamp = text(row, "ZoneId"), text(row, "Timestamp")
        price = Price(
            amount=number(row, "SpotPrice"),
            original=number(row, "OriginPrice"),
            currency=text(answer, "Currency") or "CNY",
        )
        if zone not in newest or stamp > newest[zone][0]:
            newest[zone] = (stamp, price)
    return {zone: price for zone, (_, price) in newest.items()}


# -- candidates ---------------------------------------------------------------------------------------------------------


async def find_candidates(
    client: Client, wish: MachineRequest, *, misses: SoldOutPlaces | None = None
) -> tuple[Candidate, ...]:
    """The places to try for a wish, best first; CapacityError that says what was looked at when there are none.

    One call for the stock of each type and way of paying, one for each price: it grows with types, not with machines.
    """
    ways = [True, False] if wish.is_spot and wish.may_fall_back else [wish.is_spot]
    asked = [(name, is_spot) for name in dict.fromkeys(wish.types) for is_spot in ways]
    found = await gather_all(_fetch_offers(client, wish, name, is_spot=is_spot) for name, is_spot in asked)
    offers = [each for one in found for each in _raised(one)]
    ranked = rank(offers, wish, misses=misses)
    if not ranked:
        raise CapacityError(
            f"nobody in {wish.zone_id or client.region} has {_listed(asked)} {_when(wish, offers)}",
            hint=_no_candidate_hint(wish, offers),
            reason="provider.price" if _is_too_dear(wish, offers) else "provider.stock",
            values={
                "place": wish.zone_id or client.region,
                "what": _listed(asked),
                "price": str(wish.highest_price),
            },
        )
    return ranked


async def _fetch_offers(client: Client, wish: MachineRequest, name: str, *, is_spot: bool) -> list[Candidate]:
    """Stock and prices of one type, asked for at once; none where the region does not sell it."""
    # On demand a type costs the same in all zones of a region; on the spot market each zone has its price.
    asked = await gather_all(
        [
            fetch_stock(
                client,
                type_name=name,
                is_spot=is_spot,
                disk_category=wish.system_disk.category,
                zone_id=wish.zone_id,
            ),
            fetch_price(client, name, wish, zone_id=wish.zone_id, is_spot=is_spot),
            fetch_spot_prices(client, name) if is_spot else _nothing(),
        ]
    )
    for each in asked:
        if isinstance(each, (CapacityError, NotFoundError)) and code_of(each):
            return []
    stock, whole, prices = (_raised(each) for each in asked)
    return [replace(each, price=_with_zone(whole, prices.get(each.zone_id))) for each in stock]


async def _nothing() -> dict[str, Price]:
    return {}


def _raised(result: Any) -> Any:
    """A result, or the failure that came in its place."""
    if isinstance(result, BaseException):
        raise result
    return result


def _with_zone(whole: Price, spot: Price | None) -> Price:
    """The whole price with the machine's own part taken from the zone's spot market."""
    own = whole.parts.get("instanceType")
    if spot is None or own is None:
        return whole
    return Price(
        amount=whole.amount - own + spot.amount,
        original=whole.original,
        currency=whole.currency,
        parts={**whole.parts, "instanceType": spot.amount},
    )


def rank(
    offers: Iterable[Candidate], wish: MachineRequest, *, misses: SoldOutPlaces | None = None
) -> tuple[Candidate, ...]:
    """Those worth trying, best first: the wished way of paying, then stock, then the types' order, then price.

    What failed a moment ago comes last, and stays: when all have failed, they are all there is to try.
    """
    order = {name: place for place, name in enumerate(wish.types)}

    def key(each: Candidate) -> tuple[bool, bool, int, int, Decimal, str]:
        return (
            misses is not None and misses.has(each),
            each.is_spot != wish.is_spot,
            int(each.level),
            order.get(each.type, len(order)),
            each.price.amount if each.price else Decimal("Infinity"),
            each.zone_id,
        )

    return tuple(
        sorted(
            (each for each in offers if each.level is not Level.NONE and _is_affordable(each, wish)), key=key
        )
    )


def _is_affordable(candidate: Candidate, wish: MachineRequest) -> bool:
    return (
        wish.highest_price is None or candidate.price is None or candidate.price.amount <= wish.highest_price
    )


def _listed(asked: Sequence[tuple[str, bool]]) -> str:
    return ", ".join(f"{name}{' (spot)' if is_spot else ''}" for name, is_spot in asked)


def _is_too_dear(wish: MachineRequest, offers: Sequence[Candidate]) -> bool:
    return wish.highest_price is not None and any(each.level is not Level.NONE for each in offers)


def _when(wish: MachineRequest, offers: Sequence[Candidate]) -> str:
    return f"for {wish.highest_price} an hour or less" if _is_too_dear(wish, offers) else "now"


def _no_candidate_hint(wish: MachineRequest, offers: Sequence[Candidate]) -> str:
    if _is_too_dear(wish, offers):
        return f"Raise max_price_per_hour above {wish.highest_price}, or ask for another type."
    if wish.zone_id:
        return "Leave --zone_id and ALIYUN_DEFAULT_ZONE out so that all zones are tried, or ask for another type."
    return "Look with `trainyard querygpu` what there is, or try another region."
