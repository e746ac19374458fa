"""Views of logs: several tasks merged by time, and what is found in one. Where logs are kept is logs.py."""

from __future__ import annotations

import heapq
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainyard.lib.errors import InvalidError, UnsupportedError
from trainyard.server.logs import READ_BYTES, LogStore, time_at

LONGEST_LINE = 64 * 1024  # a longer one comes in pieces
SCAN_BYTES = 32 * 2**20  # in one search; the next goes on from where it stopped
SEARCH_SECONDS = 10.0
BLOCK_BYTES = 2 * 2**20
BLOCK_LINES = 20_000


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one task, without its newline. Times are of the piece that the line began in."""

    time: float
    task: str
    offset: int
    data: bytes
    next_offset: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found; it goes on from `next_offset`, unless that is None."""

    lines: tuple[LogLine, ...]
    next_offset: int | None


def lines_of(
    store: LogStore, workload_id: str, attempt: int, task: str, *, offset: int = 0, whole: bool = False
) -> Iterator[LogLine]:
    """The lines of one task from `offset` on. `whole`: not the last one while its newline is missing."""
    times = store.times(workload_id, attempt, task)
    rest, begin, at = b"", offset, offset
    while True:
        part = store.read(workload_id, attempt, task, offset=at, limit=READ_BYTES)
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
    """Up to `limit` lines of several tasks by time, from each task's offset on; and the offsets to go on from."""
    streams = [
        lines_of(store, workload_id, attempt, task, offset=offset, whole=whole)
        for task, offset in offsets.items()
    ]
    following, found = dict(offsets), []
    for line in heapq.merge(*streams, key=lambda line: (line.time, line.task, line.offset)):
        found.append(line)
        following[line.task] = line.next_offset
        if len(found) >= limit:
            break
    return found, following


def merged_tail(
    store: LogStore, workload_id: str, attempt: int, tasks: Sequence[str], *, lines: int
) -> tuple[list[LogLine], dict[str, int]]:
    """The last `lines` lines of several tasks by time; and the offsets to go on from."""
    offsets = {task: store.tail(workload_id, attempt, task, lines=lines).offset for task in tasks}
    found, following = merged(store, workload_id, attempt, offsets, limit=lines * max(1, len(tasks)))
    return found[-lines:] if lines else [], following


async def follow_merged(
    store: LogStore,
    workload_id: str,
    attempt: int,
    offsets: Mapping[str, int],
    *,
    is_ended: Callable[[], bool] = lambda: False,
) -> AsyncIterator[list[LogLine]]:
    """Lines of several tasks as they come, in batches by time."""
    at = dict(offsets)
    while True:
        last = is_ended()
        found, at = merged(store, workload_id, attempt, at, whole=not last)
        if found:
            yield found
        elif last:
            return
        else:
            await store.wait(workload_id)


def search(
    store: LogStore,
    workload_id: str,
    attempt: int,
    task: str,
    pattern: str,
    *,
    is_regex: bool = False,
    ignores_case: bool = False,
    offset: int = 0,
    limit: int = 100,
    scan_bytes: int = SCAN_BYTES,
) -> Found:
    """Lines of one task that hold `pattern`, from `offset` on, within `scan_bytes`. Blocks: call it in a thread."""
    if not pattern:
        raise InvalidError("there is nothing to search for", hint="Give a word or an expression.")
    size = store.read(workload_id, attempt, task, offset=offset, limit=1).size
    matches = _grep if is_regex else _find
    found: list[LogLine] = []
    for block, stop in _blocks(
        lines_of(store, workload_id, attempt, task, offset=offset), offset + scan_bytes
    ):
        for line in matches(block, pattern, ignores_case):
            found.append(line)
            if len(found) >= limit:
                return Found(tuple(found), line.next_offset if line.next_offset < size else None)
        if stop is not None:
            return Found(tuple(found), stop)
    return Found(tuple(found), None)


def _blocks(lines: Iterator[LogLine], end: int) -> Iterator[tuple[list[LogLine], int | None]]:
    """Lines in blocks of a size that memory does not notice; with the last of them, where `end` made us stop."""
    block: list[LogLine] = []
    begin = -1
    for line in lines:
        if line.offset >= end:
            yield block, line.offset
            return
        begin = line.offset if begin < 0 else begin
        block.append(line)
        if line.next_offset - begin >= BLOCK_BYTES or len(block) >= BLOCK_LINES:
            yield block, None
            block, begin = [], -1
    if block:
        yield block, None


def _find(lines: Sequence[LogLine], pattern: str, ignores_case: bool) -> Iterator[LogLine]:
    wanted = pattern.encode(errors="surrogateescape")
    if ignores_case:
        wanted = wanted.lower()
    for line in lines:
        if wanted in (line.data.lower() if ignores_case else line.data):
            yield line


def _grep(lines: Sequence[LogLine], pattern: str, ignores_case: bool) -> Iterator[LogLine]:
    """By grep in a process of its own: an expression that takes forever is ended, and holds nobody up."""
    program = shutil.which("grep")
    if program is None:
        raise UnsupportedError("the server has no grep", hint="Install it, or search for a plain word.")
    if "\n" in pattern or "\0" in pattern:
        raise InvalidError("an expression is one line")
    words = [program, "-anE", *(["-i"] if ignores_case else []), "-e", pattern]
    try:
        done = subprocess.run(
            words,
            input=b"\n".join(line.data.replace(b"\0", b" ") for line in lines) + b"\n",
            capture_output=True,
            timeout=SEARCH_SECONDS,
            check=False,
            env={"LC_ALL": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired as error:
        raise InvalidError(
            f"the expression {pattern!r} takes too long", hint="Search for something simpler."
        ) from error
    if done.returncode > 1:
        said = done.stderr.decode(errors="replace").strip().rpartition(": ")[2]
        raise InvalidError(f"{pattern!r} is no expression: {said}", hint="Use POSIX extended expressions.")
    for row in done.stdout.split(b"\n"):
        number = row.partition(b":")[0]
        if number.isdigit() and int(number) <= len(lines):
            yield lines[int(number) - 1]
