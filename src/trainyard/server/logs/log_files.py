"""What tasks print, in files: kept exactly once by offset, bounded in size, read by many while it grows.

    <root>/<last two of the workload>/<workload>/<attempt>.<task>.<offset>   a segment: the output from byte `offset` on
                                                 <attempt>.<task>.times      (offset, time) of pieces as they came;
                                                                             a log of one piece has the file's own
                                                 <attempt>.<task>.more       there is more than one segment

Nothing is known but what these files say, so a crash loses nothing that was written, and another process may read along. A
log that outgrows the limit loses segments from its middle: its beginning and its end stay. Offsets are those of the
task's output, whatever was cut. Searching and merging several tasks is log_views.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.lib.errors import ConflictError, InvalidError
from trainyard.lib.files import open_append
from trainyard.lib.private_folder import make_private
from trainyard.server.disk_space import NO_ROOM, disk_full
from trainyard.server.logs.log_masks import Mask, MaskedEnd

POLL_SECONDS = 0.5  # another process may write; ours wakes readers at once
READ_BYTES = 256 * 1024
SEGMENTS = 16  # a log at its limit has so many; half of them are its beginning
LEAST_SEGMENT = 4096
OPEN_FILES = 256
FINE_RECORDS = (
    10_000  # times of the first pieces are kept to 10 ms, later ones to half a second: the index stays small
)
FINE_SECONDS, COARSE_SECONDS = 0.01, 0.5

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_SEGMENT = re.compile(r"(\d+)\.(.+)\.(\d{15})\Z")
_TIME = struct.Struct("<Qd")


@dataclass(frozen=True, slots=True)
class LogPart:
    """Some of a log. Where something is missing, `data` says so instead; go on from `next_offset` in any case."""

    offset: int
    data: bytes
    next_offset: int
    size: int  # of the whole output so far
    is_marker: bool = False


@dataclass(frozen=True, slots=True)
class LogInfo:
    """One task's log."""

    attempt: int
    task: str
    size: int  # of the output
    kept: int  # of it, on disk


@dataclass(slots=True)
class _Writing:
    """The end of a log that is being written."""

    handle: int
    start: int  # of the segment
    size: int  # of the whole output
    times: int  # the index, open for writing; -1: there is none yet, and the file's own time is the first piece's
    first_time: float
    records: int
    last_time: float


class LogStore:
    """All logs below one folder. `append`, `skip` and `size` are for one writer, the engine of the leading server."""

    def __init__(self, root: Path, *, limit_bytes: int = 256 * 2**20) -> None:
        self._root = root
        self._limit = max(limit_bytes, SEGMENTS * LEAST_SEGMENT)
        self._segment = self._limit // SEGMENTS
        self._writing: OrderedDict[tuple[str, int, str], _Writing] = OrderedDict()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._masks: dict[str, Mask] = {}  # by attempt
        self._ends: dict[tuple[str, int, str], MaskedEnd] = {}

    # secrets

    def hide(self, attempt_id: str, values: Collection[str]) -> None:
        """Store stars where tasks of an attempt print one of these, from now on."""
        mask = Mask(values)
        if mask.pieces:
            self._masks[attempt_id] = mask

    def unhide(self, attempt_id: str) -> None:
        """Forget what to hide: nothing more comes of this attempt."""
        if self._masks.pop(attempt_id, None) is not None:
            for key in [key for key in self._ends if f"{key[0]}.{key[1]}" == attempt_id]:
                del self._ends[key]

    def cleaned(self, attempt_id: str, text: str) -> str:
        """A message about an attempt without what is to be hidden."""
        mask = self._masks.get(attempt_id)
        return text if mask is None else mask.cleaned(text)

    def _masked(self, key: tuple[str, int, str], size: int, data: bytes) -> bytes:
        """What to store for output that begins at `size`; what is stored of its beginning already is put right."""
        mask = self._masks.get(f"{key[0]}.{key[1]}")
        if mask is None:
            return data
        end = self._ends.get(key)
        if end is None or end.size != size:
            end = self._ends[key] = MaskedEnd(size)
        old = end.shown
        fresh, before = end.feed(mask, data)
        if before != old:
            self._rewrite(key, size - len(before), before)
        return fresh

    def _rewrite(self, key: tuple[str, int, str], offset: int, data: bytes) -> None:
        """Put other bytes in the place of stored ones, as many."""
        for start, length in self._segments(*key):
            begin, end = max(start, offset), min(start + length, offset + len(data))
            if begin < end:
                handle = os.open(self._segment_path(key, start), os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.pwrite(handle, data[begin - offset : end - offset], begin - start)
                finally:
                    os.close(handle)

    # writing

    def append(
        self, workload_id: str, attempt: int, task: str, offset: int, data: bytes, time: float
    ) -> None:
        """Keep output that begins at `offset`. What is here already is dropped; a gap is a ConflictError.

        Written when it returns, in the sense that our own death loses nothing.
        """
        key = (workload_id, attempt, task)
        try:
            writing = self._open(key)
        except OSError as error:
            raise _failure(error, task, workload_id) from error
        if offset > writing.size:
            raise ConflictError(
                f"the log of {task} in {workload_id} has {writing.size} bytes, and is given what follows {offset}",
                hint="Send what is missing first, or skip it.",
            )
        if offset + len(data) <= writing.size:
            return
        try:
            self._note_time(key, writing, time)
            rest = memoryview(self._masked(key, writing.size, data[writing.size - offset :]))
            while rest:
                if writing.size - writing.start >= self._segment:
                    self._turn(key, writing, writing.size)
                room = self._segment - (writing.size - writing.start)
                done = os.write(writing.handle, rest[:room])
                writing.size += done
                rest = rest[done:]
            if writing.times < 0:
                os.utime(writing.handle, (writing.first_time, writing.first_time))
        except OSError as error:
            self._close(key)  # what is true is on the disk, and read again from there
            self._ends.pop(key, None)
            raise _failure(error, task, workload_id) from error
        finally:
            self._wake(workload_id)

    def skip(self, workload_id: str, attempt: int, task: str, offset: int, time: float) -> None:
        """Go on at `offset`; what is missing before it is lost, and readers are told so."""
        key = (workload_id, attempt, task)
        try:
            writing = self._open(key)
            if offset > writing.size:
                self._note_time(key, writing, time)
                self._turn(key, writing, offset)
                writing.size = offset
                self._wake(workload_id)
        except OSError as error:
            self._close(key)
            raise _failure(error, task, workload_id) from error

    def size(self, workload_id: str, attempt: int, task: str) -> int:
        """How many bytes of a task's output were taken, as the disk says."""
        self._close((workload_id, attempt, task))
        return _size(self._segments(workload_id, attempt, task))

    def _open(self, key: tuple[str, int, str]) -> _Writing:
        """The end of a log, for writing."""
        writing = self._writing.get(key)
        if writing is not None:
            if os.fstat(writing.handle).st_size == writing.size - writing.start:
                self._writing.move_to_end(key)
                return writing
            self._close(key)  # somebody else wrote
        segments = self._segments(*key)
        start = segments[-1][0] if segments else 0
        try:
            handle = open_append(self._segment_path(key, start))
        except FileNotFoundError:
            make_private(self._folder(key[0]))
            handle = open_append(self._segment_path(key, start))
        writing = _Writing(handle, start, _size(segments), -1, 0.0, 0, 0.0)
        if segments:
            writing.first_time = writing.last_time = os.fstat(handle).st_mtime
            writing.records = 1
            if self._times_path(key).exists():
                self._open_times(key, writing)
        self._writing[key] = writing
        while len(self._writing) > OPEN_FILES:
            self._close(next(iter(self._writing)))
        return writing

    def _turn(self, key: tuple[str, int, str], writing: _Writing, offset: int) -> None:
        """Begin another segment, and cut the middle of a log that is too long."""
        os.close(open_append(self._more_path(key)))  # first: who does not find it looks no further
        handle = open_append(self._segment_path(key, offset))
        os.close(writing.handle)
        writing.handle, writing.start = handle, offset
        segments = self._segments(*key)
        middle = [start for start, _ in segments if start >= self._limit // 2]
        # One is being written: with it and the beginning the log stays below the limit.
        for start in middle[: -(SEGMENTS // 2)]:
            with suppress(FileNotFoundError):
                self._segment_path(key, start).unlink()

    def _open_times(self, key: tuple[str, int, str], writing: _Writing) -> None:
        writing.times = open_append(self._times_path(key))
        records = _repair_times(writing.times, writing.size)
        if not records:
            os.write(writing.times, _TIME.pack(0, writing.first_time))
        writing.records = max(1, len(records))
        writing.last_time = records[-1][1] if records else writing.first_time

    def _note_time(self, key: tuple[str, int, str], writing: _Writing, time: float) -> None:
        """Note when the next piece came. Most logs are one piece: those have no index."""
        if not writing.records:
            writing.first_time = writing.last_time = time
            writing.records = 1
            return
        gap = FINE_SECONDS if writing.records < FINE_RECORDS else COARSE_SECONDS
        if time - writing.last_time >= gap:
            if writing.times < 0:
                self._open_times(key, writing)
            os.write(writing.times, _TIME.pack(writing.size, time))
            writing.records += 1
            writing.last_time = time

    def _close(self, key: tuple[str, int, str]) -> None:
        writing = self._writing.pop(key, None)
        if writing is not None:
            os.close(writing.handle)
            if writing.times >= 0:
                os.close(writing.times)

    def close(self) -> None:
        """Close all files; twice is no error, and writing opens them again."""
        for key in list(self._writing):
            self._close(key)

    # reading

    def read(
        self, workload_id: str, attempt: int, task: str, *, offset: int = 0, limit: int = READ_BYTES
    ) -> LogPart:
        """Up to `limit` bytes from `offset` on; empty at the end. A log that is not there is empty."""
        segments = self._segments(workload_id, attempt, task)
        size = _size(segments)
        offset = min(max(offset, 0), size)
        found = bisect_right([start for start, _ in segments], offset) - 1
        start, length = segments[found] if found >= 0 else (0, 0)
        if offset >= start + length:
            following = [each for each, _ in segments if each > offset]
            if offset >= size or not following:
                return LogPart(offset, b"", offset, size)
            return LogPart(offset, _marker(following[0] - offset), following[0], size, is_marker=True)
        path = self._segment_path((workload_id, attempt, task), start)
        try:
            with path.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), max(1, limit), offset - start)
        except FileNotFoundError:  # cut just now
            return LogPart(offset, b"", start + length, size)
        return LogPart(offset, data, offset + len(data), size)

    def before(
        self, workload_id: str, attempt: int, task: str, *, offset: int | None = None, limit: int = READ_BYTES
    ) -> LogPart:
        """Up to `limit` bytes that end at `offset` (None: the end), beginning with a whole line where that is possible."""
        size = _size(self._segments(workload_id, attempt, task))
        end = size if offset is None else min(max(offset, 0), size)
        begin = max(0, end - limit)
        data, at = [], begin
        while at < end:
            part = self.read(workload_id, attempt, task, offset=at, limit=end - at)
            if part.next_offset <= at:
                break
            data.append(part.data)
            at = part.next_offset
        text = b"".join(data)
        if begin > 0:
            newline = text.find(b"\n")
            if 0 <= newline < len(text) - 1:
                begin, text = begin + newline + 1, text[newline + 1 :]
        return LogPart(begin, text, end, size)

    def tail(
        self, workload_id: str, attempt: int, task: str, *, lines: int, limit: int = 4 * 2**20
    ) -> LogPart:
        """The last `lines` lines, not more than `limit` bytes."""
        want = max(lines, 0)
        block = min(limit, 64 * 1024)
        while True:
            part = self.before(workload_id, attempt, task, limit=block)
            body = part.data[:-1] if part.data.endswith(b"\n") else part.data
            if body.count(b"\n") + 1 > want or part.offset == 0 or block >= limit:
                break
            block = min(limit, block * 4)
        if want == 0:
            return LogPart(part.size, b"", part.size, part.size)
        cut = len(body)
        for _ in range(want):
            cut = body.rfind(b"\n", 0, cut)
            if cut < 0:
                return part
        return LogPart(part.offset + cut + 1, part.data[cut + 1 :], part.next_offset, part.size)

    def download(self, workload_id: str, attempt: int, task: str) -> Iterator[bytes]:
        """All of a log as it is now, in pieces."""
        offset, end = 0, _size(self._segments(workload_id, attempt, task))
        while offset < end:
            part = self.read(workload_id, attempt, task, offset=offset, limit=min(READ_BYTES, end - offset))
            if part.next_offset <= offset:
                return
            yield part.data
            offset = part.next_offset

    async def follow(
        self,
        workload_id: str,
        attempt: int,
        task: str,
        *,
        offset: int = 0,
        is_ended: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[LogPart]:
        """Parts as they come, from `offset` on. Ends when `is_ended` says that nothing more comes and all was read."""
        while True:
            last = is_ended()  # before reading: what came until then is read
            part = self.read(workload_id, attempt, task, offset=offset)
            if part.data:
                yield part
            elif last and part.next_offset == offset:
                return
            elif part.next_offset == offset:
                await self.wait(workload_id)
            offset = part.next_offset

    async def wait(self, workload_id: str, *, seconds: float = POLL_SECONDS) -> None:
        """Wait until something of a workload was written by this process, or `seconds` have passed."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(workload_id, set())
        waiting.add(woken)
        try:
            await asyncio.wait([woken], timeout=seconds)
        finally:
            woken.cancel()
            waiting.discard(woken)
            if not waiting and self._waiting.get(workload_id) is waiting:
                del self._waiting[workload_id]

    def wake(self, workload_id: str) -> None:
        """Have those who wait for this workload look again, because it has ended."""
        self._wake(workload_id)

    def _wake(self, workload_id: str) -> None:
        for woken in self._waiting.pop(workload_id, ()):
            with suppress(RuntimeError):  # its loop was closed
                woken.get_loop().call_soon_threadsafe(_resolve, woken)

    def times(self, workload_id: str, attempt: int, task: str) -> list[tuple[int, float]]:
        """(offset, time) of pieces as they came, oldest first."""
        key = (workload_id, attempt, task)
        try:
            data = self._times_path(key).read_bytes()
        except FileNotFoundError:
            segments = self._segments(*key)
            if not segments:
                return []
            with suppress(FileNotFoundError):
                return [(0, self._segment_path(key, segments[0][0]).stat().st_mtime)]
            return []
        return [_TIME.unpack_from(data, at) for at in range(0, len(data) - _TIME.size + 1, _TIME.size)]

    def logs(self, workload_id: str) -> list[LogInfo]:
        """All logs of a workload."""
        found: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for attempt, task, start, length in self._all_segments(workload_id):
            found.setdefault((attempt, task), []).append((start, length))
        return [
            LogInfo(attempt, task, _size(sorted(segments)), sum(length for _, length in segments))
            for (attempt, task), segments in sorted(found.items())
        ]

    # keeping house

    def delete(self, workload_id: str) -> None:
        """Remove all logs of a workload; no error where there are none."""
        for key in [key for key in list(self._writing) if key[0] == workload_id]:  # maybe on another thread
            self._close(key)
        shutil.rmtree(self._folder(workload_id), ignore_errors=True)
        self._wake(workload_id)

    def workloads(self) -> Iterator[str]:
        """Every workload that has logs here."""
        for shard in _scan(self._root):
            for folder in _scan(Path(shard.path)):
                yield folder.name

    def _folder(self, workload_id: str) -> Path:
        return self._root / _checked(workload_id)[-2:] / workload_id

    def _segment_path(self, key: tuple[str, int, str], start: int) -> Path:
        return self._folder(key[0]) / f"{int(key[1])}.{_checked(key[2])}.{start:015d}"

    def _more_path(self, key: tuple[str, int, str]) -> Path:
        return self._folder(key[0]) / f"{int(key[1])}.{_checked(key[2])}.more"

    def _times_path(self, key: tuple[str, int, str]) -> Path:
        return self._folder(key[0]) / f"{int(key[1])}.{_checked(key[2])}.times"

    def _segments(self, workload_id: str, attempt: int, task: str) -> list[tuple[int, int]]:
        """(offset, length) of the segments of one log, in order. One `stat` for all but long logs."""
        key = (workload_id, attempt, task)
        if not self._more_path(key).exists():
            try:
                return [(0, self._segment_path(key, 0).stat().st_size)]
            except FileNotFoundError:
                return []
        return sorted(
            (start, length)
            for number, name, start, length in self._all_segments(workload_id)
            if number == attempt and name == task
        )

    def _all_segments(self, workload_id: str) -> Iterator[tuple[int, str, int, int]]:
        for entry in _scan(self._folder(workload_id)):
            match = _SEGMENT.match(entry.name)
            if match:
                with suppress(FileNotFoundError):  # cut just now
                    yield int(match[1]), match[2], int(match[3]), entry.stat().st_size


def time_at(times: list[tuple[int, float]], offset: int) -> float:
    """When the byte at `offset` came, from what `LogStore.times` says."""
    found = bisect_right(times, (offset, float("inf"))) - 1
    return times[max(found, 0)][1] if times else 0.0


def _failure(error: OSError, task: str, workload_id: str) -> OSError:
    """A full disk is told as such: whoever writes tries again when there is room."""
    if error.errno not in NO_ROOM:
        return error
    return disk_full(f"The log of {task} in {workload_id} finds no room on the server's disk.")


def _checked(name: str) -> str:
    if not _NAME.match(name) or len(name) > 200:
        raise InvalidError(f"{name!r} cannot be the name of a workload or a task")
    return name


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(segments: list[tuple[int, int]]) -> int:
    return sum(segments[-1]) if segments else 0


def _marker(missing: int) -> bytes:
    return f"\n[trainyard: {missing} bytes of output are not kept here]\n".encode()


def _repair_times(handle: int, size: int) -> list[tuple[int, float]]:
    """Cut off what a crash left half-written, or ahead of the log; what stays."""
    with open(f"/proc/self/fd/{handle}", "rb") as file:  # noqa: PTH123  # ours is open for writing only
        data = file.read()
    records = [_TIME.unpack_from(data, at) for at in range(0, len(data) - _TIME.size + 1, _TIME.size)]
    while records and records[-1][0] > size:
        records.pop()
    if len(records) * _TIME.size != len(data):
        os.ftruncate(handle, len(records) * _TIME.size)
    return records


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
