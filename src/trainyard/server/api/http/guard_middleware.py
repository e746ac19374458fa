"""Around every request: its id, its body, headers for safety, and the last net for errors.

Plain ASGI, because it runs for each request. Who is asking is identity.py's.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection
from starlette.responses import Response

from trainyard.lib.errors import Error
from trainyard.lib.ids import new_id
from trainyard.lib.strict_json import bad_letter
from trainyard.server.api.http import errors
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.languages import language_of_scope
from trainyard.server.api.http.request_bodies import Message, Receive, RequestBodies, Scope
from trainyard.server.disk_space import DiskSpace

Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("trainyard.server.api")

BODY_LIMIT = 1 << 20  # a job's document is a few kilobytes; many at once have the limit of the settings
WITH_BODY = frozenset({"POST", "PUT", "PATCH", "DELETE"})

_STARTED, _COUNT = new_id("r"), itertools.count(1)  # ids of this server's requests
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")
SAFETY = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
NO_STORE = (b"cache-control", b"no-store")
STRICT_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")


class GuardMiddleware:
    """Wraps the API. Streams and WebSockets pass through; bodies are read whole, up to their limit."""

    def __init__(
        self, app: Asgi, *, bodies: RequestBodies, disk: DiskSpace, body_limit: int = 8 << 20
    ) -> None:
        self._app = app
        self._bodies = bodies
        self._disk = disk
        self._body_limit = body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id, is_secure=scope.get("scheme") == "https")
        try:
            refusal = _bad_address(scope)
            if refusal is not None:
                await refusal(scope, receive, answer)
            elif scope["method"] in WITH_BODY:
                await self._with_body(scope, receive, answer)
            else:
                await self._app(scope, receive, answer)
        except Error as error:  # from outside the application's own net
            await self._fail(scope, receive, answer, errors.problem_of(error, language_of_scope(scope)))
        except Exception:  # the last net: what nobody foresaw must not show its insides
            log.exception("request %s %s %s failed", request_id, scope["method"], scope["path"])
            await self._fail(scope, receive, answer, errors.internal(request_id))

    async def _with_body(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Read the body first. Where it is refused, the rest of it is not waited for."""
        limit = self._body_limit if scope["path"].endswith("/bulk") else min(BODY_LIMIT, self._body_limit)

        async def identify() -> str:
            actor = await actor_of(HTTPConnection(scope))
            scope["state"]["actor"] = actor  # the route need not look again
            return actor.user_id

        async with contextlib.AsyncExitStack() as held:
            try:
                if _makes_more(scope):
                    self._disk.check()
                body = await held.enter_async_context(
                    self._bodies.body(scope, receive, limit=limit, identify=identify)
                )
            except Error as error:
                refusal = errors.problem_of(error, language_of_scope(scope))
                refusal.headers["Connection"] = "close"
                await refusal(scope, receive, answer)
                return
            if bad := bad_letter(body):  # PostgreSQL takes none of them, and no answer can tell of them
                refusal = errors.problem(
                    422, "invalid", f"The body has {bad} in a text.", hint="Leave that character out."
                )
                await refusal(scope, receive, answer)
                return
            await self._app(scope, _replay(body, receive), answer)

    @staticmethod
    async def _fail(scope: Scope, receive: Receive, answer: _Answer, response: Response) -> None:
        if not answer.has_begun:  # half an answer cannot be taken back: the connection is closed instead
            await response(scope, receive, answer)


class _Answer:
    """`send` that adds headers."""

    def __init__(self, send: Send, request_id: str, *, is_secure: bool) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self._is_secure = is_secure
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = [*message.get("headers", ()), (b"x-request-id", self._request_id), *SAFETY]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append(NO_STORE)
            if self._is_secure:
                headers.append(STRICT_TRANSPORT)
            message["headers"] = headers
        await self._send(message)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(value):
            return str(value, "ascii")
    return f"{_STARTED}-{next(_COUNT):x}"


def _makes_more(scope: Scope) -> bool:
    """Whether a request makes something that stays. Who signs in, stops or deletes has to be served in any case."""
    return scope["method"] == "POST" and not scope["path"].endswith(("/session", "/explanations"))


def _bad_address(scope: Scope) -> Response | None:
    query = scope.get("query_string", b"")
    if "\0" in scope["path"] or "\r" in scope["path"] or "\n" in scope["path"]:
        return errors.problem(404, "not_found", "There is nothing at this path.")
    if b"%00" in query or b"\0" in query:
        return errors.problem(
            422, "invalid", "The query has a NUL in it.", hint="Leave the NUL character out."
        )
    return None


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
