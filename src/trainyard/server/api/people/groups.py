"""Groups: quotas above workspaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response

from trainyard.client.schemas import Group
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import STRICT, answer, described, if_match, nothing, page, page_of
from trainyard.server.api.http.routing import new_router

router = new_router("/groups", tags=["groups"])
Id = Annotated[str, Path(max_length=64, description="The group's id.")]


@dataclass(frozen=True, slots=True)
class GroupCreate:
    """A new group."""

    __pydantic_config__ = STRICT
    name: str
    quota: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What to change; what is left out stays."""

    __pydantic_config__ = STRICT
    quota: Mapping[str, Any] | None = None


@router.get("", responses=described(page_of(Group)))
async def list_groups(request: Request) -> Response:
    """List the groups, with their quotas."""
    found = await parts_of(request).services.workspaces.groups(await actor_of(request))
    return answer(page([views.group(record) for record in found]))


@router.post("", status_code=201, responses=described(Group, 201))
async def create_group(request: Request, create: GroupCreate) -> Response:
    """Make a group."""
    record = await parts_of(request).services.workspaces.create_group(
        await actor_of(request), create.name, quota=create.quota
    )
    return answer(views.group(record), 201, version=record.version)


@router.patch("/{group}", responses=described(Group))
async def change_group(request: Request, group: Id, change: GroupChange) -> Response:
    """Change a group's quota."""
    record = await parts_of(request).services.workspaces.change_group(
        await actor_of(request), group, version=if_match(request), quota=change.quota
    )
    return answer(views.group(record), version=record.version)


@router.delete("/{group}", status_code=204, responses=described(status=204))
async def remove_group(request: Request, group: Id) -> Response:
    """Forget a group that no workspace belongs to."""
    await parts_of(request).services.workspaces.remove_group(await actor_of(request), group)
    return nothing()
