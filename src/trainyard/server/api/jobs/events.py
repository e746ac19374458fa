"""Events: pages of the past, and streams of what happens, state changes of jobs included."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Annotated

from fastapi import Header, Query, Request
from starlette.responses import Response

from trainyard.client.schemas import Event as EventShape
from trainyard.lib.errors import UnreachableError
from trainyard.server.api import views
from trainyard.server.api.http.app_state import Parts, parts_of
from trainyard.server.api.http.event_streams import END, EventStream, message
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.languages import language_of
from trainyard.server.api.http.responses import LARGEST_PAGE, LIMIT, answer, described, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.jobs.jobs import Id
from trainyard.server.auth.actor import Actor
from trainyard.spec.events import Event
from trainyard.spec.workload import FINAL

router = new_router(tags=["events"])
Node = Annotated[str, Query(max_length=63, description="Only of this node.")]
Place = Annotated[str, Query(max_length=64, description="Only of this workspace, by id or name.")]
Seq = Annotated[int | None, Query(ge=0, le=2**63 - 1, description="Only after this number.")]
LastEventId = Annotated[
    str, Header(alias="Last-Event-ID", max_length=64, description="Go on after this one.")
]
Cursor = Annotated[int, Query(ge=0, le=2**63 - 1)]
PageLimit = Annotated[int, Query(ge=1, le=LARGEST_PAGE)]
STREAM = described(
    text="Messages `event` with an event as JSON; the id is its number.", media="text/event-stream"
)
PAGE = 1000


@router.get("/events", responses=described(page_of(EventShape)))
async def list_events(
    request: Request,
    node: Node = "",
    workspace: Place = "",
    cursor: Cursor = 0,
    limit: PageLimit = LIMIT,
) -> Response:
    """List what has happened where the caller may look, oldest first."""
    found = await parts_of(request).services.events.page(
        await actor_of(request), node=node, workspace=workspace, after_seq=cursor, limit=limit
    )
    return _page(found, limit, language_of(request))


@router.get("/events/stream", response_class=Response, responses=STREAM)
async def stream_events(
    request: Request,
    node: Node = "",
    workspace: Place = "",
    after: Seq = None,
    last_event_id: LastEventId = "",
) -> Response:
    """Follow what happens where the caller may look, from now on or after a number. Never ends by itself."""
    actor = await actor_of(request)
    await parts_of(request).services.events.check(actor, node=node, workspace=workspace)
    follow = parts_of(request).services.events.follow(
        actor, node=node, workspace=workspace, after_seq=_number(last_event_id, after)
    )
    return EventStream(
        _messages(follow, language_of(request), until_end=False), lambda: _check_rights(request, actor)
    )


@router.get("/jobs/{job_id}/events", responses=described(page_of(EventShape)))
async def list_job_events(
    request: Request, job_id: Id, cursor: Cursor = 0, limit: PageLimit = LIMIT
) -> Response:
    """List what has happened to a job, oldest first."""
    found = await parts_of(request).services.events.page(
        await actor_of(request), job=job_id, after_seq=cursor, limit=limit
    )
    return _page(found, limit, language_of(request))


@router.get("/jobs/{job_id}/events/stream", response_class=Response, responses=STREAM)
async def stream_job_events(
    request: Request, job_id: Id, after: Seq = None, last_event_id: LastEventId = ""
) -> Response:
    """Follow what happens to a job, from its beginning or after a number. Ends with `end` when the job has ended."""
    parts = parts_of(request)
    actor = await actor_of(request)
    await parts.services.jobs.get(actor, job_id)
    place = _number(last_event_id, after) or 0

    async def check() -> None:
        await parts.services.jobs.get(await actor_of(request), job_id)

    return EventStream(_follow_job(parts, actor, job_id, place, language_of(request)), check)


async def _check_rights(request: Request, before: Actor) -> None:
    """What one may see is decided when a stream begins: who may see something else by now has to begin again."""
    now = await actor_of(request)
    if (now.is_admin, now.scopes, now.roles) != (before.is_admin, before.scopes, before.roles):
        raise UnreachableError("What you may see has changed.", hint="Follow again from the last event.")


async def _messages(
    follow: AsyncIterator[Sequence[Event]], language: str, *, until_end: bool
) -> AsyncGenerator[bytes, None]:
    async for batch in follow:
        if batch:
            yield b"".join(message("event", views.event(event, language), event.seq) for event in batch)
        if until_end and any(event.state in FINAL for event in batch):
            yield END
            return


async def _follow_job(
    parts: Parts, actor: Actor, job: str, after: int, language: str
) -> AsyncGenerator[bytes, None]:
    record = await parts.services.jobs.get(actor, job)
    if record.state in FINAL:  # nothing comes any more but what is there
        while past := await parts.services.events.page(actor, job=job, after_seq=after, limit=PAGE):
            after = past[-1].seq
            yield b"".join(message("event", views.event(event, language), event.seq) for event in past)
        yield END
        return
    follow = parts.services.events.follow(actor, job=job, after_seq=after)
    async for body in _messages(follow, language, until_end=True):
        yield body


def _page(found: Sequence[Event], limit: int, language: str) -> Response:
    following = found[-1].seq if len(found) == limit else None
    return answer(page([views.event(event, language) for event in found], following))


def _number(last_event_id: str, after: int | None) -> int | None:
    if last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19:
        return int(last_event_id)
    return after
