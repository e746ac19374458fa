"""Sweeps: many jobs from one, submitted, looked at and stopped together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from trainyard.client.schemas import Sweep, SweepDetail
from trainyard.lib.errors import InvalidError
from trainyard.server.api.http.app_state import Parts, parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import STRICT, answer, described, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.jobs.jobs import DesiredBody, Key, jobs_shown
from trainyard.server.api.shape_view import Data, shape_view
from trainyard.server.jobs.sweeps import SweepView
from trainyard.spec.sweep import MOST_AXES, MOST_VALUES, axis_of
from trainyard.spec.workload import WorkloadSpec

router = new_router("/sweeps", tags=["sweeps"])
Id = Annotated[str, Path(max_length=64, description="The sweep's id.")]


@dataclass(frozen=True, slots=True)
class SweepBody:
    """A job, and the values of each parameter. A text `1..5` or `0..1..0.25` stands for a range, with both ends."""

    __pydantic_config__ = STRICT
    job: WorkloadSpec
    sweep: Mapping[str, tuple[str | int | float | bool, ...]]


@router.post("", status_code=201, responses=described(SweepDetail, 201))
async def submit_sweep(
    request: Request,
    body: SweepBody,
    hold: Annotated[bool, Query(description="Wait for an approval before the queue.")] = False,
    idempotency_key: Key = "",
) -> Response:
    """Put one job into the queue for every combination of values, all or none."""
    parts = parts_of(request)
    if len(body.sweep) > MOST_AXES or any(len(values) > MOST_VALUES for values in body.sweep.values()):
        raise InvalidError("This sweep is too large.", hint=f"Give at most {MOST_AXES} parameters.")
    axes = [axis_of(name, values) for name, values in body.sweep.items()]
    actor = await actor_of(request)
    sweep_id, _records = await parts.services.sweeps.submit(
        actor, body.job, axes, idempotency_key=idempotency_key, hold=hold
    )
    return await _detail(request, sweep_id, 201)


@router.get("", responses=described(page_of(Sweep)))
async def list_sweeps(
    request: Request, user: Annotated[str, Query(max_length=64, description="`me` for one's own.")] = ""
) -> Response:
    """List the newest sweeps that the caller may see."""
    parts = parts_of(request)
    found = await parts.services.sweeps.list(await actor_of(request), mine=user == "me")
    return answer(page([await _shown(parts, one) for one in found]))


@router.get("/{sweep_id}", responses=described(SweepDetail))
async def get_sweep(request: Request, sweep_id: Id) -> Response:
    """Show a sweep with its jobs."""
    return await _detail(request, sweep_id)


@router.put("/{sweep_id}/desired", responses=described(SweepDetail))
async def set_sweep_desired(request: Request, sweep_id: Id, body: DesiredBody) -> Response:
    """Say what should become of all its jobs that have not ended."""
    parts = parts_of(request)
    await parts.services.sweeps.set_desired(await actor_of(request), sweep_id, body.desired)
    return await _detail(request, sweep_id)


async def _detail(request: Request, sweep_id: str, status: int = 200) -> Response:
    parts = parts_of(request)
    actor = await actor_of(request)
    shown = await _shown(parts, await parts.services.sweeps.get(actor, sweep_id))
    jobs = await jobs_shown(parts, await parts.services.sweeps.jobs(actor, sweep_id))
    return answer({**shown, "items": jobs}, status, location=f"/api/v1/sweeps/{sweep_id}")


async def _shown(parts: Parts, one: SweepView) -> Data:
    users = await parts.services.names.users({one.user_id})
    places = await parts.services.names.workspaces({one.workspace_id})
    return shape_view(
        Sweep,
        one,
        workspace=places.get(one.workspace_id, one.workspace_id),
        user=users.get(one.user_id, one.user_id),
    )
