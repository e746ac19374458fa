"""What jobs print: pages of lines by time, the end, a search, a download, and a live stream byte for byte.

Where output is kept is logs/log_files.py; what is told here is only of jobs that the caller may see.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import json
import time
import zlib
from collections.abc import AsyncGenerator, Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Header, Query, Request
from starlette.responses import Response, StreamingResponse

from trainyard.client.schemas import LogLine as LogLineShape
from trainyard.lib.errors import InvalidError, NotFoundError
from trainyard.server.api.http.app_state import Parts, parts_of
from trainyard.server.api.http.event_streams import END, EventStream, message
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import LARGEST_PAGE, LIMIT, answer, described, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.jobs.jobs import Id
from trainyard.server.api.shape_view import Data, when
from trainyard.server.auth.actor import Actor
from trainyard.server.logs import log_search, log_views
from trainyard.server.logs.log_files import LogStore
from trainyard.server.logs.log_search import Matches
from trainyard.server.logs.log_views import LogLine
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import FINAL, task_name, tasks_of

router = new_router("/jobs", tags=["logs"])
Task = Annotated[str, Query(max_length=80, description="Only of this task: worker-0.")]
Attempt = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Of this start.  Default: the last.")]
Cursor = Annotated[str, Query(max_length=60_000)]
Tail = Annotated[
    int | None, Query(ge=1, le=100_000, description="Only so many lines from the end of each task.")
]
STREAM = described(
    text="Messages `log` with task, attempt, offset and text (or data, in base64) as JSON.",
    media="text/event-stream",
)
# How often a follower of a silent job looks whether it has ended; output wakes it at once.
LOOK_SECONDS = 0.5
LEAST_SECONDS = 0.2  # between two looks of one who is woken by output all the time


@dataclass(frozen=True, slots=True)
class _Source:
    """Whose output: one attempt of a job, and the tasks of it that were asked for."""

    record: WorkloadRecord
    attempt: int
    tasks: tuple[str, ...]


@router.get("/{job_id}/logs", responses=described(page_of(LogLineShape)))
async def list_log_lines(
    request: Request,
    job_id: Id,
    task: Task = "",
    attempt: Attempt = None,
    tail: Annotated[int | None, Query(ge=1, le=LARGEST_PAGE, description="The last lines.")] = None,
    cursor: Cursor = "",
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = LIMIT,
) -> Response:
    """List lines of all tasks in the order of time, from the beginning or the last `tail`. `next` is never null while the job runs."""
    parts = parts_of(request)
    source = await _source(parts, await actor_of(request), job_id, task, attempt)
    if tail is not None and not cursor:
        found, following = await asyncio.to_thread(
            log_views.merged_tail, parts.logs, job_id, source.attempt, source.tasks, lines=tail
        )
    else:
        offsets = _offsets(cursor, source) if cursor else dict.fromkeys(source.tasks, 0)
        found, following = await asyncio.to_thread(
            log_views.merged, parts.logs, job_id, source.attempt, offsets, limit=limit
        )
    is_over = log_views.is_last(found, limit=limit) and source.record.state in FINAL
    shown = [_line(line, source.attempt) for line in found]
    return answer(page(shown, None if is_over else _cursor(source, following)))


@router.get("/{job_id}/logs/search", responses=described(page_of(LogLineShape)))
async def search_log(
    request: Request,
    job_id: Id,
    text: Annotated[str, Query(min_length=1, max_length=1000, description="What to look for.")],
    regex: Annotated[bool, Query(description="It is an RE2 expression.")] = False,
    ignore_case: Annotated[bool, Query()] = False,
    task: Task = "",
    attempt: Attempt = None,
    cursor: Cursor = "",
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = LIMIT,
) -> Response:
    """Find lines with a text in them, task by task. A page may be empty and still have a `next`: the log is long."""
    parts = parts_of(request)
    actor = await actor_of(request)
    source = await _source(parts, actor, job_id, task, attempt)
    places = _offsets(cursor, source) if cursor else dict.fromkeys(source.tasks, 0)
    matches = log_search.matcher(text, is_regex=regex, ignores_case=ignore_case)
    async with parts.searches.held_by(actor.user_id):
        found = await asyncio.to_thread(_search, parts.logs, source, matches, places, limit)
    is_over = all(places.get(name, 0) < 0 for name in source.tasks)
    shown = [_line(line, source.attempt) for line in found]
    return answer(page(shown, None if is_over else _cursor(source, places)))


def _search(
    logs: LogStore, source: _Source, matches: Matches, places: dict[str, int], limit: int
) -> list[LogLine]:
    """Look through task after task while there is time, and note in `places` how far that went; -1: to the end."""
    found: list[LogLine] = []
    deadline = time.monotonic() + log_search.SEARCH_SECONDS
    for name in source.tasks:
        if places.get(name, 0) < 0:  # searched to its end on an earlier page
            continue
        result = log_search.search(
            logs,
            source.record.id,
            source.attempt,
            name,
            matches,
            offset=places.get(name, 0),
            limit=limit - len(found),
            seconds=deadline - time.monotonic(),
        )
        found += result.lines
        places[name] = -1 if result.next_offset is None else result.next_offset
        if not log_views.is_last(found, limit=limit) or result.next_offset is not None:
            break
    return found


@router.get(
    "/{job_id}/logs/download",
    response_class=Response,
    responses=described(text="The output.", media="text/plain"),
)
async def download_log(
    request: Request,
    job_id: Id,
    task: Task = "",
    attempt: Attempt = None,
    merged: Annotated[bool, Query(description="Every line with its time and task.")] = False,
) -> Response:
    """Download all output: of one task byte for byte; of several merged by time, with times and names."""
    parts = parts_of(request)
    source = await _source(parts, await actor_of(request), job_id, task, attempt)
    name = f"{job_id}.{source.attempt}" + (f".{task}" if task else "") + ".log"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    pieces = (
        _merged_text(parts.logs, source)
        if merged or len(source.tasks) != 1
        else parts.logs.download(job_id, source.attempt, source.tasks[0])
    )
    return StreamingResponse(pieces, media_type="text/plain; charset=utf-8", headers=headers)


@router.get("/{job_id}/logs/stream", response_class=Response, responses=STREAM)
async def stream_log(
    request: Request,
    job_id: Id,
    task: Task = "",
    attempt: Attempt = None,
    tail: Tail = None,
    encoding: Annotated[Literal["text", "base64"], Query(description="base64 is exact.")] = "text",
    follow: Annotated[bool, Query(description="false: only what there is already.")] = True,
    last_event_id: Annotated[str, Header(alias="Last-Event-ID", max_length=60_000)] = "",
) -> Response:
    """Follow what a job prints, over all its starts, until it has ended; then `end` comes."""
    parts = parts_of(request)
    actor = await actor_of(request)
    source = await _source(parts, actor, job_id, task, attempt)
    follower = _Follower(request, task, is_text=encoding == "text", goes_on=attempt is None)
    if last_event_id:
        resumed = _resumed(last_event_id)
        if resumed is not None:
            source = await _source(parts, actor, job_id, task, resumed[0])
            follower.offsets = _zipped(resumed[1], source)
    elif tail is not None:
        follower.offsets = await asyncio.to_thread(_tails, parts.logs, source, tail)
    return EventStream(follower.messages(source, follow=follow), lambda: actor_of(request))


class _Follower:
    """One reader of a job's output: where it is in each task's. Who it is and what they may see is asked again and again."""

    def __init__(self, request: Request, task: str, *, is_text: bool, goes_on: bool) -> None:
        self._request = request
        self._parts = parts_of(request)
        self._task = task
        self._is_text = is_text
        self._goes_on = goes_on  # to later starts of the job
        self.offsets: dict[str, int] = {}
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    async def messages(self, source: _Source, *, follow: bool) -> AsyncGenerator[bytes, None]:
        job, looked = source.record.id, 0.0
        mark: Hashable = None  # whatever the record says may have been overtaken
        while True:
            is_over = self._is_over(source)  # judged before reading: what came until then is read
            has_news = False
            for body in self._read(source):
                has_news = True
                yield body
            if has_news:
                await asyncio.sleep(0)  # a job that prints without end must not hold up the others
            elif is_over and follow and self._goes_on and source.record.attempt > source.attempt:
                source = await self._source(job, source.attempt + 1)
                self.offsets = {}
                continue
            elif is_over or not follow:
                yield END
                return
            else:
                await self._parts.logs.wait(job, seconds=LOOK_SECONDS)
            if time.monotonic() - looked < LEAST_SECONDS:
                continue
            # Before the record is read: a change after it gives another mark.
            seen = await self._parts.changes.mark()
            if seen != mark:
                mark, looked = seen, time.monotonic()
                source = await self._source(job, source.attempt or None)

    async def _source(self, job: str, attempt: int | None) -> _Source:
        return await _source(self._parts, await actor_of(self._request), job, self._task, attempt)

    def _is_over(self, source: _Source) -> bool:
        """Whether nothing more can come from this attempt."""
        return source.record.state in FINAL or 0 < source.attempt < source.record.attempt

    def _read(self, source: _Source) -> Iterator[bytes]:
        logs, job = self._parts.logs, source.record.id
        sizes = {info.task: info.size for info in logs.logs(job) if info.attempt == source.attempt}
        for name in source.tasks:
            at = self.offsets.get(name, 0)
            if sizes.get(name, 0) <= at:
                continue
            part = logs.read(job, source.attempt, name, offset=at)
            self.offsets[name] = part.next_offset
            said: dict[str, Any] = {"task": name, "attempt": source.attempt, "offset": part.offset}
            if self._is_text:
                said["text"] = self._decoder(name).decode(part.data)
            else:
                said["data"] = base64.b64encode(part.data).decode()
            yield message("log", said, _cursor(source, self.offsets))

    def _decoder(self, name: str) -> codecs.IncrementalDecoder:
        """A letter may be cut in two by a read."""
        if name not in self._decoders:
            self._decoders[name] = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return self._decoders[name]


async def _source(parts: Parts, actor: Actor, job: str, task: str, attempt: int | None) -> _Source:
    record = await parts.services.jobs.get(actor, job)
    wanted = record.attempt if attempt is None else attempt
    if wanted == 0:  # it has not started; what its tasks will be called is known all the same
        names = tuple(task_name(role.name, number) for role, number in tasks_of(record.spec))
    else:
        names = tuple(each.name for each in await parts.services.jobs.tasks(actor, job, attempt=wanted))
    if not names and wanted > record.attempt:
        raise NotFoundError(
            f"The job {job} was not started {wanted} times.", hint=f"It has {record.attempt}."
        )
    if task and task not in names:
        raise NotFoundError(f"The job {job} has no task {task!r}.", hint=f"It has {', '.join(names[:10])}.")
    if wanted == 0:
        return _Source(record, 0, ())
    return _Source(record, wanted, (task,) if task else names)


def _tails(logs: LogStore, source: _Source, lines: int) -> dict[str, int]:
    job, attempt = source.record.id, source.attempt
    return {name: logs.tail(job, attempt, name, lines=lines).offset for name in source.tasks}


def _line(line: LogLine, attempt: int) -> Data:
    return {
        "task": line.task,
        "attempt": attempt,
        "offset": line.offset,
        "time": when(line.time) if line.time else None,
        "text": line.data.decode(errors="backslashreplace"),
    }


def _merged_text(logs: LogStore, source: _Source) -> Iterator[bytes]:
    offsets: Mapping[str, int] = dict.fromkeys(source.tasks, 0)
    width = max((len(name) for name in source.tasks), default=0)
    while True:
        found, offsets = log_views.merged(logs, source.record.id, source.attempt, offsets)
        if not found:
            return
        yield b"".join(
            f"{datetime.fromtimestamp(line.time, UTC).isoformat(timespec='milliseconds')[:-6]}Z {line.task:<{width}} | ".encode()
            + line.data
            + b"\n"
            for line in found
        )


# -- where a reader is: the attempt, and an offset for each task in the order of ranks, small enough for an address


def _cursor(source: _Source, offsets: Mapping[str, int]) -> str:
    text = json.dumps(
        [source.attempt, *(offsets.get(name, 0) for name in source.tasks)], separators=(",", ":")
    )
    if len(source.tasks) <= 4:
        return text.strip("[]").replace(",", ".")
    return "z" + base64.urlsafe_b64encode(zlib.compress(text.encode(), 1)).decode().rstrip("=")


def _resumed(cursor: str) -> tuple[int, list[int]] | None:
    try:
        if cursor.startswith("z"):
            packed = base64.urlsafe_b64decode(cursor[1:] + "=" * (-len(cursor[1:]) % 4))
            inflate = zlib.decompressobj()
            numbers = json.loads(inflate.decompress(packed, 1 << 20))
        else:
            numbers = [int(word) for word in cursor.split(".")]
    except (ValueError, zlib.error, binascii.Error):
        return None
    if not isinstance(numbers, list) or not all(
        isinstance(each, int) and -1 <= each < 2**62 for each in numbers
    ):
        return None
    return (numbers[0], numbers[1:]) if numbers and 0 < numbers[0] < 2**31 else None


def _offsets(cursor: str, source: _Source) -> dict[str, int]:
    resumed = _resumed(cursor)
    if resumed is None or resumed[0] != source.attempt:
        if cursor == "0" and source.attempt == 0:
            return {}
        raise InvalidError(
            "This cursor is of another log.", hint="Send `next` as it was answered, with the same query."
        )
    return _zipped(resumed[1], source)


def _zipped(numbers: list[int], source: _Source) -> dict[str, int]:
    return dict(zip(source.tasks, numbers, strict=False))
