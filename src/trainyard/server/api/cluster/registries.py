"""Sign-ins at registries, for images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from trainyard.client.storage_schemas import Registry, RegistryCreate
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import answer, described, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.shape_view import Data, shape_view
from trainyard.server.records.storages import RegistryRecord

router = new_router("/registries", tags=["registries"])
Host = Annotated[str, Path(max_length=255, description="Its id or host.")]


@router.get("", responses=described(page_of(Registry)))
async def list_registries(request: Request) -> Response:
    """List the sign-ins for images, without their passwords."""
    found = await parts_of(request).services.registries.list(await actor_of(request))
    return answer(page(await _shown(request, found)))


@router.post("", status_code=201, responses=described(Registry, 201))
async def add_registry(request: Request, create: RegistryCreate) -> Response:
    """Keep a sign-in at a registry; one for the same host is replaced."""
    record = await parts_of(request).services.registries.add(
        await actor_of(request),
        create.host,
        username=create.username,
        password=create.password,
        workspace=create.workspace,
    )
    return answer((await _shown(request, [record]))[0], 201)


@router.delete("/{registry}", status_code=204, responses=described(status=204))
async def remove_registry(request: Request, registry: Host) -> Response:
    """Forget a sign-in."""
    await parts_of(request).services.registries.remove(await actor_of(request), registry)
    return nothing()


async def _shown(request: Request, records: Sequence[RegistryRecord]) -> list[Data]:
    """Sign-ins as they travel, with what their workspaces are called."""
    ids = {record.workspace_id for record in records if record.workspace_id is not None}
    names = await parts_of(request).services.names.workspaces(ids) if ids else {}
    return [registry_of(record, names) for record in records]


def registry_of(record: RegistryRecord, workspaces: Mapping[str, str]) -> Data:
    """A sign-in as it travels: without its password. `workspaces` are names by id."""
    return shape_view(Registry, record, workspace=workspaces.get(record.workspace_id or ""))
