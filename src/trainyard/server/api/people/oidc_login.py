"""Signing in through an identity provider: a browser is sent there, and comes back with a code. For browsers only.

What the provider says is checked by auth/oidc.py; whose account it is, is auth/oidc_login.py's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from fastapi import Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from trainyard.lib.errors import DeniedError, NotFoundError
from trainyard.server.api.http.app_state import Parts, parts_of
from trainyard.server.api.http.identity import AccountRoute, address_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.people.sessions import is_secure, set_session

if TYPE_CHECKING:
    from trainyard.server.auth.oidc_login import OidcLogin

router = new_router("/session/oidc", kind=AccountRoute, include_in_schema=False)
COOKIE = "trainyard_oidc"
ERROR_CODE = re.compile(r"[a-z_]{1,64}")  # as the protocol has them
# A page of ours that goes on by itself: after a redirect from elsewhere a strict cookie would not be sent yet.
# It goes to what says who they are.
PAGE = '<!doctype html><meta http-equiv="refresh" content="0;url=../../session"><a href="../../session">Signed in.</a>'


@router.get("")
async def begin(request: Request) -> Response:
    """Send the browser to the identity provider."""
    parts = parts_of(request)
    begun = await _oidc_login(parts).begin(_back(request, parts))
    response = RedirectResponse(begun.url, 303)
    response.headers["Cache-Control"] = "no-store"
    response.set_cookie(
        COOKIE,
        begun.cookie,
        max_age=round(begun.seconds),
        path=str(request.url.path),
        secure=is_secure(request),
        httponly=True,
        samesite="lax",  # it has to come back from the provider's page
    )
    return response


@router.get("/callback")
async def finish(
    request: Request,
    code: Annotated[str, Query(max_length=4096)] = "",
    state: Annotated[str, Query(max_length=256)] = "",
    error: Annotated[str, Query(max_length=256)] = "",
) -> Response:
    """Take the browser back, with its session."""
    parts = parts_of(request)
    oidc_login = _oidc_login(parts)
    if not code:
        # Whoever made the link chose the word: it is repeated where it looks like one of the protocol.
        said = f": {error}" if ERROR_CODE.fullmatch(error) else ""
        raise DeniedError(
            f"The identity provider did not let you in{said}.", hint="Sign in again from the beginning."
        )
    made, _actor = await oidc_login.finish(
        code=code,
        state=state,
        cookie=request.cookies.get(COOKIE, "")[:4096],
        redirect_uri=_back(request, parts),
        address=address_of(request),
    )
    response = HTMLResponse(PAGE, headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
    set_session(request, response, made)
    response.delete_cookie(COOKIE, path=str(request.url.path).removesuffix("/callback"))
    return response


def _oidc_login(parts: Parts) -> OidcLogin:
    if parts.services.oidc_login is None:
        raise NotFoundError("No identity provider is set here.", hint="Sign in with a password.")
    return parts.services.oidc_login


def _back(request: Request, parts: Parts) -> str:
    """Where the provider sends people back to; it knows this address too, and goes to no other."""
    own = parts.settings.url.rstrip("/") or f"{request.url.scheme}://{request.url.netloc}"
    path = str(request.url.path).removesuffix("/callback")
    return f"{own}{path}/callback"
