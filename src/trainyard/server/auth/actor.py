"""Who asks: a user as their token shows them, and the one check that everything goes through."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from trainyard.lib.errors import CapacityError, DeniedError
from trainyard.server.auth.scopes import ALL, ROLES, TABLE, ScopeHolder, covers
from trainyard.server.records.workspaces import Role

# Kinds of tokens. The first two were traded for a password, or for the word of an identity provider.
SESSION = "session"  # a browser's; ends by itself
LOGIN = "login"  # a program's, for a person who signed in with it
TOKEN = "token"  # noqa: S105  # made by a token, or on the server's own machine
FROM_PASSWORDS = frozenset({SESSION, LOGIN})


class UnauthenticatedError(DeniedError):
    """Nobody knows who is asking."""

    code = "unauthenticated"
    http_status = 401


class OneTimePasswordError(DeniedError):
    """They came with a password that somebody else knows, and have to choose one of their own first."""

    code = "one_time_password"


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
    token_kind: str = "token"  # noqa: S105  # what sort it is
    expires_at: float | None = None  # of the token
    must_change_password: bool = False

    @property
    def longest_token(self) -> float | None:
        """Until when a token may be good that this one makes; None: for ever. A session is a person who has signed in."""
        return None if self.token_kind == SESSION else self.expires_at

    def places(self, scope: str) -> Collection[str] | None:
        """The workspaces whose things they may see; None: all. DeniedError where the token is not for that."""
        require_of_token(self, scope)
        if self.is_admin:
            return None
        return [one for one in self.roles if self.can(scope, one)]

    def can_see(self, workspace_id: str) -> bool:
        """Whether there is such a workspace, as far as they may know."""
        return self.is_admin or workspace_id in self.roles

    def can(self, scope: str, workspace_id: str | None = None) -> bool:
        """Whether both their role and their token allow this; what is a workspace's needs to name it."""
        row = TABLE[scope]
        if not covers(self.scopes, scope):
            return False
        if self.is_admin or row.who is ScopeHolder.EVERYBODY:
            return True
        if row.who is ScopeHolder.ADMIN or workspace_id is None:
            return False
        return self.roles.get(workspace_id) in ROLES[row.who]


def require(actor: Actor, scope: str, workspace_id: str | None = None) -> None:
    """Raise DeniedError unless this actor may do that. Whether they may know of the thing at all is asked before."""
    if actor.can(scope, workspace_id):
        return
    row = TABLE[scope]
    require_of_token(actor, scope)
    who = {
        ScopeHolder.ADMIN: "an administrator of the platform",
        ScopeHolder.WORKSPACE_ADMIN: "an administrator of the workspace",
        ScopeHolder.MEMBER: "a member of the workspace",
    }.get(row.who, "a member of the workspace")
    raise DeniedError(f"Only {who} may do this ({scope}).", hint="Ask one of them.")


def require_everything(actor: Actor, why: str) -> None:
    """Raise DeniedError unless the token is for all that its owner may: for what would give it all of that."""
    if ALL not in actor.scopes:
        raise DeniedError(
            f"A token for {', '.join(sorted(actor.scopes))[:100]} alone may not {why}.",
            hint="Use a token for everything (*), or sign in with a password.",
        )


def check_own_password(actor: Actor) -> None:
    """Raise OneTimePasswordError where they have to choose a password of their own before anything else."""
    # NB: not for tokens that were made otherwise: those of the first start, and of `trainyard admin`.
    if actor.must_change_password and actor.token_kind in FROM_PASSWORDS:
        raise OneTimePasswordError(
            "The password that you were given has to be changed first.",
            hint="Run `trainyard passwd`, or send PUT /api/v1/session/password.",
        )


def require_of_token(actor: Actor, scope: str) -> None:
    """Raise DeniedError where the token is not for this, whatever its owner may."""
    if not covers(actor.scopes, scope):
        raise DeniedError(
            f"This token is not for {scope!r}.",
            hint="Use a token with that scope, or sign in with a password.",
        )
