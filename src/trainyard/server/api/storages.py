"""Storages that tasks see."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from trainyard.client.storageshapes import Storage, StorageCreate
from trainyard.server.api.answers import answer, described, nothing, page, page_of
from trainyard.server.api.identity import actor_of
from trainyard.server.api.parts import parts_of
from trainyard.server.api.routing import new_router
from trainyard.server.api.views import Data, when
from trainyard.server.store.storages import StorageRecord

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
    return answer(page([storage_of(record) for record in found]))


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
    return answer(storage_of(record), 201)


@router.get("/{storage}", responses=described(Storage))
async def get_storage(request: Request, storage: Id) -> Response:
    """Show a storage."""
    return answer(storage_of(await parts_of(request).services.storages.get(await actor_of(request), storage)))


@router.delete("/{storage}", status_code=204, responses=described(status=204))
async def remove_storage(request: Request, storage: Id) -> Response:
    """Forget a storage. Its files stay where they are."""
    await parts_of(request).services.storages.remove(await actor_of(request), storage)
    return nothing()


def storage_of(record: StorageRecord) -> Data:
    """A storage as it travels."""
    return {
        "id": record.id,
        "name": record.name,
        "kind": record.kind,
        "source": record.source,
        "target": record.target,
        "workspace_id": record.workspace_id,
        "read_only": record.read_only,
        "default": record.is_default,
        "options": dict(record.options),
        "created_at": when(record.created_at),
    }
