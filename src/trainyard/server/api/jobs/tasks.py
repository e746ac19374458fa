"""The tasks of a job's attempts."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from trainyard.client.schemas import Task
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import answer, described, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.jobs.jobs import Id

router = new_router("/jobs", tags=["tasks"])


@router.get("/{job_id}/tasks", responses=described(page_of(Task)))
async def list_tasks(
    request: Request,
    job_id: Id,
    attempt: Annotated[
        int | None, Query(ge=0, le=2**31 - 1, description="Of this start; 0: of all.  Default: of the last.")
    ] = None,
) -> Response:
    """List the tasks of a job: where each ran, with which devices, and how it ended."""
    parts = parts_of(request)
    found = await parts.services.jobs.tasks(await actor_of(request), job_id, attempt=attempt)
    return answer(page([views.task(record) for record in found]))
