"""What tasks and nodes used; and all of it now, for Prometheus."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from trainyard.client.schemas import MetricsAnswer
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import answer, described
from trainyard.server.api.http.routing import new_router
from trainyard.server.usage import prometheus_text

router = new_router(tags=["metrics"])

Metric = Annotated[
    list[str],
    Query(max_length=16, description="Only these: cpu, memory, in, out, read, write, gpu, gpu_memory."),
]
Step = Annotated[
    int, Query(ge=0, le=3600, description="Seconds between points: 10, 60 or 3600; 0 chooses one.")
]


@router.get("/jobs/{job_id}/metrics", responses=described(MetricsAnswer))
async def get_job_metrics(
    request: Request,
    job_id: str,
    metric: Metric = [],  # noqa: B006  # FastAPI copies it
    step: Step = 0,
    since: Annotated[
        datetime | None, Query(description="An hour before the end, unless it is given.")
    ] = None,
    until: Annotated[datetime | None, Query(description="Now, or the job's end.")] = None,
) -> Response:
    """What the tasks of a job used."""
    found = await parts_of(request).services.metrics.of_job(
        await actor_of(request), job_id, metrics=metric, step=step, **_span(since, until)
    )
    return answer({"step": found.step, "series": [asdict(one) for one in found.series]})


@router.get("/nodes/{name}/metrics", responses=described(MetricsAnswer))
async def get_node_metrics(
    request: Request,
    name: str,
    metric: Metric = [],  # noqa: B006  # as above
    step: Step = 0,
    since: Annotated[datetime | None, Query()] = None,
    until: Annotated[datetime | None, Query()] = None,
) -> Response:
    """What a node used."""
    found = await parts_of(request).services.metrics.of_node(
        await actor_of(request), name, metrics=metric, step=step, **_span(since, until)
    )
    return answer({"step": found.step, "series": [asdict(one) for one in found.series]})


@router.get("/metrics", responses=described(text="For Prometheus.", media=prometheus_text.TYPE))
async def get_metrics(request: Request) -> Response:
    """Everything now, as Prometheus reads it."""
    overview = await parts_of(request).services.metrics.overview(await actor_of(request))
    return Response(prometheus_text.render(overview), media_type=prometheus_text.TYPE)


def _span(since: datetime | None, until: datetime | None) -> dict[str, Any]:
    return {
        "since": None if since is None else _seconds(since),
        "until": None if until is None else _seconds(until),
    }


def _seconds(moment: datetime) -> float:
    """A time that names no zone is meant in UTC, as we write ours."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
