"""The remaining stock: machines by zone, type and market, and the account's quotas.

Nothing is counted twice: what is taken follows from the instances that exist, so stock can't leak.
"""

from __future__ import annotations

from collections import Counter

from trainyard.emulators.aliyun.api.problems import Problem, denied
from trainyard.emulators.aliyun.cloud.catalogue import TYPES, ZONES, is_sold
from trainyard.emulators.aliyun.cloud.cloud_state import CloudState
from trainyard.emulators.aliyun.cloud.records import Instance

WITH_STOCK, LAST_STOCK = "WithStock", "ClosedWithStock"
WITHOUT_STOCK, CLOSED = "WithoutStock", "ClosedWithoutStock"
CATEGORIES = (WITH_STOCK, LAST_STOCK, WITHOUT_STOCK, CLOSED)
_FEW = 5  # below this the advice is that it is running out


def key(zone: str, kind: str, *, spot: bool) -> str:
    """How the tables of stock and advice name a pool."""
    return f"{zone}/{kind}/{'spot' if spot else 'demand'}"


def holds(instance: Instance) -> bool:
    """Whether an instance occupies a machine: all do but those stopped economically."""
    return instance.status != "Stopped" or instance.stopped_mode != "StopCharging"


def held(cloud_state: CloudState) -> Counter[str]:
    """How many machines of each pool are taken."""
    return Counter(
        key(one.zone, one.type, spot=one.is_spot) for one in cloud_state.instances.values() if holds(one)
    )


def capacity(cloud_state: CloudState, zone: str, kind: str, *, spot: bool) -> int:
    """How many machines a pool has in all."""
    own = cloud_state.capacity.get(key(zone, kind, spot=spot))
    if own is not None:
        return own
    return cloud_state.options.stock if is_sold(TYPES[kind], zone) else 0


def free(
    cloud_state: CloudState, zone: str, kind: str, *, spot: bool, taken: Counter[str] | None = None
) -> int:
    """How many machines of a pool are left; `taken` saves counting again."""
    taken = held(cloud_state) if taken is None else taken
    return max(0, capacity(cloud_state, zone, kind, spot=spot) - taken[key(zone, kind, spot=spot)])


def set_free(cloud_state: CloudState, zone: str, kind: str, *, spot: bool, count: int) -> None:
    """Leave exactly `count` machines in a pool; what is held stays held."""
    pool = key(zone, kind, spot=spot)
    cloud_state.capacity[pool] = held(cloud_state)[pool] + count


def set_advice(cloud_state: CloudState, zone: str, kind: str, *, spot: bool, category: str | None) -> None:
    """Let DescribeAvailableResource say so whatever is true; None lets it be honest again."""
    pool = key(zone, kind, spot=spot)
    if category is None:
        cloud_state.advice.pop(pool, None)
    elif category in CATEGORIES:
        cloud_state.advice[pool] = category
    else:
        raise Problem("InvalidParameter", f"{category} is none of {', '.join(CATEGORIES)}.")


def advice(cloud_state: CloudState, zone: str, kind: str, *, spot: bool, taken: Counter[str]) -> str:
    """The StatusCategory that is shown."""
    lie = cloud_state.advice.get(key(zone, kind, spot=spot))
    if lie is not None:
        return lie
    left = free(cloud_state, zone, kind, spot=spot, taken=taken)
    return WITH_STOCK if left >= _FEW else LAST_STOCK if left else WITHOUT_STOCK


def require_on_sale(zone: str, kind: str, cloud_state: CloudState) -> None:
    """Refuse a type that the zone doesn't sell."""
    if not is_sold(TYPES[kind], zone) and not any(
        cloud_state.capacity.get(key(zone, kind, spot=spot)) for spot in (True, False)
    ):
        raise denied("Zone.NotOnSale", "The specified zone is not available for purchase.")


def grant(cloud_state: CloudState, zone: str, kind: str, *, spot: bool, wanted: int, least: int) -> int:
    """How many of the wanted machines can be had: at least `least`, or a refusal."""
    number = min(wanted, free(cloud_state, zone, kind, spot=spot))
    if number < least:
        raise denied(
            "OperationDenied.NoStock",
            "The requested resource is sold out in the specified zone; "
            "try other types of resources or other regions and zones.",
        )
    return number


def used_vcpus(cloud_state: CloudState, region: str, *, spot: bool) -> int:
    """The cores that count against the quota of a region."""
    return sum(
        TYPES[one.type].cpus
        for one in cloud_state.instances.values()
        if one.region == region and one.is_spot == spot and holds(one)
    )


def within_quota(
    cloud_state: CloudState, zone: str, kind: str, *, spot: bool, wanted: int, least: int
) -> int:
    """How many of the wanted machines the quota of cores allows: at least `least`, or a refusal."""
    quotas = cloud_state.options.quotas
    limit = quotas.spot_vcpus if spot else quotas.vcpus
    if limit == 0 and not spot:
        raise Problem(
            "QuotaExceed.AfterpayInstance",
            "The maximum number of Pay-as-you-go instances is exceeded: user quota [0].",
        )
    region = ZONES[zone].id
    left = max(0, limit - used_vcpus(cloud_state, region, spot=spot))
    number = min(wanted, left // TYPES[kind].cpus)
    if number < least:
        market = "spot" if spot else "pay-as-you-go"
        raise denied(
            "QuotaExceed.ElasticQuota",
            f"The number of vCPUs of {market} instances in {region} exceeds the quota of {limit}; "
            f"{left} are left.",
        )
    return number
