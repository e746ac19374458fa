"""What jobs are made from and when: code sources, templates, schedules. Shapes, and `client.codes` and so on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from trainyard.client.connection import Connection
from trainyard.client.paging import fetch_all


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSource:
    """A repository that jobs of a workspace check out."""

    id: str
    name: str
    workspace: str  # its name
    url: str
    branch: str
    commit: str
    target: str
    has_token: bool
    created_at: datetime


class CodeSources:
    """`client.codes`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[CodeSource]:
        """All that the caller's workspaces have."""
        return fetch_all(self._connection, CodeSource, "/code-sources")

    async def get(self, source: str) -> CodeSource:
        """One, by id or name."""
        return await self._connection.get(CodeSource, _path(source))

    async def add(self, name: str, url: str, **options: str) -> CodeSource:
        """Take a repository in. Options: workspace, branch, commit, target, token."""
        return await self._connection.send(
            "POST", CodeSource, "/code-sources", {"name": name, "url": url, **options}
        )

    async def change(self, source: str, **changes: Any) -> CodeSource:
        """Change name, url, branch, commit, target or token."""
        return await self._connection.send("PATCH", CodeSource, _path(source), changes)

    async def remove(self, source: str) -> None:
        """Forget one."""
        await self._connection.request("DELETE", _path(source))


def _path(source: str) -> str:
    return f"/code-sources/{quote(source, safe='')}"
