"""The audit log: who changed what, from where, and what was denied."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from trainyard.client.schemas import AuditEntry
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import LARGEST_PAGE, LIMIT, answer, described, page, page_of
from trainyard.server.api.http.routing import new_router

router = new_router("/audit", tags=["audit"])


@router.get("", responses=described(page_of(AuditEntry)))
async def list_audit(
    request: Request,
    actor: Annotated[str, Query(max_length=64, description="Only of this user.")] = "",
    action: Annotated[str, Query(max_length=64, description="Only this action: jobs.stop.")] = "",
    subject: Annotated[str, Query(max_length=128, description="Only about this.")] = "",
    since: Annotated[datetime | None, Query()] = None,
    until: Annotated[datetime | None, Query()] = None,
    cursor: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = LIMIT,
) -> Response:
    """List what was done and what was denied, newest first."""
    found = await parts_of(request).services.audit.page(
        await actor_of(request),
        user=actor,
        action=action,
        subject=subject,
        since=None if since is None else since.timestamp(),
        until=None if until is None else until.timestamp(),
        cursor=str(cursor) if cursor else "",
        limit=limit,
    )
    return answer(page([views.audit(record) for record in found.items], found.cursor or None))
