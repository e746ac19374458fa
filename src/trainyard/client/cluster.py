"""Client methods for nodes, workspaces, quotas and the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from trainyard.client.connection import Connection
from trainyard.client.encode import encode
from trainyard.client.paging import fetch_all
from trainyard.client.schemas import (
    AuditEntry,
    Member,
    Node,
    NodeChange,
    NodeDesired,
    NodeJoin,
    Quota,
    Workspace,
    WorkspaceChange,
    WorkspaceCreate,
)


class Nodes:
    """`client.nodes`: the machines that run tasks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Node]:
        """All nodes, by name."""
        return fetch_all(self._connection, Node, "/nodes")

    async def get(self, name: str) -> Node:
        """One node."""
        return await self._connection.get(Node, _node(name))

    async def join(self, join: NodeJoin) -> Node:
        """Take a machine in; it is reached in the background."""
        return await self._connection.send("POST", Node, "/nodes", encode(join))

    async def set_desired(self, name: str, desired: NodeDesired) -> Node:
        """Cordon it, drain it, take it into use again, or declare it gone."""
        return await self._connection.send("PUT", Node, f"{_node(name)}/desired", {"desired": str(desired)})

    async def change(self, name: str, change: NodeChange) -> Node:
        """Change labels, taints, pool, declared devices or fence."""
        return await self._connection.send("PATCH", Node, _node(name), encode(change))

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Forget a node on which nothing runs; `force`: whatever runs there is given up."""
        await self._connection.request("DELETE", _node(name), query={"force": "true" if force else None})


class Workspaces:
    """`client.workspaces`: teams, and who belongs to them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Workspace]:
        """Those that the caller may see, by name."""
        return fetch_all(self._connection, Workspace, "/workspaces")

    async def get(self, workspace: str) -> Workspace:
        """One workspace, by id or name."""
        return await self._connection.get(Workspace, _workspace(workspace))

    async def create(self, create: WorkspaceCreate) -> Workspace:
        """Make one."""
        return await self._connection.send("POST", Workspace, "/workspaces", encode(create))

    async def change(self, workspace: str, change: WorkspaceChange) -> Workspace:
        """Change its description, quota or rules."""
        return await self._connection.send("PATCH", Workspace, _workspace(workspace), encode(change))

    async def archive(self, workspace: str) -> None:
        """Close it for new jobs, and hide it."""
        await self._connection.request("DELETE", _workspace(workspace))

    def members(self, workspace: str) -> AsyncIterator[Member]:
        """Who belongs to it."""
        return fetch_all(self._connection, Member, f"{_workspace(workspace)}/members")

    async def set_member(self, workspace: str, user: str, role: str) -> Member:
        """Make somebody a member, or give them another role: admin, member or viewer."""
        return await self._connection.send("PUT", Member, _member(workspace, user), {"role": role})

    async def remove_member(self, workspace: str, user: str) -> None:
        """End a membership."""
        await self._connection.request("DELETE", _member(workspace, user))


class Quotas:
    """`client.quotas`: what teams may use, and what they use."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Quota]:
        """The tree, parents first."""
        return fetch_all(self._connection, Quota, "/quota")


class Audit:
    """`client.audit`: who changed what."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, **criteria: Any) -> AsyncIterator[AuditEntry]:
        """Entries. Criteria: actor, action, subject, since, until, limit."""
        return fetch_all(self._connection, AuditEntry, "/audit", criteria)


def _node(name: str) -> str:
    return f"/nodes/{quote(name, safe='')}"


def _workspace(workspace: str) -> str:
    return f"/workspaces/{quote(workspace, safe='')}"


def _member(workspace: str, user: str) -> str:
    return f"{_workspace(workspace)}/members/{quote(user, safe='')}"
