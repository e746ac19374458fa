"""The same question again: an answer that is kept is sent without parsing the address another time.

Two hundred people look at the queue all day. Who asks is still looked at, every time; what is not kept takes the usual
way through jobs.py, which keeps it.
"""

from __future__ import annotations

from collections.abc import Hashable

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard.lib.errors import Error
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.auth.actor import Actor

LIST = "/api/v1/jobs"
ONE = LIST + "/"


class CacheMiddleware:
    """Stands before the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what is kept, or pass the request on."""
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"].startswith(LIST):
            answer = await _recall(scope)
            if answer is not None:
                await send(answer[0])
                await send({"type": "http.response.body", "body": answer[1]})
                return
        await self._app(scope, receive, send)


async def _recall(scope: Scope) -> tuple[dict[str, object], bytes] | None:
    path, query = scope["path"], scope["query_string"]
    name = path.removeprefix(ONE) if path.startswith(ONE) else ""
    if (path != LIST and (not name or "/" in name or query)) or len(query) > 1000:
        return None
    connection = HTTPConnection(scope)
    try:
        actor = await actor_of(connection)
    except Error:  # told by the usual way
        return None
    key = key_of_job(actor, name) if name else key_of_list(actor, query)
    kept = await parts_of(connection).answers.peek(key)
    if kept is None:
        scope.setdefault("state", {})["actor"] = actor  # the route need not look again
        return None
    etag = kept.etag.encode()
    headers = [(b"etag", etag), (b"cache-control", b"no-cache")]
    if (b"if-none-match", etag) in scope["headers"]:
        return {"type": "http.response.start", "status": 304, "headers": headers}, b""
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(kept.body)).encode())]
    return {"type": "http.response.start", "status": 200, "headers": headers}, kept.body


def key_of_list(actor: Actor, query: bytes) -> Hashable:
    """Under what a list is kept. Two with the same key see the same jobs; who may mean themselves has a key of their own."""
    # NB: `us%65r=m%65` is `user=me` too, so anything that is escaped counts as such.
    own = actor.user_id if b"user=" in query or b"%" in query else ""
    return "jobs", _visibility(actor), own, query


def key_of_job(actor: Actor, job_id: str) -> Hashable:
    """Under what one job is kept."""
    return "job", _visibility(actor), job_id


def _visibility(actor: Actor) -> Hashable:
    return actor.scopes, None if actor.is_admin else frozenset(actor.roles.items())
