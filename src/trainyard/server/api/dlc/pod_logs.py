"""A pod's log as DLC's clients read it: the last lines, those of a span of time, or all of them page by page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainyard.lib.errors import InvalidError
from trainyard.server.logs.log_files import LogStore
from trainyard.server.logs.log_views import lines_of
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import FINAL

MOST_LINES = 100_000
MOST_BYTES = 4 << 20
PAGE_BYTES = 1 << 20
START = "start"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for."""

    cursor: str = ""
    lines: int = MOST_LINES
    since: float | None = None
    until: float | None = None


def last(store: LogStore, record: WorkloadRecord, task: TaskRecord, wanted: Wanted) -> dict[str, Any]:
    """The last lines, of the span of time where one is given."""
    key = (record.id, task.attempt, task.name)
    if wanted.since is None and wanted.until is None:
        text = store.tail(*key, lines=wanted.lines, limit=MOST_BYTES).data
    else:
        begin, end = _span(store.times(*key), wanted.since, wanted.until)
        part = store.before(*key, offset=end, limit=MOST_BYTES)
        text = part.data[max(0, begin - part.offset) :]
    lines = text.decode(errors="replace").splitlines()
    return {"Logs": lines[-wanted.lines :]}


def _span(times: list[tuple[int, float]], since: float | None, until: float | None) -> tuple[int, int | None]:
    """From which byte to which. Pieces have times; clocks may have been set between them."""
    came = [offset for offset, time in times if since is None or time >= since]
    late = [offset for offset, time in times if until is not None and time > until]
    if not came:
        return 0, 0
    return came[0], next((offset for offset in late if offset >= came[0]), None)


def page(store: LogStore, record: WorkloadRecord, task: TaskRecord, wanted: Wanted) -> dict[str, Any]:
    """The lines from a cursor on, and the cursor to go on from. A start of the job that is over is followed by the next."""
    attempt, offset = (task.attempt, 0) if wanted.cursor == START else _parsed(wanted.cursor)
    is_over = attempt < task.attempt or task.is_cleared or record.state in FINAL
    lines: list[str] = []
    size = 0
    for line in lines_of(store, record.id, attempt, task.name, offset=offset, whole=not is_over):
        lines.append(line.data.decode(errors="replace"))
        offset = line.next_offset
        size += len(line.data) + 1
        if size >= PAGE_BYTES:
            break
    if not lines and attempt < task.attempt:
        attempt, offset = attempt + 1, 0
    return {"Logs": lines, "Cursor": f"{attempt}-{offset}"}


def _parsed(cursor: str) -> tuple[int, int]:
    attempt, _, offset = cursor.partition("-")
    if (
        not (attempt.isascii() and attempt.isdigit() and offset.isascii() and offset.isdigit())
        or len(cursor) > 40
    ):
        raise InvalidError(
            f"Cursor {cursor[:40]!r} is none.", hint=f"Begin with {START}, then send what was answered."
        )
    return int(attempt), int(offset)
