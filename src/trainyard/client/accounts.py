"""Client methods for signing in, users, groups, tokens and requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from trainyard.client.connection import Connection
from trainyard.client.encode import encode
from trainyard.client.paging import fetch_all
from trainyard.client.schemas import Group, Identity, NewAccessKey, NewToken, NewUser, Request, Token, User


class Session:
    """`client.session`: who the caller is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def login(self, name: str, password: str, *, token_name: str = "") -> NewToken:
        """Trade a password for a token."""
        body = {"username": name, "password": password, "kind": "token", "name": token_name}
        return await self._connection.send("POST", NewToken, "/session", body)

    async def identity(self) -> Identity:
        """Whom the server takes the caller for."""
        return await self._connection.get(Identity, "/session")

    async def logout(self) -> None:
        """Revoke the token that was used."""
        await self._connection.request("DELETE", "/session")

    async def set_password(self, old: str, new: str) -> None:
        """Change the caller's own password."""
        await self._connection.request("PUT", "/session/password", body={"old": old, "new": new})


class Users:
    """`client.users`: accounts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[User]:
        """All accounts, by name."""
        return fetch_all(self._connection, User, "/users")

    async def get(self, user: str) -> User:
        """One account."""
        return await self._connection.get(User, _user(user))

    async def create(self, name: str, **details: Any) -> NewUser:
        """Make an account; without a password the server makes a one-time one. Details: display_name, email, password, is_admin."""
        return await self._connection.send("POST", NewUser, "/users", {"name": name, **details})

    async def change(self, user: str, **changes: Any) -> User:
        """Change display_name, email, is_admin or is_active."""
        return await self._connection.send("PATCH", User, _user(user), changes)

    async def connect(self, user: str, subject: str | None) -> User:
        """Let somebody of the identity provider (`issuer subject`) sign in as this account; None: nobody."""
        return await self._connection.send("PUT", User, f"{_user(user)}/identity", {"subject": subject})

    async def reset_password(self, user: str) -> NewUser:
        """Give them a new one-time password."""
        return await self._connection.send("POST", NewUser, f"{_user(user)}/password")


class Groups:
    """`client.groups`: quotas above workspaces."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Group]:
        """All groups, by name."""
        return fetch_all(self._connection, Group, "/groups")

    async def create(self, name: str, quota: Mapping[str, object] | None = None) -> Group:
        """Make one."""
        return await self._connection.send("POST", Group, "/groups", {"name": name, "quota": quota or {}})

    async def change(self, group: str, **changes: Any) -> Group:
        """Change its quota."""
        return await self._connection.send("PATCH", Group, f"/groups/{quote(group, safe='')}", changes)

    async def remove(self, group: str) -> None:
        """Forget a group that no workspace belongs to."""
        await self._connection.request("DELETE", f"/groups/{quote(group, safe='')}")


class Tokens:
    """`client.tokens`: what stands for a password in programs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Token]:
        """The caller's own."""
        return fetch_all(self._connection, Token, "/tokens")

    async def create(
        self, name: str, *, scopes: Sequence[str] = ("*",), expires_in_seconds: float | None = None
    ) -> NewToken:
        """Make one; its secret is in the answer, and nowhere else."""
        body = {"name": name, "scopes": list(scopes), "expires_in_seconds": expires_in_seconds}
        return await self._connection.send("POST", NewToken, "/tokens", body)

    async def create_access_key(self, name: str = "") -> NewAccessKey:
        """Make a key with which programs sign as Alibaba's clients do; its secret is in the answer, and nowhere else."""
        return await self._connection.send("POST", NewAccessKey, "/access-keys", {"name": name})

    async def revoke(self, token: str) -> None:
        """End one."""
        await self._connection.request("DELETE", f"/tokens/{quote(token, safe='')}")


class Requests:
    """`client.requests`: wishes that a person decides."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, **criteria: Any) -> AsyncIterator[Request]:
        """Those that the caller made or may decide. Criteria: state."""
        return fetch_all(self._connection, Request, "/requests", criteria)

    async def ask_for_account(self, name: str, **details: Any) -> Request:
        """Ask for an account; nobody has to be signed in. Details: password, email, display_name, reason."""
        return await self._connection.send("POST", Request, "/requests/accounts", {"name": name, **details})

    async def ask_for_membership(self, workspace: str, *, role: str = "member", reason: str = "") -> Request:
        """Ask to join a workspace."""
        body = {"workspace": workspace, "role": role, "reason": reason}
        return await self._connection.send("POST", Request, "/requests/memberships", body)

    async def ask_for_quota(
        self, workspace: str, quota: Mapping[str, object], *, reason: str = ""
    ) -> Request:
        """Ask for another quota of a workspace."""
        body = {"workspace": workspace, "quota": encode(quota), "reason": reason}
        return await self._connection.send("POST", Request, "/requests/quotas", body)

    async def decide(self, request: str, *, approve: bool, answer: str = "") -> Request:
        """Approve or refuse."""
        body = {"state": "approved" if approve else "refused", "answer": answer}
        return await self._connection.send(
            "PUT", Request, f"/requests/{quote(request, safe='')}/decision", body
        )


def _user(user: str) -> str:
    return f"/users/{quote(user, safe='')}"
