"""Storages that tasks see, and sign-ins of registries for images."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from trainyard.client.storageshapes import Registry, RegistryCreate, Storage, StorageCreate
from trainyard.server.api.answers import answer, described, nothing, page, page_of
from trainyard.server.api.identity import actor_of
from trainyard.server.api.parts import parts_of
from trainyard.server.api.views import Data, when
from trainyard.server.store.storages import RegistryRecord, StorageRecord

router = APIRouter(prefix="/storages", tags=["storages"])
registries = APIRouter(prefix="/registries", tags=["registries"])
Id = Annotated[str, Path(max_length=255, description="Its id or name.")]
Host = Annotated[str, Path(max_length=255, description="Its id or host.")]


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


@registries.get("", responses=described(page_of(Registry)))
async def list_registries(request: Request) -> Response:
    """List the sign-ins for images, without their passwords."""
    found = await parts_of(request).services.registries.list(await actor_of(request))
    return answer(page([registry_of(record) for record in found]))


@registries.post("", status_code=201, responses=described(Registry, 201))
async def add_registry(request: Request, create: RegistryCreate) -> Response:
    """Keep a sign-in at a registry; one for the same host is replaced."""
    record = await parts_of(request).services.registries.add(
        await actor_of(request),
        create.host,
        username=create.username,
        password=create.password,
        workspace=create.workspace,
    )
    return answer(registry_of(record), 201)


@registries.delete("/{registry}", status_code=204, responses=described(status=204))
async def remove_registry(request: Request, registry: Host) -> Response:
    """Forget a sign-in."""
    await parts_of(request).services.registries.remove(await actor_of(request), registry)
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


def registry_of(record: RegistryRecord) -> Data:
    """A sign-in as it travels: without its password."""
    return {
        "id": record.id,
        "host": record.host,
        "username": record.username,
        "workspace_id": record.workspace_id,
        "created_at": when(record.created_at),
    }
