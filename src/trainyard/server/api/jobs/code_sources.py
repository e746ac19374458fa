"""Code sources: repositories that jobs of a workspace check out. A token goes in, and never comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from trainyard.client.job_sources import CodeSource
from trainyard.server.api.http.app_state import Parts, parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import STRICT, answer, described, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.shape_view import Data, shape_view
from trainyard.server.records.code_sources import CodeSourceRecord

router = new_router("/code-sources", tags=["code sources"])
Id = Annotated[str, Path(max_length=64, description="The id or the name of the source.")]


@dataclass(frozen=True, slots=True)
class NewCodeSource:
    """A repository."""

    __pydantic_config__ = STRICT
    name: str
    url: str
    workspace: str = ""
    branch: str = ""
    commit: str = ""
    target: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class CodeSourceChange:
    """What is different; what is left out stays. Another url without a token loses the old one."""

    __pydantic_config__ = STRICT
    name: str | None = None
    url: str | None = None
    branch: str | None = None
    commit: str | None = None
    target: str | None = None
    token: str | None = field(default=None, repr=False)


@router.get("", responses=described(page_of(CodeSource)))
async def list_code_sources(request: Request) -> Response:
    """List the code sources of the caller's workspaces."""
    parts = parts_of(request)
    found = await parts.services.codes.list(await actor_of(request))
    return answer(page([await _shown(parts, one) for one in found]))


@router.post("", status_code=201, responses=described(CodeSource, 201))
async def add_code_source(request: Request, body: NewCodeSource) -> Response:
    """Take a repository in."""
    parts = parts_of(request)
    record = await parts.services.codes.add(
        await actor_of(request), body.name, body.url, workspace=body.workspace, branch=body.branch,
        commit=body.commit, target=body.target, token=body.token,
    )  # fmt: skip
    return answer(await _shown(parts, record), 201, location=f"/api/v1/code-sources/{record.id}")


@router.get("/{source_id}", responses=described(CodeSource))
async def get_code_source(request: Request, source_id: Id) -> Response:
    """Show a code source."""
    parts = parts_of(request)
    return answer(await _shown(parts, await parts.services.codes.get(await actor_of(request), source_id)))


@router.patch("/{source_id}", responses=described(CodeSource))
async def change_code_source(request: Request, source_id: Id, body: CodeSourceChange) -> Response:
    """Change a code source."""
    parts = parts_of(request)
    names = ("name", "url", "branch", "commit", "target")
    changes = {name: value for name in names if (value := getattr(body, name)) is not None}
    record = await parts.services.codes.change(
        await actor_of(request), source_id, token=body.token, **changes
    )
    return answer(await _shown(parts, record))


@router.delete("/{source_id}", status_code=204, responses=described(status=204))
async def remove_code_source(request: Request, source_id: Id) -> Response:
    """Forget a code source; jobs that name it cannot start any more."""
    await parts_of(request).services.codes.remove(await actor_of(request), source_id)
    return nothing()


async def _shown(parts: Parts, record: CodeSourceRecord) -> Data:
    places = await parts.services.names.workspaces({record.workspace_id})
    workspace = places.get(record.workspace_id, record.workspace_id)
    return shape_view(CodeSource, record, workspace=workspace, has_token=record.sealed is not None)
