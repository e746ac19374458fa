"""Schedules: jobs that are submitted by the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Path, Request
from starlette.responses import Response

from trainyard.client.job_sources import Schedule, ScheduleDetail
from trainyard.client.schemas import JobDetail
from trainyard.server.api import views
from trainyard.server.api.http.app_state import Parts, parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import STRICT, answer, described, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.jobs.jobs import detail
from trainyard.server.api.shape_view import Data, shape_view, when
from trainyard.server.records.schedules import ScheduleRecord
from trainyard.spec.cron import upcoming
from trainyard.spec.workload import WorkloadSpec

router = new_router("/schedules", tags=["schedules"])
Id = Annotated[str, Path(max_length=64, description="The id or the name of the schedule.")]
Overlap = Literal["skip", "allow", "replace"]
SHOWN = 5


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """When, and which job: one that is given, or the id of one to copy."""

    __pydantic_config__ = STRICT
    name: str
    cron: str
    job: WorkloadSpec | None = None
    from_job: str = ""
    timezone: str = "UTC"
    overlap: Overlap = "skip"


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """What is different; what is left out stays."""

    __pydantic_config__ = STRICT
    name: str | None = None
    cron: str | None = None
    timezone: str | None = None
    overlap: Overlap | None = None
    job: WorkloadSpec | None = None
    is_active: bool | None = None


@router.get("", responses=described(page_of(Schedule)))
async def list_schedules(request: Request) -> Response:
    """List the schedules of the caller's workspaces."""
    parts = parts_of(request)
    found = await parts.services.schedules.list(await actor_of(request))
    return answer(page([await _shown(parts, one) for one in found]))


@router.post("", status_code=201, responses=described(ScheduleDetail, 201))
async def add_schedule(request: Request, body: NewSchedule) -> Response:
    """Submit a job whenever the clock shows these times."""
    parts = parts_of(request)
    record = await parts.services.schedules.add(
        await actor_of(request), body.name, body.cron, body.job, from_job=body.from_job,
        timezone=body.timezone, overlap=body.overlap,
    )  # fmt: skip
    return answer(await _detail(parts, record), 201, location=f"/api/v1/schedules/{record.id}")


@router.get("/{schedule_id}", responses=described(ScheduleDetail))
async def get_schedule(request: Request, schedule_id: Id) -> Response:
    """Show a schedule, its job and its next times."""
    parts = parts_of(request)
    return answer(
        await _detail(parts, await parts.services.schedules.get(await actor_of(request), schedule_id))
    )


@router.patch("/{schedule_id}", responses=described(ScheduleDetail))
async def change_schedule(request: Request, schedule_id: Id, body: ScheduleChange) -> Response:
    """Change a schedule; `is_active` false pauses it."""
    parts = parts_of(request)
    changes = {name: value for name in body.__slots__ if (value := getattr(body, name)) is not None}
    if "job" in changes:
        changes["spec"] = changes.pop("job")
    record = await parts.services.schedules.change(await actor_of(request), schedule_id, **changes)
    return answer(await _detail(parts, record))


@router.delete("/{schedule_id}", status_code=204, responses=described(status=204))
async def remove_schedule(request: Request, schedule_id: Id) -> Response:
    """Forget a schedule; its jobs stay."""
    await parts_of(request).services.schedules.remove(await actor_of(request), schedule_id)
    return nothing()


@router.post("/{schedule_id}/runs", status_code=201, responses=described(JobDetail, 201))
async def run_schedule(request: Request, schedule_id: Id) -> Response:
    """Submit its job now."""
    parts = parts_of(request)
    record = await parts.services.schedules.run_now(await actor_of(request), schedule_id)
    return await detail(parts, record, 201, location=f"/api/v1/jobs/{record.id}")


async def _shown(parts: Parts, record: ScheduleRecord) -> Data:
    users = await parts.services.names.users({record.user_id})
    places = await parts.services.names.workspaces({record.workspace_id})
    return shape_view(
        Schedule,
        record,
        workspace=places.get(record.workspace_id, record.workspace_id),
        user=users.get(record.user_id, record.user_id),
    )


async def _detail(parts: Parts, record: ScheduleRecord) -> Data:
    now = parts.services.clock.now().timestamp()
    moments = upcoming(record.cron, record.timezone, now, SHOWN) if record.is_active else []
    return {
        **await _shown(parts, record),
        "upcoming": [when(one) for one in moments],
        "spec": views.spec_of(record.spec),
    }
