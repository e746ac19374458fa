"""Who is asking: a Bearer token, or a browser's cookie with its CSRF header. What they may do is auth/'s and services'."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from trainyard.lib.errors import DeniedError
from trainyard.server.api.http.routing import PREFIX, Route
from trainyard.server.auth.actor import Actor, UnauthenticatedError, check_own_password
from trainyard.server.auth.tokens import is_token
from trainyard.server.services import Services
from trainyard.server.settings import ServerSettings

SESSION_COOKIE = "trainyard_session"
CSRF_COOKIE = "trainyard_csrf"  # readable by the console's own script, which sends it back as the header
CSRF_HEADER = "X-CSRF-Token"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# What people may do before they have a password of their own: see who they are, sign out, and change it.
OWN_PASSWORD = frozenset({f"{PREFIX}/session", f"{PREFIX}/session/password"})


class Identities:
    """Requests and the people behind them."""

    def __init__(self, services: Services, settings: ServerSettings) -> None:
        self._services = services
        self._own_url = settings.url

    async def actor(self, connection: HTTPConnection) -> Actor:
        """Who asks; UnauthenticatedError where nobody can tell, DeniedError where a cookie came alone."""
        token, is_cookie = _token_of(connection)
        if is_cookie:
            self._check_origin(connection, token)
        actor = await self._services.authentication.authenticate(token, address=address_of(connection))
        if connection.scope["path"] not in OWN_PASSWORD:
            check_own_password(actor)
        return actor

    def forget(self) -> None:
        """Ask the database again: an account, a token or a membership has changed."""
        self._services.authentication.forget()

    def _check_origin(self, connection: HTTPConnection, token: str) -> None:
        """A cookie is sent by any page that names us: only our own can read what the header repeats."""
        if connection.scope["type"] == "websocket":
            origin = connection.headers.get("origin", "")
            own = {connection.headers.get("host", ""), urlsplit(self._own_url).netloc} - {""}
            if urlsplit(origin).netloc not in own:
                raise DeniedError("This page may not open a terminal here.", hint="Open it from the console.")
            return
        if connection.scope["method"] in SAFE:
            return
        given = connection.headers.get(CSRF_HEADER, "").encode()  # letters of any script may come
        if not hmac.compare_digest(given, csrf_of(token).encode()):
            raise DeniedError(
                f"A change with a cookie needs the header {CSRF_HEADER}.",
                hint=f"Send the value of the cookie {CSRF_COOKIE} in it, or use a token.",
            )


def csrf_of(token: str) -> str:
    """What a page of ours knows and a page of others cannot: bound to the session, so it needs no place of its own."""
    return hashlib.sha256(b"csrf:" + token.encode()).hexdigest()


def address_of(connection: HTTPConnection) -> str:
    """Where the request comes from; a proxy's word counts where the server was told to believe it."""
    return connection.client.host if connection.client is not None else ""


def _token_of(connection: HTTPConnection) -> tuple[str, bool]:
    given = connection.headers.get("authorization", "")
    if given:
        scheme, _, token = given.partition(" ")
        if scheme.lower() != "bearer":
            raise UnauthenticatedError(
                f"{scheme[:20]!r} is not taken here.", hint="Send `Authorization: Bearer TOKEN`."
            )
        token, is_cookie = token.strip(), False
    else:
        token, is_cookie = connection.cookies.get(SESSION_COOKIE, ""), True
        if not token:
            raise UnauthenticatedError(
                "This needs a token.",
                hint="Log in with `trainyard login URL`, or send `Authorization: Bearer TOKEN`.",
            )
    if not is_token(token):
        raise UnauthenticatedError("This is no token of ours.", hint="Log in again.")
    return token, is_cookie


async def actor_of(connection: HTTPConnection) -> Actor:
    """Who asks. Looked at once for a request, and again by streams."""
    known = connection.scope.setdefault("state", {}).pop("actor", None)
    if isinstance(known, Actor):
        return known
    identities: Identities = connection.app.state.parts.identities
    return await identities.actor(connection)


class _Forgetting(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route as usual, and the forgetting: before the answer is sent, so that the next request finds it done."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            finally:
                if request.method not in SAFE:
                    request.app.state.parts.identities.forget()

        return handled


class AccountRoute(Route):
    """A route that may change who may do what: what is remembered of tokens is forgotten after it."""

    served_as = _Forgetting
