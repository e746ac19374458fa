"""Who asks: a user as their token shows them, and the one check that everything goes through."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from trainyard.lib.errors import CapacityError, DeniedError
from trainyard.server.auth.scopes import ALL, ROLES, TABLE, Who, covers
from trainyard.server.store.workspaces import Role


class UnauthenticatedError(DeniedError):
    """Nobody knows who is asking."""

    code = "unauthenticated"
    http_status = 401


class LimitedError(CapacityError):
    """Too many requests; `retry_after` says in how many seconds there may be another."""

    code = "too_many"
    http_status = 429

    def __init__(self, message: str, *, retry_after: float, hint: str = "") -> None:
        super().__init__(message, hint=hint or f"Try again in {max(1, round(retry_after))} s.")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Somebody who has signed in."""

    user_id: str
    name: str
    is_admin: bool = False
    scopes: frozenset[str] = frozenset({ALL})  # of the token
    roles: Mapping[str, Role] = field(default_factory=dict)  # by workspace
    address: str = ""
    token_id: str = ""
    token_kind: str = "token"  # noqa: S105  # what sort it is; or "session"
    must_change_password: bool = False

    def places(self, scope: str) -> Collection[str] | None:
        """The workspaces whose things they and their token may see; None: all."""
        if self.is_admin:
            return None if covers(self.scopes, scope) else ()
        return [one for one in self.roles if self.can(scope, one)]

    def can_see(self, workspace_id: str) -> bool:
        """Whether there is such a workspace, as far as they may know."""
        return self.is_admin or workspace_id in self.roles

    def can(self, scope: str, workspace_id: str | None = None) -> bool:
        """Whether both their role and their token allow this; what is a workspace's needs to name it."""
        row = TABLE[scope]
        if not covers(self.scopes, scope):
            return False
        if self.is_admin or row.who is Who.EVERYBODY:
            return True
        if row.who is Who.ADMIN or workspace_id is None:
            return False
        return self.roles.get(workspace_id) in ROLES[row.who]


def require(actor: Actor, scope: str, workspace_id: str | None = None) -> None:
    """Raise DeniedError unless this actor may do that. Whether they may know of the thing at all is asked before."""
    if actor.can(scope, workspace_id):
        return
    row = TABLE[scope]
    if not covers(actor.scopes, scope):
        raise DeniedError(
            f"This token is not for {scope!r}.",
            hint="Use a token with that scope, or sign in with a password.",
        )
    who = {
        Who.ADMIN: "an administrator of the platform",
        Who.WORKSPACE_ADMIN: "an administrator of the workspace",
        Who.MEMBER: "a member of the workspace",
    }.get(row.who, "a member of the workspace")
    raise DeniedError(f"Only {who} may do this ({scope}).", hint="Ask one of them.")
