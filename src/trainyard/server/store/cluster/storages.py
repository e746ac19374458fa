"""Storages, which tasks see as folders, and sign-ins of registries, which images come from."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select

from trainyard.server.records.storages import RegistryRecord, StorageRecord
from trainyard.server.store.tables import registries, storages

_STORAGE = tuple(one.name for one in fields(StorageRecord))
_REGISTRY = tuple(one.name for one in fields(RegistryRecord))


def insert_storage(connection: Connection, record: StorageRecord) -> None:
    """Write a new storage."""
    values = {name: getattr(record, name) for name in _STORAGE}
    connection.execute(insert(storages), {**values, "options": dict(record.options)})


def list_storages(connection: Connection, workspace_id: str | None = None) -> list[StorageRecord]:
    """All storages by name, or those that one workspace sees."""
    query = select(storages).order_by(storages.c.name, storages.c.id)
    if workspace_id is not None:
        query = query.where(_seen_by(storages.c.workspace_id, workspace_id))
    return [StorageRecord(**row._mapping) for row in connection.execute(query)]  # noqa: SLF001  # SQLAlchemy's documented way


def remove_storage(connection: Connection, storage_id: str) -> None:
    """Forget a storage; what is in it stays."""
    connection.execute(delete(storages).where(storages.c.id == storage_id))


def insert_registry(connection: Connection, record: RegistryRecord) -> None:
    """Write a new sign-in."""
    connection.execute(insert(registries), {name: getattr(record, name) for name in _REGISTRY})


def list_registries(connection: Connection, workspace_id: str | None = None) -> list[RegistryRecord]:
    """All sign-ins by host, or those that jobs of one workspace use; its own before those of all."""
    query = select(registries).order_by(
        registries.c.host, registries.c.workspace_id.is_(None), registries.c.id
    )
    if workspace_id is not None:
        query = query.where(_seen_by(registries.c.workspace_id, workspace_id))
    return [RegistryRecord(**row._mapping) for row in connection.execute(query)]  # noqa: SLF001  # as above


def remove_registry(connection: Connection, registry_id: str) -> None:
    """Forget a sign-in."""
    connection.execute(delete(registries).where(registries.c.id == registry_id))


def _seen_by(column: ColumnElement[Any], workspace_id: str) -> ColumnElement[bool]:
    return or_(column.is_(None), column == workspace_id)
