"""Views of logs: lines, and several tasks merged by time. Where logs are kept is logs.py; searching is log_search.py's."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainyard.server.logs.log_files import READ_BYTES, LogStore, time_at

LONGEST_LINE = 64 * 1024  # a longer one comes in pieces
PAGE_BYTES = 4 * 2**20  # of lines in one answer, however many were asked for
# Read ahead by one answer: of each task a part of it, so that a job of a thousand tasks costs no more than one of ten.
AHEAD_BYTES = 2 * 2**20
LEAST_READ = 4096


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one task, without its newline. Times are of the piece that the line began in."""

    time: float
    task: str
    offset: int
    data: bytes
    next_offset: int


def lines_of(
    store: LogStore,
    workload_id: str,
    attempt: int,
    task: str,
    *,
    offset: int = 0,
    whole: bool = False,
    block: int = READ_BYTES,
) -> Iterator[LogLine]:
    """The lines of one task from `offset` on, read in blocks. `whole`: not the last one while its newline is missing."""
    times = store.times(workload_id, attempt, task)
    rest, begin, at = b"", offset, offset
    while True:
        part = store.read(workload_id, attempt, task, offset=at, limit=block)
        if part.next_offset == at:
            break
        at = part.next_offset
        if part.is_marker:
            if rest:
                yield LogLine(time_at(times, begin), task, begin, rest, part.offset)
            yield LogLine(time_at(times, part.offset), task, part.offset, part.data.strip(), at)
            rest, begin = b"", at
            continue
        *lines, rest = (rest + part.data).split(b"\n")
        for line in lines:
            yield LogLine(time_at(times, begin), task, begin, line, begin + len(line) + 1)
            begin += len(line) + 1
        while len(rest) > LONGEST_LINE:
            piece, rest = rest[:LONGEST_LINE], rest[LONGEST_LINE:]
            yield LogLine(time_at(times, begin), task, begin, piece, begin + len(piece))
            begin += len(piece)
    if rest and not whole:
        yield LogLine(time_at(times, begin), task, begin, rest, begin + len(rest))


def merged(
    store: LogStore,
    workload_id: str,
    attempt: int,
    offsets: Mapping[str, int],
    *,
    limit: int = 1000,
    whole: bool = False,
) -> tuple[list[LogLine], dict[str, int]]:
    """Up to `limit` lines (and PAGE_BYTES) of several tasks by time, from each one's offset on; and where to go on."""
    following, found, held = dict(offsets), [], 0
    for line in _by_time(store, workload_id, attempt, offsets, whole=whole):
        found.append(line)
        following[line.task] = line.next_offset
        held += len(line.data)
        if len(found) >= limit or held >= PAGE_BYTES:
            break
    return found, following


def is_last(found: Sequence[LogLine], *, limit: int) -> bool:
    """Whether a page ended because there was no more."""
    return len(found) < limit and sum(len(line.data) for line in found) < PAGE_BYTES


def merged_tail(
    store: LogStore, workload_id: str, attempt: int, tasks: Sequence[str], *, lines: int
) -> tuple[list[LogLine], dict[str, int]]:
    """The last `lines` lines (or PAGE_BYTES) of several tasks by time; and the offsets to go on from."""
    offsets = {task: store.tail(workload_id, attempt, task, lines=lines).offset for task in tasks}
    following, found, held = dict(offsets), deque[LogLine](), 0
    for line in _by_time(store, workload_id, attempt, offsets):
        found.append(line)
        following[line.task] = line.next_offset
        held += len(line.data)
        while len(found) > lines or (held > PAGE_BYTES and len(found) > 1):
            held -= len(found.popleft().data)
    return list(found), following


def _by_time(
    store: LogStore, workload_id: str, attempt: int, offsets: Mapping[str, int], *, whole: bool = False
) -> Iterator[LogLine]:
    block = max(LEAST_READ, min(READ_BYTES, AHEAD_BYTES // max(1, len(offsets))))
    streams = [
        lines_of(store, workload_id, attempt, task, offset=offset, whole=whole, block=block)
        for task, offset in offsets.items()
    ]
    return heapq.merge(*streams, key=lambda line: (line.time, line.task, line.offset))
