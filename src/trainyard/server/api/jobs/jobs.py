"""Jobs: submit, list, look, change. Their tasks, logs and events are in files of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Header, Path, Query, Request
from pydantic_core import to_json
from starlette.responses import Response

from trainyard.client.schemas import Explanation, Job, JobDetail
from trainyard.messages.text import ZH
from trainyard.server.api import views
from trainyard.server.api.http.app_state import Parts, parts_of
from trainyard.server.api.http.cache_middleware import key_of_job, key_of_list
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.languages import language_of
from trainyard.server.api.http.responses import (
    LARGEST_PAGE,
    LIMIT,
    STRICT,
    answer,
    described,
    if_match,
    kept,
    nothing,
    page,
    page_of,
    rendered,
)
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.shape_view import Data
from trainyard.server.jobs.failures import diagnose_job
from trainyard.server.jobs.service import JobQuery
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import Desired, Restart, RoleSpec, State, WorkloadSpec

router = new_router("/jobs", tags=["jobs"])
Id = Annotated[str, Path(max_length=64, description="The job's id.")]
Key = Annotated[
    str, Header(max_length=255, description="Do it once, however often it is sent with this text.")
]
Language = Annotated[
    Literal["", "en", "zh"],
    Query(description="Of the sentences. Without it, what Accept-Language prefers."),
]
IfMatch = Annotated[str | None, Header(alias="If-Match", description="Only if it is still this version.")]
ME = "me"


@dataclass(frozen=True, slots=True)
class JobBatch:
    """Many jobs at once, all or none."""

    __pydantic_config__ = STRICT
    jobs: tuple[WorkloadSpec, ...]


@dataclass(frozen=True, slots=True)
class DesiredBody:
    """What should become of the job."""

    __pydantic_config__ = STRICT
    desired: Desired


@dataclass(frozen=True, slots=True)
class JobChange:
    """What to change of a job that waits."""

    __pydantic_config__ = STRICT
    priority: int


@dataclass(frozen=True, slots=True)
class CloneBody:
    """What is different in the clone; what is left out is as it was."""

    __pydantic_config__ = STRICT
    name: str | None = None
    command: str | None = None
    workspace: str | None = None
    roles: tuple[RoleSpec, ...] | None = None
    working_dir: str | None = None
    env: Mapping[str, str] | None = None
    priority: int | None = None
    preemptible: bool | None = None
    max_run_seconds: int | None = None
    grace_seconds: int | None = None
    restart: Restart | None = None
    max_retries: int | None = None
    retain_seconds: int | None = None
    tags: Mapping[str, str] | None = None


@router.get("", responses=described(page_of(Job)))
async def list_jobs(
    request: Request,
    state: Annotated[list[State], Query(description="Only in one of these states.")] = [],  # noqa: B006  # FastAPI copies it
    workspace: Annotated[
        str, Query(max_length=64, description="Only of this workspace, by id or name.")
    ] = "",
    user: Annotated[
        str, Query(max_length=64, description="Only of this user, by name; `me` for one's own.")
    ] = "",
    kind: Annotated[str, Query(max_length=32)] = "",
    name: Annotated[str, Query(max_length=256, description="Only with this in the name.")] = "",
    since: Annotated[datetime | None, Query(description="Only submitted at this time or later.")] = None,
    until: Annotated[datetime | None, Query(description="Only submitted before this time.")] = None,
    origin: Annotated[
        str, Query(max_length=64, description="Only submitted by this: sweep:…, schedule:…, template:….")
    ] = "",
    cursor: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = LIMIT,
    order: Annotated[Literal["newest", "oldest"], Query()] = "newest",
) -> Response:
    """List the jobs that the caller may see, newest first."""
    parts = parts_of(request)
    actor = await actor_of(request)
    query = JobQuery(
        states=tuple(state),
        workspace=workspace,
        user="" if user == ME else user,
        mine=user == ME,
        kind=kind,
        name_part=name,
        since=None if since is None else since.timestamp(),
        until=None if until is None else until.timestamp(),
        origin=origin,
        cursor=cursor,
        limit=limit,
        newest_first=order == "newest",
    )

    async def render() -> tuple[bytes, str]:
        found = await parts.services.jobs.list(actor, query)
        return rendered(await jobs_shown(parts, found.items), found.cursor or None)

    return kept(request, await parts.answers.get(key_of_list(actor, request.scope["query_string"]), render))


@router.post(
    "",
    status_code=201,
    responses={**described(JobDetail, 201), 200: {"model": Explanation, "description": "Of a dry run."}},
)
async def submit_job(
    request: Request,
    spec: WorkloadSpec,
    dry_run: Annotated[bool, Query(description="Say what would happen, and keep nothing.")] = False,
    hold: Annotated[bool, Query(description="Wait for an approval before the queue.")] = False,
    idempotency_key: Key = "",
) -> Response:
    """Put a job into the queue. With `dry_run`, answers 200 with an explanation instead."""
    parts = parts_of(request)
    actor = await actor_of(request)
    if dry_run:
        return answer(views.explanation(await parts.services.jobs.dry_run(actor, spec)))
    record = await parts.services.jobs.submit(actor, spec, idempotency_key=idempotency_key, hold=hold)
    return await detail(parts, record, 201, location=f"{request.url.path}/{record.id}")


@router.post("/bulk", status_code=201, responses=described(page_of(Job), 201))
async def submit_jobs(request: Request, batch: JobBatch, idempotency_key: Key = "") -> Response:
    """Put many jobs into the queue, all or none."""
    parts = parts_of(request)
    actor = await actor_of(request)
    records = await parts.services.jobs.submit_many(actor, batch.jobs, idempotency_key=idempotency_key)
    return answer(page(await jobs_shown(parts, records)), 201)


@router.post("/explanations", responses=described(Explanation))
async def explain_spec(request: Request, spec: WorkloadSpec, language: Language = "") -> Response:
    """Say what would happen to a job now: where it would run, or what it would wait for. Nothing is kept."""
    actor = await actor_of(request)
    said = await parts_of(request).services.jobs.dry_run(
        actor, spec, language=language or language_of(request)
    )
    return answer(views.explanation(said))


@router.get("/{job_id}", responses=described(JobDetail))
async def get_job(request: Request, job_id: Id) -> Response:
    """Show a job."""
    parts = parts_of(request)
    actor = await actor_of(request)

    async def render() -> tuple[bytes, str]:
        record = await parts.services.jobs.get(actor, job_id)
        users, workspaces = await _names(parts, [record])
        return to_json(views.job_detail(record, users, workspaces)), f'"{record.version}"'

    return kept(request, await parts.answers.get(key_of_job(actor, job_id), render))


@router.patch("/{job_id}", responses=described(JobDetail))
async def change_job(request: Request, job_id: Id, change: JobChange, if_match_: IfMatch = None) -> Response:  # noqa: ARG001  # read by if_match, here for the description
    """Change the priority of a job that has not started."""
    parts = parts_of(request)
    actor = await actor_of(request)
    record = await parts.services.jobs.set_priority(actor, job_id, change.priority, version=if_match(request))
    return await detail(parts, record)


@router.put("/{job_id}/desired", responses=described(JobDetail))
async def set_job_desired(
    request: Request,
    job_id: Id,
    body: DesiredBody,
    if_match_: IfMatch = None,  # noqa: ARG001  # as above
) -> Response:
    """Say what should become of a job: `cancel` stops it, `pause` takes it out of the queue, `run` resumes it."""
    parts = parts_of(request)
    actor = await actor_of(request)
    record = await parts.services.jobs.set_desired(actor, job_id, body.desired, version=if_match(request))
    return await detail(parts, record)


@router.post("/{job_id}/approval", responses=described(JobDetail))
async def approve_job(request: Request, job_id: Id) -> Response:
    """Let a job that waits for a person into the queue."""
    parts = parts_of(request)
    return await detail(parts, await parts.services.jobs.approve(await actor_of(request), job_id))


@router.post("/{job_id}/clones", status_code=201, responses=described(JobDetail, 201))
async def clone_job(request: Request, job_id: Id, body: CloneBody, idempotency_key: Key = "") -> Response:
    """Submit a job again, with changes."""
    parts = parts_of(request)
    changes = {name: value for name in CloneBody.__slots__ if (value := getattr(body, name)) is not None}
    record = await parts.services.jobs.clone(
        await actor_of(request), job_id, changes, idempotency_key=idempotency_key
    )
    return await detail(parts, record, 201, location=f"/api/v1/jobs/{record.id}")


@router.delete("/{job_id}", status_code=204, responses=described(status=204))
async def delete_job(request: Request, job_id: Id) -> Response:
    """Forget a job that has ended, with its logs, whose room is free after a day, and at once while the disk is full."""
    await parts_of(request).services.jobs.delete(await actor_of(request), job_id)
    return nothing()


@router.get("/{job_id}/explanation", responses=described(Explanation))
async def explain_job(request: Request, job_id: Id, language: Language = "") -> Response:
    """Say why a job waits: position, what holds it, what would help, when it may start; or why it has failed."""
    actor = await actor_of(request)
    parts = parts_of(request)
    tongue = language or language_of(request)
    said = await parts.services.jobs.explain(actor, job_id, language=tongue)
    found = await diagnose_job(parts.services.jobs, parts.logs, actor, job_id, chinese=tongue == ZH)
    return answer({**views.explanation(said), "diagnosis": None if found is None else asdict(found)})


async def detail(parts: Parts, record: WorkloadRecord, status: int = 200, *, location: str = "") -> Response:
    """One job as an answer."""
    users, workspaces = await _names(parts, [record])
    shown = views.job_detail(record, users, workspaces)
    return answer(shown, status, version=record.version, location=location)


async def jobs_shown(parts: Parts, records: Sequence[WorkloadRecord]) -> list[Data]:
    """Jobs as lists show them."""
    users, workspaces = await _names(parts, records)
    return [views.job(record, users, workspaces) for record in records]


async def _names(
    parts: Parts, records: Sequence[WorkloadRecord]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    names = parts.services.names
    return (
        await names.users({record.user_id for record in records}),
        await names.workspaces({record.workspace_id for record in records}),
    )
