"""Members of workspaces, and their roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from trainyard.client.schemas import Member
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import AccountRoute, actor_of
from trainyard.server.api.http.responses import STRICT, answer, described, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.people.workspaces import Place
from trainyard.server.records.workspaces import Role

router = new_router("/workspaces", tags=["members"], kind=AccountRoute)
Somebody = Annotated[str, Path(max_length=64, description="The user's name.")]


@dataclass(frozen=True, slots=True)
class RoleBody:
    """What the member may do."""

    __pydantic_config__ = STRICT
    role: Role


@router.get("/{workspace}/members", responses=described(page_of(Member)))
async def list_members(request: Request, workspace: Place) -> Response:
    """List who belongs to a workspace."""
    found = await parts_of(request).services.workspaces.members(await actor_of(request), workspace)
    return answer(page([views.member(record) for record in found]))


@router.put("/{workspace}/members/{user}", responses=described(Member))
async def set_member(request: Request, workspace: Place, user: Somebody, body: RoleBody) -> Response:
    """Make somebody a member, or give them another role."""
    record = await parts_of(request).services.workspaces.set_member(
        await actor_of(request), workspace, user, body.role
    )
    return answer(views.member(record))


@router.delete("/{workspace}/members/{user}", status_code=204, responses=described(status=204))
async def remove_member(request: Request, workspace: Place, user: Somebody) -> Response:
    """End a membership."""
    await parts_of(request).services.workspaces.remove_member(await actor_of(request), workspace, user)
    return nothing()
