"""Storages that tasks see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from trainyard.client.storage_schemas import Storage, StorageCreate
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import answer, described, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.shape_view import Data, shape_view
from trainyard.server.records.storages import StorageRecord

router = new_router("/storages", tags=["storages"])
Id = Annotated[str, Path(max_length=255, description="Its id or name.")]


@router.get("", responses=described(page_of(Storage)))
async def list_storages(
    request: Request,
    workspace: Annotated[
        str, Query(max_length=64, description="Those that jobs of this workspace see.")
    ] = "",
) -> Response:
    """List the storages that the caller's jobs may use."""
    found = await parts_of(request).services.storages.list(await actor_of(request), workspace)
    return answer(page(await _shown(request, found)))


@router.post("", status_code=201, responses=described(Storage, 201))
async def add_storage(request: Request, create: StorageCreate) -> Response:
    """Add a storage, for all workspaces or for one."""
    record = await parts_of(request).services.storages.add(
        await actor_of(request),
        create.name,
        source=create.source,
        target=create.target,
        kind=create.kind,
        workspace=create.workspace,
        read_only=create.read_only,
        is_default=create.default,
        options=create.options,
    )
    return answer((await _shown(request, [record]))[0], 201)


@router.get("/{storage}", responses=described(Storage))
async def get_storage(request: Request, storage: Id) -> Response:
    """Show a storage."""
    record = await parts_of(request).services.storages.get(await actor_of(request), storage)
    return answer((await _shown(request, [record]))[0])


@router.delete("/{storage}", status_code=204, responses=described(status=204))
async def remove_storage(request: Request, storage: Id) -> Response:
    """Forget a storage. Its files stay where they are."""
    await parts_of(request).services.storages.remove(await actor_of(request), storage)
    return nothing()


async def _shown(request: Request, records: Sequence[StorageRecord]) -> list[Data]:
    """Storages as they travel, with what their workspaces are called."""
    ids = {record.workspace_id for record in records if record.workspace_id is not None}
    names = await parts_of(request).services.names.workspaces(ids) if ids else {}
    return [storage_of(record, names) for record in records]


def storage_of(record: StorageRecord, workspaces: Mapping[str, str]) -> Data:
    """A storage as it travels. `workspaces` are names by id."""
    workspace = workspaces.get(record.workspace_id or "")
    return shape_view(Storage, record, workspace=workspace, default=record.is_default)
