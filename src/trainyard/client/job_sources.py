"""Schemas and client methods for code sources, templates and schedules, from which jobs are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from trainyard.client.connection import Connection
from trainyard.client.encode import encode
from trainyard.client.paging import fetch_all
from trainyard.client.schemas import JobDetail
from trainyard.lib.ids import new_id
from trainyard.spec.workload import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSource:
    """A repository that jobs of a workspace check out."""

    id: str
    name: str
    workspace: str  # its name
    url: str
    branch: str
    commit: str
    target: str
    has_token: bool
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job that is submitted by the clock."""

    id: str
    name: str
    workspace: str  # its name
    user: str  # whose rights it has
    cron: str
    timezone: str
    overlap: str  # what happens while the last one runs: skip, allow, replace
    is_active: bool
    next_at: datetime | None
    last_at: datetime | None
    last_job: str
    message: str  # why the last one was not submitted, or why it is paused
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDetail(Schedule):
    """A schedule with its next times and its job."""

    upcoming: tuple[datetime, ...]
    spec: WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A job that is kept to be submitted again."""

    id: str
    name: str
    scope: str  # personal, workspace, all
    workspace: str  # its name, where it is one's
    user: str
    description: str
    created_at: datetime
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateDetail(Template):
    """A template with its job. Values of variables that are named like secrets are shown as ***."""

    spec: WorkloadSpec


class CodeSources:
    """`client.codes`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[CodeSource]:
        """All that the caller's workspaces have."""
        return fetch_all(self._connection, CodeSource, "/code-sources")

    async def get(self, source: str) -> CodeSource:
        """One, by id or name."""
        return await self._connection.get(CodeSource, _path(source))

    async def add(self, name: str, url: str, **options: str) -> CodeSource:
        """Take a repository in. Options: workspace, branch, commit, target, token."""
        return await self._connection.send(
            "POST", CodeSource, "/code-sources", {"name": name, "url": url, **options}
        )

    async def change(self, source: str, **changes: Any) -> CodeSource:
        """Change name, url, branch, commit, target or token."""
        return await self._connection.send("PATCH", CodeSource, _path(source), changes)

    async def remove(self, source: str) -> None:
        """Forget one."""
        await self._connection.request("DELETE", _path(source))


class Schedules:
    """`client.schedules`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Schedule]:
        """All of the caller's workspaces."""
        return fetch_all(self._connection, Schedule, "/schedules")

    async def get(self, schedule: str) -> ScheduleDetail:
        """One, by id or name."""
        return await self._connection.get(ScheduleDetail, f"/schedules/{quote(schedule, safe='')}")

    async def add(
        self, name: str, cron: str, spec: WorkloadSpec | None = None, **options: Any
    ) -> ScheduleDetail:
        """Submit a job by the clock. Options: from_job, timezone, overlap."""
        body = {"name": name, "cron": cron, **options}
        if spec is not None:
            body["job"] = encode(spec)
        return await self._connection.send("POST", ScheduleDetail, "/schedules", body)

    async def change(self, schedule: str, **changes: Any) -> ScheduleDetail:
        """Change name, cron, timezone, overlap, job or is_active."""
        path = f"/schedules/{quote(schedule, safe='')}"
        return await self._connection.send("PATCH", ScheduleDetail, path, encode(changes))

    async def run(self, schedule: str) -> JobDetail:
        """Submit its job now."""
        return await self._connection.send("POST", JobDetail, f"/schedules/{quote(schedule, safe='')}/runs")

    async def remove(self, schedule: str) -> None:
        """Forget one."""
        await self._connection.request("DELETE", f"/schedules/{quote(schedule, safe='')}")


class Templates:
    """`client.templates`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> AsyncIterator[Template]:
        """All that the caller may use."""
        return fetch_all(self._connection, Template, "/templates")

    async def get(self, template: str) -> TemplateDetail:
        """One, by id or name."""
        return await self._connection.get(TemplateDetail, f"/templates/{quote(template, safe='')}")

    async def save(self, name: str, spec: WorkloadSpec | None = None, **options: str) -> TemplateDetail:
        """Keep a job. Options: from_job, scope, workspace, description."""
        body: dict[str, Any] = {"name": name, **options}
        if spec is not None:
            body["job"] = encode(spec)
        return await self._connection.send("POST", TemplateDetail, "/templates", body)

    async def submit(
        self, template: str, changes: Mapping[str, Any] | None = None, *, key: str = ""
    ) -> JobDetail:
        """Submit a job from one, with changes; `role` in them changes every role."""
        path = f"/templates/{quote(template, safe='')}/jobs"
        headers = {"Idempotency-Key": key or new_id("k")}
        return await self._connection.send("POST", JobDetail, path, encode(changes or {}), headers=headers)

    async def remove(self, template: str) -> None:
        """Forget one."""
        await self._connection.request("DELETE", f"/templates/{quote(template, safe='')}")


def _path(source: str) -> str:
    return f"/code-sources/{quote(source, safe='')}"
