"""Templates of jobs: keep, look, submit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Path, Request
from starlette.responses import Response

from trainyard.client.job_sources import Template, TemplateDetail
from trainyard.client.schemas import JobDetail
from trainyard.server.api import views
from trainyard.server.api.http.app_state import Parts, parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import STRICT, answer, described, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.jobs.jobs import Key, detail
from trainyard.server.api.shape_view import Data, shape_view
from trainyard.server.records.templates import TemplateRecord
from trainyard.spec.workload import WorkloadSpec

router = new_router("/templates", tags=["templates"])
Id = Annotated[str, Path(max_length=64, description="The id or the name of the template.")]


@dataclass(frozen=True, slots=True)
class NewTemplate:
    """A job to keep, or the id of one to copy."""

    __pydantic_config__ = STRICT
    name: str
    job: WorkloadSpec | None = None
    from_job: str = ""
    scope: Literal["personal", "workspace", "all"] = "personal"
    workspace: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class RoleChange:
    """What is different in every role."""

    __pydantic_config__ = STRICT
    replicas: int | None = None
    minimum: int | None = None
    cpu: float | None = None
    memory_mib: int | None = None
    device: str | None = None
    devices: int | None = None
    image: str | None = None
    nodes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """What is different in this job; variables and tags are added to the template's."""

    __pydantic_config__ = STRICT
    name: str | None = None
    command: str | None = None
    workspace: str | None = None
    working_dir: str | None = None
    env: Mapping[str, str] | None = None
    tags: Mapping[str, str] | None = None
    priority: int | None = None
    max_run_seconds: int | None = None
    role: RoleChange | None = None


@router.get("", responses=described(page_of(Template)))
async def list_templates(request: Request) -> Response:
    """List the templates that the caller may use."""
    parts = parts_of(request)
    found = await parts.services.templates.list(await actor_of(request))
    return answer(page([await _shown(parts, one) for one in found]))


@router.post("", status_code=201, responses=described(TemplateDetail, 201))
async def save_template(request: Request, body: NewTemplate) -> Response:
    """Keep a job under a name; one's own of that name is replaced."""
    parts = parts_of(request)
    record = await parts.services.templates.save(
        await actor_of(request), body.name, body.job, from_job=body.from_job, scope=body.scope,
        workspace=body.workspace, description=body.description,
    )  # fmt: skip
    return answer(await _detail(parts, record), 201, location=f"/api/v1/templates/{record.id}")


@router.get("/{template_id}", responses=described(TemplateDetail))
async def get_template(request: Request, template_id: Id) -> Response:
    """Show a template with its job."""
    parts = parts_of(request)
    return answer(
        await _detail(parts, await parts.services.templates.get(await actor_of(request), template_id))
    )


@router.delete("/{template_id}", status_code=204, responses=described(status=204))
async def remove_template(request: Request, template_id: Id) -> Response:
    """Forget a template."""
    await parts_of(request).services.templates.remove(await actor_of(request), template_id)
    return nothing()


@router.post("/{template_id}/jobs", status_code=201, responses=described(JobDetail, 201))
async def submit_template(
    request: Request, template_id: Id, body: TemplateUse, idempotency_key: Key = ""
) -> Response:
    """Submit a job from a template."""
    parts = parts_of(request)
    record = await parts.services.templates.submit(
        await actor_of(request), template_id, _given(body, "role"),
        role={} if body.role is None else _given(body.role), idempotency_key=idempotency_key,
    )  # fmt: skip
    return await detail(parts, record, 201, location=f"/api/v1/jobs/{record.id}")


def _given(body: TemplateUse | RoleChange, *without: str) -> dict[str, object]:
    return {
        name: value
        for name in body.__slots__
        if name not in without and (value := getattr(body, name)) is not None
    }


async def _shown(parts: Parts, record: TemplateRecord) -> Data:
    users = await parts.services.names.users({record.user_id})
    places = await parts.services.names.workspaces({record.workspace_id} if record.workspace_id else set())
    return shape_view(
        Template,
        record,
        workspace=places.get(record.workspace_id, "") if record.workspace_id else "",
        user=users.get(record.user_id, record.user_id),
    )


async def _detail(parts: Parts, record: TemplateRecord) -> Data:
    return {**await _shown(parts, record), "spec": views.spec_of(record.spec)}
