"""Secrets of users and workspaces: names, never values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from trainyard.client.secret_schemas import Secret, SecretValue
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import answer, described, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.shape_view import Data, shape_view
from trainyard.server.records.secrets import SecretRecord

router = new_router("/secrets", tags=["secrets"])
Name = Annotated[str, Path(max_length=64, description="The name of the secret.")]
Workspace = Annotated[
    str, Query(max_length=64, description="Of this workspace, by id or name; else one's own.")
]


@router.get("", responses=described(page_of(Secret)))
async def list_secrets(request: Request) -> Response:
    """List the caller's own secrets and those of their workspaces, without values."""
    found = await parts_of(request).services.secrets.list(await actor_of(request))
    return answer(page(await _shown(request, found)))


@router.put("/{name}", responses=described(Secret))
async def put_secret(request: Request, name: Name, body: SecretValue, workspace: Workspace = "") -> Response:
    """Keep a value under a name; one of that name gets another value. It is never shown again."""
    record = await parts_of(request).services.secrets.put(
        await actor_of(request), name, body.value, workspace=workspace
    )
    return answer((await _shown(request, [record]))[0])


@router.delete("/{name}", status_code=204, responses=described(status=204))
async def remove_secret(request: Request, name: Name, workspace: Workspace = "") -> Response:
    """Forget a secret. Jobs that name it cannot start any more."""
    await parts_of(request).services.secrets.remove(await actor_of(request), name, workspace=workspace)
    return nothing()


async def _shown(request: Request, records: Sequence[SecretRecord]) -> list[Data]:
    """Secrets as they travel, with what people and workspaces are called."""
    names = parts_of(request).services.names
    users = await names.users({record.user_id for record in records})
    ids = {record.workspace_id for record in records if record.workspace_id is not None}
    workspaces = await names.workspaces(ids) if ids else {}
    return [
        shape_view(
            Secret,
            record,
            scope="user" if record.workspace_id is None else "workspace",
            workspace=workspaces.get(record.workspace_id or ""),
            user=users.get(record.user_id, record.user_id),
        )
        for record in records
    ]
