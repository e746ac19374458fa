"""The bills so far: by the second, spot at the market's price, disks even while the instance is stopped.

A charge is opened when a thing begins to cost and closed when it ends; sums are computed, never stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from trainyard.emulators.aliyun.cloud.catalogue import (
    BANDWIDTH_PRICE,
    EIP_PRICE,
    HOURS_PER_MONTH,
    SNAPSHOT_PRICE,
    TYPES,
    disk_price,
    instance_price,
)
from trainyard.emulators.aliyun.cloud.cloud_state import CloudState
from trainyard.emulators.aliyun.cloud.market import spot_price, stretches
from trainyard.emulators.aliyun.cloud.records import Charge, Disk, Eip, Instance, Snapshot

_HOUR = Decimal(3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing on the bill."""

    thing: str
    kind: str
    what: str
    start: datetime
    end: datetime | None
    cost: Decimal


def bill_instance(
    cloud_state: CloudState, instance: Instance, now: datetime, *, protected: bool = False
) -> None:
    """Begin to bill the machine, and its bandwidth if that is paid by the hour."""
    charge = Charge(thing=instance.id, kind="instance", what=instance.type, start=now)
    if instance.is_spot:
        charge.spot_zone = instance.zone
        charge.rate = spot_price(cloud_state, instance.zone, instance.type, now)
        charge.fixed_until = instance.protected_until if protected else None
    else:
        charge.rate = instance_price(TYPES[instance.type], instance.region)
    cloud_state.charges.append(charge)
    bill_bandwidth(cloud_state, instance, now)


def bill_bandwidth(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    """Bill fixed bandwidth anew, at its present size; traffic is not measured here."""
    close(cloud_state, instance.id, now, kind="bandwidth")
    if instance.public_address and instance.internet_charge == "PayByBandwidth":
        cloud_state.charges.append(
            Charge(
                thing=instance.id,
                kind="bandwidth",
                what=f"{instance.bandwidth_out} Mbit/s",
                start=now,
                rate=BANDWIDTH_PRICE * instance.bandwidth_out,
            )
        )


def bill_disk(cloud_state: CloudState, disk: Disk, now: datetime) -> None:
    """Begin to bill a disk; attaching and detaching change nothing."""
    rate = disk_price(disk.category, disk.size, disk.performance_level, disk.region)
    what = f"{disk.size} GiB {disk.category}"
    cloud_state.charges.append(Charge(thing=disk.id, kind="disk", what=what, start=now, rate=rate))


def bill_snapshot(cloud_state: CloudState, snapshot: Snapshot, now: datetime) -> None:
    """Begin to bill a snapshot."""
    rate = SNAPSHOT_PRICE * snapshot.size / HOURS_PER_MONTH
    cloud_state.charges.append(
        Charge(thing=snapshot.id, kind="snapshot", what=f"{snapshot.size} GiB", start=now, rate=rate)
    )


def bill_eip(cloud_state: CloudState, eip: Eip, now: datetime) -> None:
    """Bill an elastic address anew: a fee while it is bound to nothing, its bandwidth if that is fixed."""
    close(cloud_state, eip.id, now)
    rate = Decimal(0) if eip.instance else EIP_PRICE
    if eip.internet_charge == "PayByBandwidth":
        rate += BANDWIDTH_PRICE * eip.bandwidth
    cloud_state.charges.append(Charge(thing=eip.id, kind="address", what=eip.address, start=now, rate=rate))


def close(cloud_state: CloudState, thing: str, now: datetime, *, kind: str = "") -> None:
    """End what a thing costs, or one kind of it."""
    for charge in cloud_state.charges:
        if charge.thing == thing and charge.end is None and kind in {"", charge.kind}:
            charge.end = max(charge.start, now)


def cost(cloud_state: CloudState, charge: Charge, now: datetime) -> Decimal:
    """What a charge has come to."""
    end = now if charge.end is None else min(charge.end, now)
    if end <= charge.start:
        return Decimal(0)
    if not charge.spot_zone:
        return charge.rate * _seconds(end - charge.start) / _HOUR
    fixed = min(end, max(charge.start, charge.fixed_until or charge.start))
    total = charge.rate * _seconds(fixed - charge.start)
    for start, stop, price in stretches(cloud_state, charge.spot_zone, charge.what, fixed, end):
        total += price * _seconds(stop - start)
    return total / _HOUR


def _seconds(span: timedelta) -> Decimal:
    return Decimal(span // timedelta(microseconds=1)) / 1_000_000


def spent(cloud_state: CloudState, now: datetime, thing: str = "") -> Decimal:
    """What a thing has cost so far; without one, everything that ever was."""
    return sum(
        (cost(cloud_state, charge, now) for charge in cloud_state.charges if thing in {"", charge.thing}),
        Decimal(0),
    )


def rate(cloud_state: CloudState, now: datetime, thing: str = "") -> Decimal:
    """What a thing costs per hour at this moment; without one, everything."""
    total = Decimal(0)
    for charge in cloud_state.charges:
        if charge.start <= now and (charge.end is None or charge.end > now) and thing in {"", charge.thing}:
            is_market = charge.spot_zone and not (charge.fixed_until and now < charge.fixed_until)
            total += spot_price(cloud_state, charge.spot_zone, charge.what, now) if is_market else charge.rate
    return total


def statement(cloud_state: CloudState, now: datetime) -> list[Line]:
    """The whole bill, in the order in which things began to cost."""
    return [
        Line(
            thing=charge.thing,
            kind=charge.kind,
            what=charge.what,
            start=charge.start,
            end=charge.end,
            cost=cost(cloud_state, charge, now),
        )
        for charge in cloud_state.charges
    ]
