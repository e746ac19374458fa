"""The REST application: routes, errors, and the description of both. Wiring to the rest of the server is app.py's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic_core import to_json
from starlette.responses import Response, StreamingResponse

from trainyard.engines.api import Engine, ExecClient
from trainyard.server.api.http import errors
from trainyard.server.api.http.app_state import Parts
from trainyard.server.api.http.cache_middleware import CacheMiddleware
from trainyard.server.api.http.concurrency_limit import ConcurrencyLimit
from trainyard.server.api.http.guard_middleware import GuardMiddleware
from trainyard.server.api.http.identity import CSRF_HEADER, SESSION_COOKIE, Identities
from trainyard.server.api.http.request_bodies import RequestBodies
from trainyard.server.api.http.response_cache import Answers, Changes
from trainyard.server.api.http.routing import PREFIX, LazyRoutes, described_routes
from trainyard.server.disk_space import DiskSpace
from trainyard.server.jobs.exec_sessions import Terminals
from trainyard.server.logs.log_files import LogStore
from trainyard.server.services import Services
from trainyard.server.settings import ServerSettings

# Searches of logs that run side by side, each on a thread; and how many one user may have under way, the waiting included.
SEARCHES, SEARCHES_OF_ONE = 2, 4
PIECE = 32 << 10

DESCRIPTION = f"""\
Nouns in the path. Every request but those for health, version and signing in needs a token: `Authorization: Bearer ty_…`.
A browser has a cookie instead, and sends `{CSRF_HEADER}` with whatever changes something. HTTP Basic is not taken.

Every error has one shape: `code`, `message` (a sentence), `hint` (what to do) and `fields`. Lists come in pages:
`items`, and `next` to be sent as `cursor`; null after the last. `ETag` is the version of a thing; `If-Match` makes a
change only if it is still that one. `Idempotency-Key` has jobs submitted or cloned once, however often it is sent.

Streams are `text/event-stream`: each message has an id, and `Last-Event-ID` goes on after it.
"""


def create_api(
    services: Services,
    logs: LogStore,
    engine: Callable[[], Engine | None],
    settings: ServerSettings,
    exec_client: ExecClient,
    changes: Changes,
    *,
    disk: DiskSpace | None = None,
) -> FastAPI:
    """The application of one server. `engine` is there while it leads; `exec_client` goes to nodes while it does not."""
    bodies, disk = RequestBodies(), disk or DiskSpace()
    app = make_application(bodies=bodies, disk=disk, body_limit=settings.body_limit_mib << 20)
    app.state.parts = Parts(
        services=services,
        logs=logs,
        engine=engine,
        terminals=Terminals(services.db, engine, exec_client),
        settings=settings,
        changes=changes,
        answers=Answers(changes),
        identities=Identities(services, settings),
        bodies=bodies,
        disk=disk,
        searches=ConcurrencyLimit(SEARCHES, each=SEARCHES_OF_ONE, what="searches"),
    )
    return app


def make_application(
    *, body_limit: int, bodies: RequestBodies | None = None, disk: DiskSpace | None = None
) -> FastAPI:
    """The routes alone; enough for the description."""
    app = FastAPI(
        title="Trainyard",
        version=version("trainyard"),
        openapi_url=None,  # served below, so that it has our headers and errors
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    errors.install(app)
    app.router.routes.append(LazyRoutes())

    @app.get(f"{PREFIX}/openapi.json", include_in_schema=False)
    async def get_openapi_json() -> Response:
        text = to_json(describe(app))
        return StreamingResponse(
            _in_pieces(text), media_type=errors.JSON, headers={"Content-Length": str(len(text))}
        )

    app.add_middleware(CacheMiddleware)
    app.add_middleware(
        GuardMiddleware, bodies=bodies or RequestBodies(), disk=disk or DiskSpace(), body_limit=body_limit
    )  # the last one stands outermost
    return app


async def _in_pieces(text: bytes) -> AsyncIterator[bytes]:
    """A long answer that anybody may ask for: one who does not read on costs us one piece of it."""
    for at in range(0, len(text), PIECE):
        yield text[at : at + PIECE]


def describe(app: FastAPI) -> dict[str, Any]:
    """OpenAPI, made once."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=DESCRIPTION, routes=described_routes()
        )
        components = schema.setdefault("components", {})
        components["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "bearerFormat": "ty_…"},
            "session": {"type": "apiKey", "in": "cookie", "name": SESSION_COOKIE},
        }
        schema["security"] = [{"token": []}, {"session": []}]
        app.openapi_schema = schema
    return app.openapi_schema
