"""Client methods for storages and registry logins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from trainyard.client.connection import Connection
from trainyard.client.encode import encode
from trainyard.client.paging import fetch_all
from trainyard.client.storage_schemas import Registry, RegistryCreate, Storage, StorageCreate


class Storages:
    """`client.storages`: folders that tasks see."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Storage]:
        """All storages that one's jobs may use, by name."""
        return fetch_all(self._connection, Storage, "/storages")

    async def get(self, storage: str) -> Storage:
        """One storage, by its id or its name."""
        return await self._connection.get(Storage, _path("storages", storage))

    async def add(self, create: StorageCreate) -> Storage:
        """Add a storage."""
        return await self._connection.send("POST", Storage, "/storages", encode(create))

    async def remove(self, storage: str) -> None:
        """Forget a storage; its files stay."""
        await self._connection.request("DELETE", _path("storages", storage))


class Registries:
    """`client.registries`: sign-ins for images."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Registry]:
        """All sign-ins, by host."""
        return fetch_all(self._connection, Registry, "/registries")

    async def add(self, create: RegistryCreate) -> Registry:
        """Keep a sign-in; one for the same host is replaced."""
        return await self._connection.send("POST", Registry, "/registries", encode(create))

    async def remove(self, registry: str) -> None:
        """Forget a sign-in, by its id or its host."""
        await self._connection.request("DELETE", _path("registries", registry))


def _path(noun: str, name: str) -> str:
    return f"/{noun}/{quote(name, safe='')}"
