"""Nodes: the machines that run tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from trainyard.client.schemas import Node, NodeChange, NodeDesired, NodeJoin
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import STRICT, answer, described, if_match, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.records.nodes import NodeDesired as Wish
from trainyard.server.records.nodes import NodeRecord

router = new_router("/nodes", tags=["nodes"])
Name = Annotated[str, Path(max_length=63, description="The node's name.")]


@dataclass(frozen=True, slots=True)
class NodeDesiredBody:
    """What is wanted of the node."""

    __pydantic_config__ = STRICT
    desired: NodeDesired


@router.get("", responses=described(page_of(Node)))
async def list_nodes(request: Request) -> Response:
    """List the nodes: what they have, how they are, and why."""
    services = parts_of(request).services
    actor = await actor_of(request)
    found = await services.nodes.list(actor)
    counts = await services.nodes.task_counts(actor)
    return answer(page([views.node(record, tasks=counts.get(record.name, 0)) for record in found]))


@router.post("", status_code=201, responses=described(Node, 201))
async def join_node(request: Request, join: NodeJoin) -> Response:
    """Take a machine in; it is reached in the background."""
    record = await parts_of(request).services.nodes.join(
        await actor_of(request),
        join.name,
        address=join.address,
        pool=join.pool,
        devices=join.devices,
        labels=join.labels,
        taints=join.taints,
        fence_seconds=join.fence_seconds,
    )
    return _node(record, 201)


@router.get("/{name}", responses=described(Node))
async def get_node(request: Request, name: Name) -> Response:
    """Show a node."""
    return _node(await parts_of(request).services.nodes.get(await actor_of(request), name))


@router.patch("/{name}", responses=described(Node))
async def change_node(request: Request, name: Name, change: NodeChange) -> Response:
    """Change labels, taints, pool, declared or unhealthy devices, or fence; what is left out stays."""
    changes = {key: value for key in NodeChange.__slots__ if (value := getattr(change, key)) is not None}
    record = await parts_of(request).services.nodes.change(
        await actor_of(request), name, version=if_match(request), **changes
    )
    return _node(record)


@router.put("/{name}/desired", responses=described(Node))
async def set_node_desired(request: Request, name: Name, body: NodeDesiredBody) -> Response:
    """Cordon a node, drain it, take it into use again, or declare it gone."""
    record = await parts_of(request).services.nodes.set_desired(
        await actor_of(request), name, Wish(body.desired), version=if_match(request)
    )
    return _node(record)


@router.delete("/{name}", status_code=204, responses=described(status=204))
async def remove_node(
    request: Request,
    name: Name,
    force: Annotated[
        bool, Query(description="It is gone for good: what ran there may start elsewhere.")
    ] = False,
) -> Response:
    """Forget a node. Refused while something runs there, unless it is declared gone."""
    await parts_of(request).services.nodes.remove(await actor_of(request), name, force=force)
    return nothing()


def _node(record: NodeRecord, status: int = 200) -> Response:
    return answer(views.node(record), status, version=record.version)
