"""Signing in and out: a password becomes a token for a program, or a cookie for a browser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Request
from starlette.responses import Response

from trainyard.client.schemas import Identity, NewToken
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import (
    CSRF_COOKIE,
    SESSION_COOKIE,
    AccountRoute,
    actor_of,
    address_of,
    csrf_of,
)
from trainyard.server.api.http.responses import STRICT, answer, described, nothing
from trainyard.server.api.http.routing import new_router
from trainyard.server.auth.authentication import LOGIN, SESSION
from trainyard.server.auth.authentication import NewToken as MadeToken

router = new_router("/session", tags=["session"], kind=AccountRoute)
OPEN: dict[str, Any] = {"security": []}


@dataclass(frozen=True, slots=True)
class SignIn:
    """A name and a password. `token` answers with a token for a program, `cookie` sets a cookie for a browser."""

    __pydantic_config__ = STRICT
    username: str
    password: str
    kind: Literal["token", "cookie"] = "cookie"
    name: str = ""  # of the token

    def __repr__(self) -> str:
        """Without the password."""
        return f"SignIn({self.username!r})"


@dataclass(frozen=True, slots=True)
class NewPassword:
    """The present password and the one to have from now on."""

    __pydantic_config__ = STRICT
    old: str
    new: str

    def __repr__(self) -> str:
        """Without the passwords."""
        return "NewPassword()"


@router.post("", responses=described(NewToken), openapi_extra=OPEN)
async def sign_in(request: Request, body: SignIn) -> Response:
    """Trade a password for a token, or for a cookie: then the answer's token is empty, and `csrf` is a cookie too."""
    parts = parts_of(request)
    is_cookie = body.kind == "cookie"
    made, _actor = await parts.services.authentication.sign_in(
        body.username,
        body.password,
        address=address_of(request),
        kind=SESSION if is_cookie else LOGIN,
        token_name=body.name,
    )
    shown = views.new_token(made, shown=not is_cookie)
    response = answer(shown)
    if is_cookie:
        set_session(request, response, made)
    return response


def set_session(request: Request, response: Response, made: MadeToken) -> None:
    """Give a browser its session, and what its own pages prove themselves with."""
    clock = parts_of(request).services.clock
    age = max(0, round((made.record.expires_at or 0) - clock.now().timestamp()))
    safe = is_secure(request)
    response.set_cookie(
        SESSION_COOKIE, made.token, max_age=age, path="/", secure=safe, httponly=True, samesite="strict"
    )
    response.set_cookie(
        CSRF_COOKIE, csrf_of(made.token), max_age=age, path="/", secure=safe, samesite="strict"
    )


def is_secure(request: Request) -> bool:
    """Whether people reach us by https, so that cookies may go no other way."""
    return request.url.scheme == "https" or parts_of(request).settings.url.startswith("https:")


@router.get("", responses=described(Identity))
async def get_session(request: Request) -> Response:
    """Say whom the server takes the caller for."""
    actor = await actor_of(request)
    return answer(
        {
            "user_id": actor.user_id,
            "name": actor.name,
            "is_admin": actor.is_admin,
            "scopes": sorted(actor.scopes),
            "roles": {workspace: str(role) for workspace, role in actor.roles.items()},
            "must_change_password": actor.must_change_password,
        }
    )


@router.delete("", status_code=204, responses=described(status=204))
async def sign_out(request: Request) -> Response:
    """Revoke the token, or the cookie, that this request came with."""
    await parts_of(request).services.authentication.sign_out(await actor_of(request))
    response = nothing()
    response.delete_cookie(SESSION_COOKIE, path="/")
    response.delete_cookie(CSRF_COOKIE, path="/")
    return response


@router.put("/password", status_code=204, responses=described(status=204))
async def set_password(request: Request, body: NewPassword) -> Response:
    """Change one's own password. All other sessions end."""
    await parts_of(request).services.users.set_password(await actor_of(request), body.old, body.new)
    return nothing()
