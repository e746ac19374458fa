"""Pools of machines that are bought when the queue needs them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response

from trainyard.client.pool_schemas import Pool, PoolChange, PoolCreate, PoolMachine
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import answer, described, if_match, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.shape_view import Data, shape_view
from trainyard.server.cluster.pools import PoolView
from trainyard.server.records.pools import MachineRecord, PoolRecord, Stage

router = new_router("/pools", tags=["pools"])
Name = Annotated[str, Path(max_length=63, description="The pool's name.")]


@router.get("", responses=described(page_of(Pool)))
async def list_pools(request: Request) -> Response:
    """List the pools, their machines, what they have cost, and why they could not buy."""
    found = await parts_of(request).services.pools.list(await actor_of(request))
    return answer(page([pool_of(view) for view in found]))


@router.post("", status_code=201, responses=described(Pool, 201))
async def create_pool(request: Request, create: PoolCreate) -> Response:
    """Make a pool. Nothing is bought before a job needs it, but for `least`."""
    record = PoolRecord(
        name=create.name,
        backend=create.backend,
        types=tuple(create.types),
        zones=tuple(create.zones),
        is_spot=create.spot,
        price_limit=create.price_limit,
        most=create.most,
        least=create.least,
        idle_seconds=create.idle_seconds,
        labels=dict(create.labels),
        taints=tuple(create.taints),
        options=dict(create.options),
        created_at=0.0,
    )
    return _pool(await parts_of(request).services.pools.create(await actor_of(request), record), 201)


@router.get("/{name}", responses=described(Pool))
async def get_pool(request: Request, name: Name) -> Response:
    """Show a pool, with the machines that it had last."""
    return _pool(await parts_of(request).services.pools.get(await actor_of(request), name))


@router.patch("/{name}", responses=described(Pool))
async def change_pool(request: Request, name: Name, change: PoolChange) -> Response:
    """Change a pool; what is left out stays. A `price_limit` of 0 takes the limit away."""
    given: dict[str, Any] = {
        key: value for key in PoolChange.__slots__ if (value := getattr(change, key)) is not None
    }
    if "spot" in given:
        given["is_spot"] = given.pop("spot")
    if given.get("price_limit") == 0:
        given["price_limit"] = None
    view = await parts_of(request).services.pools.change(
        await actor_of(request), name, version=if_match(request), **given
    )
    return _pool(view)


@router.delete("/{name}", status_code=204, responses=described(status=204))
async def remove_pool(request: Request, name: Name) -> Response:
    """Remove a pool: its machines are drained and released, then it is gone."""
    await parts_of(request).services.pools.remove(await actor_of(request), name)
    return nothing()


def pool_of(view: PoolView) -> Data:
    """A pool as it travels."""
    pool = view.pool
    return shape_view(
        Pool,
        pool,
        spot=pool.is_spot,
        state="ready" if pool.is_active else "removing",
        price=0.0 if pool.shape is None else pool.shape.price,
        cost=round(view.cost, 6),
        size=sum(one.state != Stage.RELEASED for one in view.machines),
        machines=[_machine(one, view.at) for one in view.machines],
    )


def _machine(record: MachineRecord, now: float) -> Data:
    return shape_view(
        PoolMachine,
        record,
        type=record.machine_type,
        spot=record.is_spot,
        price=record.price_now,
        cost=round(record.cost_at(now), 6),
    )


def _pool(view: PoolView, status: int = 200) -> Response:
    return answer(pool_of(view), status, version=view.pool.version)
