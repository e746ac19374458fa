"""Client methods for pools of machines that are bought when the queue needs them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from trainyard.client.connection import Connection
from trainyard.client.encode import encode
from trainyard.client.paging import fetch_all
from trainyard.client.pool_schemas import Pool, PoolChange, PoolCreate


class Pools:
    """`client.pools`: where machines come from when the queue needs them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Pool]:
        """All pools, by name, with the machines that they have."""
        return fetch_all(self._connection, Pool, "/pools")

    async def get(self, name: str) -> Pool:
        """One pool, also with machines that it had lately."""
        return await self._connection.get(Pool, _pool(name))

    async def create(self, create: PoolCreate) -> Pool:
        """Make one. Nothing is bought before a job needs it."""
        return await self._connection.send("POST", Pool, "/pools", encode(create))

    async def change(self, name: str, change: PoolChange) -> Pool:
        """Change it; machines that are there stay as they are."""
        return await self._connection.send("PATCH", Pool, _pool(name), encode(change))

    async def remove(self, name: str) -> None:
        """Drain and release its machines, then forget it."""
        await self._connection.request("DELETE", _pool(name))


def _pool(name: str) -> str:
    return f"/pools/{quote(name, safe='')}"
