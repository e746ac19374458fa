"""REST schemas of pools; a part of schemas.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMachine:
    """A machine of a pool. Its node has the same name."""

    name: str
    state: str  # wanted, joining, joined, draining, releasing or released
    machine_id: str  # the provider's
    type: str
    zone: str
    spot: bool
    price: float  # of an hour
    cost: float  # so far
    message: str  # why it goes, or went
    wanted_at: datetime
    idle_since: datetime | None
    released_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool of machines that are bought when the queue needs them."""

    name: str
    backend: str
    types: tuple[str, ...]  # the first is preferred
    zones: tuple[str, ...]  # in this order; none: wherever there is stock
    spot: bool
    price_limit: float | None  # of an hour of one machine
    most: int
    least: int
    idle_seconds: int
    labels: Mapping[str, str]
    taints: tuple[str, ...]
    options: Mapping[str, object]
    state: str  # ready or removing
    message: str  # why it could not buy last
    retry_at: datetime | None  # nothing is bought until then
    price: float  # of an hour of one machine, as of the last look; 0: not known
    currency: str
    cost: float  # of all machines that it ever had
    size: int  # machines that it has
    machines: tuple[PoolMachine, ...]
    created_at: datetime
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCreate:
    """A new pool."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # read by pydantic; a class variable by intent

    name: str
    types: tuple[str, ...]
    most: int
    backend: str = "aliyun"
    zones: tuple[str, ...] = ()
    spot: bool = False
    price_limit: float | None = None
    least: int = 0
    idle_seconds: int = 600
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    options: Mapping[str, str | int | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """What to change of a pool; what is left out stays. A `price_limit` of 0 takes the limit away."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    types: tuple[str, ...] | None = None
    zones: tuple[str, ...] | None = None
    spot: bool | None = None
    price_limit: float | None = None
    most: int | None = None
    least: int | None = None
    idle_seconds: int | None = None
    labels: Mapping[str, str] | None = None
    taints: tuple[str, ...] | None = None
    options: Mapping[str, str | int | bool] | None = None
