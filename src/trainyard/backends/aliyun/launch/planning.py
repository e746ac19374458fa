"""Turns a MachineSpec into a launch plan: types, disks, image and the zones to try. Makes no machines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.ecs import BANDWIDTH_MBIT, wanted_types
from trainyard.backends.aliyun.launch.catalogue import (
    Candidate,
    Disk,
    Level,
    MachineRequest,
    SoldOutPlaces,
    fetch_gpu_types,
    fetch_price,
    fetch_spot_prices,
    fetch_stock,
    find_candidates,
)
from trainyard.backends.aliyun.launch.images import Image, find_image
from trainyard.backends.aliyun.launch.snapshots import Snapshot, find_snapshot
from trainyard.lib.aio import gather_all, map_bounded
from trainyard.lib.errors import CapacityError, Error, InvalidError
from trainyard.spec.machine import Machine, MachineSpec

SYSTEM_DISK_GIB = 100  # an image with a driver and a framework or two
SNAPSHOT_DISK_GIB = 500  # of a data disk from a snapshot whose size is not given, as the family has it
# Newer types take only the first kinds, older ones only the last.
DISK_CATEGORIES = ("cloud_essd", "cloud_auto", "cloud_ssd", "cloud_efficiency")
MOST_TYPES = 5  # that are compared where only a number of GPUs is asked for
CONCURRENT_PRICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What will be asked for, and where, best place first."""

    image: Image
    system_disk: Disk
    data_disk: Disk | None
    candidates: tuple[Candidate, ...]
    snapshot: str = ""  # the id of what the data disk begins as


async def find(
    client: Client, spec: MachineSpec, *, misses: SoldOutPlaces, near: Sequence[Machine] = ()
) -> LaunchPlan:
    """Find image and places at once. `near` are machines of the same job: their zone and type come first."""
    snapshot: Snapshot | None = None
    if spec.snapshot:
        snapshot = await find_snapshot(client, spec.snapshot, gib=spec.data_disk_gib)
        least = max(spec.data_disk_gib or SNAPSHOT_DISK_GIB, snapshot.gib)
        spec = replace(spec, snapshot=snapshot.id, data_disk_gib=least)
    image, wish = await together(
        find_image(client, image=spec.image, kind=spec.image_type, with_driver=spec.with_driver),
        _find_places(client, spec, misses=misses, near=near),
    )
    places, candidates = wish
    system_disk = replace(places.system_disk, gib=max(places.system_disk.gib, image.size_gib))
    zones = {machine.zone for machine in near}
    ordered = sorted(candidates, key=lambda each: zones and each.zone_id not in zones)  # stable
    return LaunchPlan(
        image=image,
        system_disk=system_disk,
        data_disk=places.data_disks[0] if places.data_disks else None,
        candidates=tuple(ordered),
        snapshot=snapshot.id if snapshot else "",
    )


async def _find_places(
    client: Client, spec: MachineSpec, *, misses: SoldOutPlaces, near: Sequence[Machine]
) -> tuple[MachineRequest, tuple[Candidate, ...]]:
    types = wanted_types(spec) or list(dict.fromkeys(machine.type for machine in near))
    types = types or await _types_with_gpus(client, spec)
    failure: Error | None = None
    for category in DISK_CATEGORIES:
        wish = wish_of(spec, types, category)
        try:
            return wish, await find_candidates(client, wish, misses=misses)
        except (CapacityError, InvalidError) as error:
            # Where no disk of this kind goes with the type, the provider says one or the other.
            failure = failure or error
            if spec.max_price_per_hour is not None:
                break  # it may have been the price, which no other disk cures
    raise failure or CapacityError("there are no machines")


def wish_of(spec: MachineSpec, types: Sequence[str], category: str) -> MachineRequest:
    """The wish for these types, with all disks of one kind."""
    gib = spec.data_disk_gib
    limits = [limit for limit in (spec.max_price_per_hour,) if limit is not None]
    return MachineRequest(
        types=types,
        is_spot=spec.spot,
        zone_id=spec.zone_id,
        system_disk=Disk(gib=spec.system_disk_gib or SYSTEM_DISK_GIB, category=category),
        data_disks=(Disk(gib=gib, category=category),) if gib else (),
        bandwidth_mbit=BANDWIDTH_MBIT,
        highest_price=min(limits) if limits else None,
    )


async def _types_with_gpus(client: Client, spec: MachineSpec) -> list[str]:
    """The cheapest types with so many GPUs that somebody has now."""
    if not spec.gpus:
        raise InvalidError(
            "no machine type was named",
            hint="Pass --instance-type (instance_type in Python) or --gpus; `trainyard querygpu` lists types and prices.",
        )
    types, stock = await together(
        fetch_gpu_types(client), fetch_stock(client, is_spot=spec.spot, zone_id=spec.zone_id)
    )
    there = {each.type for each in stock if each.level is not Level.NONE}
    fitting = [name for name, info in types.items() if info.gpus == spec.gpus and name in there]

    async def price(name: str) -> Decimal:
        if spec.spot:  # each zone has its own
            zones = {each.zone_id for each in stock if each.type == name and each.level is not Level.NONE}
            spot = await fetch_spot_prices(client, name)
            amounts = [spot[zone].amount for zone in zones if zone in spot]
            if amounts:
                return min(amounts)
        found = await fetch_price(
            client, name, MachineRequest(types=(name,)), zone_id=spec.zone_id, is_spot=spec.spot
        )
        return found.amount

    prices = await map_bounded(price, fitting, limit=CONCURRENT_PRICES)
    known = [
        (amount, name) for amount, name in zip(prices, fitting, strict=True) if isinstance(amount, Decimal)
    ]
    if not known:
        for each in prices:
            if isinstance(each, BaseException) and not isinstance(each, Error):
                raise each
        raise CapacityError(
            f"nobody in {spec.zone_id or client.region} has a machine with {spec.gpus} GPUs now",
            hint="Look with `trainyard querygpu` what there is.",
            reason="provider.stock",
            values={"place": spec.zone_id or client.region, "what": f"GPU x {spec.gpus}"},
        )
    return [name for _, name in sorted(known)[:MOST_TYPES]]


async def together(*work: Any) -> Any:
    """Several answers at once; the first failure is raised when all have ended. Not to be nested.

    NB: who is cancelled before it has begun leaves its arguments unawaited.
    """
    results = await gather_all([asyncio.ensure_future(each) for each in work])
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
