"""Events and the audit log, for those who may read them. Followers share one reading of what is new."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from sqlalchemy import Connection

from trainyard.lib.errors import NotFoundError
from trainyard.messages.catalogue import failure
from trainyard.server.auth.actor import Actor, require, require_of_token
from trainyard.server.people.workspace_lookup import find_workspace
from trainyard.server.records.audit import AuditRecord
from trainyard.server.service_context import Context, Page
from trainyard.server.store import audit, events
from trainyard.server.store.jobs import workloads
from trainyard.server.wakeups import EVENTS
from trainyard.spec.events import Event, Subject

PAGE = 2000
# What came last stays in memory for those who follow; who is further behind reads from the store.
RECENT = 5000
# Without a hint: how late an event written by another server is seen.
LOOK_SECONDS = 1.0


class Events:
    """`services.events`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._recent: deque[Event] = deque(maxlen=RECENT)
        self._read_to: int | None = None  # the number of the newest event that we know of
        self._read_at = 0.0
        self._mark = -1
        self._reading = asyncio.Lock()

    async def page(
        self,
        actor: Actor,
        *,
        job: str = "",
        node: str = "",
        workspace: str = "",
        after_seq: int = 0,
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[Event]:
        """Events of one job, of a node, of a workspace, or of all that the actor may see."""
        size = min(max(1, limit), PAGE)

        def work(connection: Connection) -> list[Event]:
            criteria = _criteria(connection, actor, job=job, node=node, workspace=workspace)
            return events.page(
                connection, after_seq=after_seq, limit=size, newest_first=newest_first, **criteria
            )

        return await self._context.db.read(work)

    async def last_seq(self) -> int:
        """The number of the newest event: where somebody begins who wants only what comes."""
        return await self._context.db.read(events.last_seq)

    async def check(self, actor: Actor, *, node: str = "", workspace: str = "") -> None:
        """Raise where the actor may not follow these: a stream that has begun could say so only inside."""
        await self._context.db.read(lambda c: _criteria(c, actor, job="", node=node, workspace=workspace))

    async def follow(
        self,
        actor: Actor,
        *,
        job: str = "",
        node: str = "",
        workspace: str = "",
        after_seq: int | None = None,
        idle_seconds: float = 15.0,
    ) -> AsyncIterator[Sequence[Event]]:
        """What comes after a number (None: from now on), in order and without gaps; an empty batch when nothing came.

        Ends when the caller stops. Whether the actor still may is theirs to check between batches.
        """
        criteria = await self._context.db.read(
            lambda c: _criteria(c, actor, job=job, node=node, workspace=workspace)
        )
        matches = _filter(criteria)
        seq = await self.last_seq() if after_seq is None else after_seq
        quiet = self._context.clock.monotonic()
        while True:
            mark = self._context.wakeups.mark(EVENTS)
            found, seq = await self._since(seq, mark, criteria, matches)
            now = self._context.clock.monotonic()
            if found or now - quiet >= idle_seconds:
                quiet = now
                yield found
            if not found:
                await self._context.wakeups.wait(EVENTS, timeout=LOOK_SECONDS, since=mark)

    async def _since(
        self, seq: int, mark: int, criteria: dict[str, Any], matches: Callable[[Event], bool]
    ) -> tuple[list[Event], int]:
        await self._refresh(mark)
        if self._recent and seq >= self._recent[0].seq - 1:
            found = [event for event in self._recent if event.seq > seq and matches(event)]
            return found, self._read_to or seq
        if not self._recent and self._read_to is not None and seq >= self._read_to:
            return [], seq
        known = self._read_to or 0
        found = await self._context.db.read(lambda c: events.page(c, after_seq=seq, limit=PAGE, **criteria))
        # NB: what did not match lies between; a short page has all that matches up to what was known before it.
        if len(found) == PAGE:
            return found, found[-1].seq
        return found, max(seq, known, found[-1].seq if found else 0)

    async def _refresh(self, mark: int) -> None:
        """Read what is new, once for everybody who asks at the same moment."""
        async with self._reading:
            now = self._context.clock.monotonic()
            if self._read_to is not None and self._mark >= mark and now - self._read_at < LOOK_SECONDS / 2:
                return
            before = self._context.wakeups.mark(EVENTS)
            if self._read_to is None:
                self._read_to = await self._context.db.read(events.last_seq)
            while len(await self._read_new(self._read_to)) == PAGE:
                continue
            self._mark, self._read_at = before, now

    async def _read_new(self, last: int) -> list[Event]:
        found = await self._context.db.read(lambda c: events.page(c, after_seq=last, limit=PAGE))
        self._recent.extend(found)
        if found:
            self._read_to = found[-1].seq
        return found


class Audit:
    """`services.audit`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def page(
        self, actor: Actor, *, cursor: str = "", limit: int = 100, **criteria: Any
    ) -> Page[AuditRecord]:
        """Newest first. Criteria: actor, action, subject, workspace_id, since, until."""
        require(actor, "audit:read")
        size = min(max(1, limit), PAGE)
        before = int(cursor) if cursor.isdecimal() and len(cursor) < 19 else None
        wanted = {("actor" if name == "user" else name): value for name, value in criteria.items()}
        found = await self._context.db.read(
            lambda c: audit.page(c, before_seq=before, limit=size + 1, **wanted)
        )
        return Page(tuple(found[:size]), str(found[size - 1].seq) if len(found) > size else "")


def _criteria(connection: Connection, actor: Actor, *, job: str, node: str, workspace: str) -> dict[str, Any]:
    """What the store is asked: only what this actor may see."""
    if job:
        record = workloads.find(connection, job)
        if record is None or not actor.can_see(record.workspace_id):
            raise failure(NotFoundError, "no_job", job=job)
        require(actor, "jobs:read", record.workspace_id)
        return {"subject": Subject.WORKLOAD, "subject_id": job}
    if node:
        require(actor, "nodes:read")
        return {"subject": Subject.NODE, "subject_id": node}
    if workspace:
        place = find_workspace(connection, actor, workspace)
        require(actor, "jobs:read", place.id)
        return {"workspace_ids": [place.id]}
    if actor.is_admin:
        require(actor, "jobs:read")
        return {}
    shared = [Subject.NODE] if actor.can("nodes:read") else []
    shared += [Subject.POOL] if actor.can("pools:read") else []
    if not shared:
        require_of_token(actor, "jobs:read")
    return {
        "workspace_ids": [one for one in actor.roles if actor.can("jobs:read", one)],
        "shared_subjects": shared,
    }


def _filter(criteria: dict[str, Any]) -> Callable[[Event], bool]:
    """The same as what the store does, for events in memory."""
    subject, subject_id = criteria.get("subject"), criteria.get("subject_id")
    spaces = criteria.get("workspace_ids")
    shared = frozenset(str(one) for one in criteria.get("shared_subjects", ()))

    def matches(event: Event) -> bool:
        if subject is not None and event.subject != subject:
            return False
        if subject_id is not None and event.subject_id != subject_id:
            return False
        if spaces is None:
            return True
        return event.workspace_id in spaces if event.workspace_id is not None else event.subject in shared

    return matches
