"""Client methods for jobs, their tasks, logs and events. terminal.py opens terminals in tasks."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trainyard.client.connection import Connection, loads
from trainyard.client.decode import decode
from trainyard.client.encode import encode
from trainyard.client.paging import Page, fetch_all, fetch_page
from trainyard.client.schemas import Event, Explanation, Job, JobDetail, LogLine, MetricsAnswer, Task
from trainyard.lib.ids import new_id
from trainyard.spec.workload import FINAL, Desired, State, WorkloadSpec


@dataclass(frozen=True, slots=True)
class LogPiece:
    """What a task printed, byte for byte."""

    task: str
    attempt: int
    data: bytes


class Jobs:
    """`client.jobs`: submit, look, change, wait."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def submit(self, spec: WorkloadSpec, *, key: str = "", hold: bool = False) -> JobDetail:
        """Put a job into the queue. With the same `key` it is submitted once, however often this is called."""
        headers = {"Idempotency-Key": key or new_id("k")}
        query = {"hold": "true"} if hold else None
        return await self._connection.send(
            "POST", JobDetail, "/jobs", encode(spec), headers=headers, query=query
        )

    async def submit_many(self, specs: Sequence[WorkloadSpec], *, key: str = "") -> tuple[Job, ...]:
        """Submit many at once, all or none."""
        headers = {"Idempotency-Key": key or new_id("k")}
        answer = await self._connection.request(
            "POST", "/jobs/bulk", body={"jobs": [encode(spec) for spec in specs]}, headers=headers
        )
        return tuple(decode(Job, each) for each in answer.json()["items"])

    async def dry_run(self, spec: WorkloadSpec) -> Explanation:
        """What would happen to a job now. Nothing is kept."""
        headers = {"Idempotency-Key": new_id("k")}  # looking twice is harmless
        return await self._connection.send(
            "POST", Explanation, "/jobs/explanations", encode(spec), headers=headers
        )

    async def metrics(self, job_id: str, **criteria: Any) -> MetricsAnswer:
        """What its tasks used; criteria are `metric` (several), `step`, `since`, `until`."""
        return await self._connection.get(MetricsAnswer, f"/jobs/{quote(job_id)}/metrics", query=criteria)

    async def page(self, **criteria: Any) -> Page[Job]:
        """One page of jobs, newest first; see `list` for the criteria, and `cursor`."""
        return await fetch_page(self._connection, Job, "/jobs", criteria)

    def list(self, **criteria: Any) -> AsyncIterator[Job]:
        """Jobs, newest first.

        Criteria: state (one or several), workspace, user, kind, name (a part of it), since and until (RFC 3339), limit
        (of one page), order (newest or oldest).
        """
        return fetch_all(self._connection, Job, "/jobs", criteria)

    async def get(self, job: str) -> JobDetail:
        """One job."""
        return await self._connection.get(JobDetail, _path(job))

    async def tasks(self, job: str, *, attempt: int | None = None) -> tuple[Task, ...]:
        """The tasks of its newest attempt, or of another one."""
        said = await self._connection.request("GET", f"{_path(job)}/tasks", query={"attempt": attempt})
        return tuple(decode(Task, each) for each in said.json()["items"])

    async def explain(self, job: str, *, language: str = "") -> Explanation:
        """Why it waits, or has failed; in English (en) or Chinese (zh), without a word in the language of LANG."""
        return await self._connection.get(
            Explanation, f"{_path(job)}/explanation", query={"language": language}
        )

    async def set_desired(self, job: str, desired: Desired, *, version: int | None = None) -> JobDetail:
        """Say what should become of it: run, pause or cancel. With a version: only if it is still that one."""
        return await self._connection.send(
            "PUT", JobDetail, f"{_path(job)}/desired", {"desired": str(desired)}, headers=_match(version)
        )

    async def set_priority(self, job: str, priority: int, *, version: int | None = None) -> JobDetail:
        """Change its place in the queue; refused once it has started."""
        return await self._connection.send(
            "PATCH", JobDetail, _path(job), {"priority": priority}, headers=_match(version)
        )

    async def approve(self, job: str) -> JobDetail:
        """Let a job that waits for a person into the queue."""
        return await self._connection.send("POST", JobDetail, f"{_path(job)}/approval")

    async def clone(self, job: str, changes: Mapping[str, object] | None = None) -> JobDetail:
        """Submit it again, with changes."""
        headers = {"Idempotency-Key": new_id("k")}
        return await self._connection.send(
            "POST", JobDetail, f"{_path(job)}/clones", encode(changes or {}), headers=headers
        )

    async def delete(self, job: str) -> None:
        """Forget a job that has ended, with its logs."""
        await self._connection.request("DELETE", _path(job))

    async def logs(
        self, job: str, *, task: str = "", attempt: int | None = None, tail: int | None = None
    ) -> AsyncIterator[LogPiece]:
        """What it has printed so far: all, or the last `tail` lines of each task."""
        query = {"task": task, "attempt": attempt, "tail": tail, "encoding": "base64", "follow": "false"}
        async for piece in self._log_stream(job, query):
            yield piece

    async def follow_logs(
        self, job: str, *, task: str = "", attempt: int | None = None, tail: int | None = None
    ) -> AsyncIterator[LogPiece]:
        """What it prints, until it has ended. Goes on by itself after a lost connection, without a gap or a repeat."""
        query = {"task": task, "attempt": attempt, "tail": tail, "encoding": "base64"}
        async for piece in self._log_stream(job, query):
            yield piece

    async def _log_stream(self, job: str, query: Mapping[str, Any]) -> AsyncIterator[LogPiece]:
        async for event in self._connection.stream_events(f"{_path(job)}/logs/stream", query):
            said = loads(event)
            yield LogPiece(said["task"], said["attempt"], base64.b64decode(said["data"]))

    async def log_lines(self, job: str, **criteria: Any) -> Page[LogLine]:
        """Lines with task names and times. Criteria: task, attempt, limit, tail, cursor."""
        return await fetch_page(self._connection, LogLine, f"{_path(job)}/logs", criteria)

    async def search_logs(self, job: str, text: str, **criteria: Any) -> Page[LogLine]:
        """Lines with this text in them."""
        return await fetch_page(
            self._connection, LogLine, f"{_path(job)}/logs/search", {"text": text, **criteria}
        )

    def download_logs(
        self, job: str, *, task: str = "", attempt: int | None = None, merged: bool = False
    ) -> AsyncIterator[bytes]:
        """All output as bytes; `merged`: every line with its time and task."""
        query = {"task": task, "attempt": attempt, "merged": "true" if merged else None}
        return self._connection.download(f"{_path(job)}/logs/download", query)

    def events(self, job: str) -> AsyncIterator[Event]:
        """What has happened to it, oldest first."""
        return fetch_all(self._connection, Event, f"{_path(job)}/events")

    async def follow_events(self, job: str) -> AsyncGenerator[Event]:
        """What happens to it, from the beginning until it has ended."""
        async for event in self._connection.stream_events(f"{_path(job)}/events/stream"):
            yield decode(Event, loads(event))

    async def wait(self, job: str, *, until_retained: bool = False) -> JobDetail:
        """Wait until it has ended, however long that takes; cancelling this cancels only the waiting.

        `until_retained`: its program's end is enough, where its places are kept for a look after it.
        """
        while True:
            async with aclosing(self.follow_events(job)) as events:
                async for event in events:
                    if until_retained and event.state == State.RETAINED:
                        found = await self.get(job)
                        if found.state is State.RETAINED:  # else it was at an earlier time
                            return found
            found = await self.get(job)
            if found.state in FINAL:
                return found


class Events:
    """`client.events`: everything that happens where the caller may look."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, **criteria: Any) -> AsyncIterator[Event]:
        """Events, oldest first. Criteria: node, workspace, limit."""
        return fetch_all(self._connection, Event, "/events", criteria)

    async def follow(self, **criteria: Any) -> AsyncIterator[Event]:
        """Events as they happen, after `after` (a seq) or from now on; never ends by itself."""
        async for event in self._connection.stream_events("/events/stream", criteria):
            yield decode(Event, loads(event))


def _path(job: str) -> str:
    return f"/jobs/{quote(job, safe='')}"


def _match(version: int | None) -> dict[str, str] | None:
    return None if version is None else {"If-Match": f'"{version}"'}
