"""Workspaces: teams with a quota. Who belongs to them is members.py's."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from trainyard.client.schemas import Workspace, WorkspaceChange, WorkspaceCreate
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import AccountRoute, actor_of
from trainyard.server.api.http.responses import answer, described, if_match, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.auth.actor import Actor
from trainyard.server.records.workspaces import WorkspaceRecord

router = new_router("/workspaces", tags=["workspaces"], kind=AccountRoute)
Place = Annotated[str, Path(max_length=64, description="The workspace's id or name.")]


@router.get("", responses=described(page_of(Workspace)))
async def list_workspaces(
    request: Request,
    archived: Annotated[bool, Query(description="Archived ones too.")] = False,
) -> Response:
    """List the workspaces that the caller may see, with their role in each."""
    actor = await actor_of(request)
    found = await parts_of(request).services.workspaces.list(actor, with_archived=archived)
    return answer(page([views.workspace(record, _role(actor, record)) for record in found]))


@router.post("", status_code=201, responses=described(Workspace, 201))
async def create_workspace(request: Request, create: WorkspaceCreate) -> Response:
    """Make a workspace."""
    actor = await actor_of(request)
    record = await parts_of(request).services.workspaces.create(
        actor,
        create.name,
        description=create.description,
        group_id=create.group_id,
        quota=create.quota,
        needs_approval=create.needs_approval,
        max_run_seconds=create.max_run_seconds,
    )
    return _workspace(actor, record, 201)


@router.get("/{workspace}", responses=described(Workspace))
async def get_workspace(request: Request, workspace: Place) -> Response:
    """Show a workspace."""
    actor = await actor_of(request)
    return _workspace(actor, await parts_of(request).services.workspaces.get(actor, workspace))


@router.patch("/{workspace}", responses=described(Workspace))
async def change_workspace(request: Request, workspace: Place, change: WorkspaceChange) -> Response:
    """Change its description, quota or rules; what is left out stays."""
    actor = await actor_of(request)
    changes = {key: value for key in WorkspaceChange.__slots__ if (value := getattr(change, key)) is not None}
    record = await parts_of(request).services.workspaces.change(
        actor, workspace, version=if_match(request), **changes
    )
    return _workspace(actor, record)


@router.delete("/{workspace}", status_code=204, responses=described(status=204))
async def archive_workspace(request: Request, workspace: Place) -> Response:
    """Close a workspace for new jobs, and hide it. Its jobs are kept."""
    await parts_of(request).services.workspaces.archive(await actor_of(request), workspace)
    return nothing()


def _workspace(actor: Actor, record: WorkspaceRecord, status: int = 200) -> Response:
    return answer(views.workspace(record, _role(actor, record)), status, version=record.version)


def _role(actor: Actor, record: WorkspaceRecord) -> str:
    return str(actor.roles.get(record.id, "admin" if actor.is_admin else ""))
