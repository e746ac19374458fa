"""Client methods for secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote, urlencode

from trainyard.client.connection import Connection
from trainyard.client.encode import encode
from trainyard.client.paging import fetch_all
from trainyard.client.secret_schemas import Secret, SecretValue


class Secrets:
    """`client.secrets`: values that jobs get and nobody sees."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Secret]:
        """One's own and those of one's workspaces, by name; without values."""
        return fetch_all(self._connection, Secret, "/secrets")

    async def put(self, name: str, value: str, *, workspace: str = "") -> Secret:
        """Keep a value under a name; one of that name gets another value."""
        body = encode(SecretValue(value=value))
        return await self._connection.send("PUT", Secret, _path(name, workspace), body)

    async def remove(self, name: str, *, workspace: str = "") -> None:
        """Forget a secret."""
        await self._connection.request("DELETE", _path(name, workspace))


def _path(name: str, workspace: str) -> str:
    of = f"?{urlencode({'workspace': workspace})}" if workspace else ""
    return f"/secrets/{quote(name, safe='')}{of}"
