"""Whether the server can serve, and which one it is. For probes, so nobody has to sign in."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import Request
from starlette.responses import Response

from trainyard.client.schemas import Health, Version
from trainyard.lib.errors import Error
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.responses import answer, described
from trainyard.server.api.http.routing import new_router

router = new_router(tags=["health"])
VERSION = version("trainyard")
OPEN: dict[str, Any] = {"security": []}


@router.get("/health", responses=described(Health), openapi_extra=OPEN)
async def get_health(request: Request) -> Response:
    """Say whether the server can serve: 200, or 503 where its database does not answer.

    A full disk is `degraded` with the code `disk_full`, and 200 all the same: only this server can stop what fills it.
    """
    parts = parts_of(request)
    try:
        await parts.services.db.ping()
    except Error:
        return answer({"status": "failing", "code": "unreachable", "database": "silent", "leader": None}, 503)
    said = ("degraded", "disk_full") if parts.disk.is_full() else ("ok", "")
    leads = parts.engine() is not None
    return answer({"status": said[0], "code": said[1], "database": "ok", "leader": leads})


@router.get("/version", responses=described(Version), openapi_extra=OPEN)
async def get_version() -> Response:
    """Say which server answers."""
    return answer({"version": VERSION, "api": "v1"})
