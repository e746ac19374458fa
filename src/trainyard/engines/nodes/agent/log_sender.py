"""Sending logs: only what is new, by offset, no more at once than the server keeps up with; what it has is freed here."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import OrderedDict
from typing import Any

from . import kernel
from .tasks.folder import TaskFolder, open_regular

WINDOW = 8 * 1024 * 1024  # on the way at most
PIECE = 256 * 1024  # of one task in one frame, so that a chatty one does not hold up the others
FRAME = 1024 * 1024
COALESCE_SECONDS = 0.008  # lines that come within it travel together
COALESCE_BYTES = 65536  # so much at once is not worth waiting for more
FREE_STEP = 4 * 1024 * 1024  # freed at once
KEPT = 1024 * 1024  # behind what the server has, in case that its machine forgets the last second


class Stream:
    """What of one task's log was sent to, and taken by, the server that is connected."""

    __slots__ = ("acked", "folder", "freed", "is_final", "is_new", "is_watched", "sent", "watch")

    def __init__(self, folder: TaskFolder) -> None:
        self.folder = folder
        self.sent = -1  # -1: the server has not said from where
        self.acked = 0
        self.freed = 0
        self.watch = -1
        self.is_watched = False
        self.is_new = False  # launched just now: nothing of it can be missing
        self.is_final = False  # nobody writes to the log any more

    def begin(self, offset: int) -> None:
        """Send from `offset` on, or from what is still here behind it."""
        self.sent = self.acked = _first_data(self.folder, offset) if offset or not self.is_new else 0
        self.is_new = False

    @property
    def is_through(self) -> bool:
        """Whether the server has all of it."""
        return self.is_final and self.sent >= 0 and self.acked >= self.folder.log_size()

    def take(self, limit: int) -> bytes:
        """The next bytes to send."""
        try:
            handle = open_regular(self.folder.file("log"))
        except OSError:  # removed meanwhile, or a task put something else in its place
            return b""
        try:
            data = os.pread(handle, limit, self.sent)
        finally:
            os.close(handle)
        self.sent += len(data)
        return data

    def acknowledge(self, offset: int) -> int:
        """The server has it up to `offset`. Returns how many bytes are no longer on the way."""
        gained = max(0, min(offset, self.sent) - self.acked)
        self.acked += gained
        if self.acked - KEPT - self.freed >= FREE_STEP:
            self._free(self.acked - KEPT)
        return gained

    def _free(self, end: int) -> None:
        with contextlib.suppress(OSError):
            handle = open_regular(self.folder.file("log"), os.O_WRONLY)
            try:
                kernel.punch_hole(handle, 0, end)
            finally:
                os.close(handle)
        self.freed = end  # where the file system cannot, we do not try again before the next step


def _first_data(folder: TaskFolder, offset: int) -> int:
    """`offset`, or the end of the hole that it stands in."""
    try:
        handle = open_regular(folder.file("log"))
    except OSError:
        return offset
    try:
        return os.lseek(handle, offset, os.SEEK_DATA)
    except OSError as error:
        # ENXIO: nothing but a hole up to the end, or no byte there yet.
        return max(offset, os.fstat(handle).st_size) if error.errno == errno.ENXIO else offset
    finally:
        os.close(handle)


class LogSender:
    """All logs to one server."""

    def __init__(self, watcher: kernel.Inotify | None) -> None:
        self._watcher = watcher
        self._streams: dict[tuple[str, str], Stream] = {}
        self._by_watch: dict[int, Stream] = {}
        self._dirty: OrderedDict[Stream, None] = OrderedDict()
        self.on_the_way = 0

    def open(self, folder: TaskFolder) -> Stream:
        """The stream of a task."""
        key = (folder.attempt, folder.name)
        if key not in self._streams:
            self._streams[key] = Stream(folder)
        return self._streams[key]

    def close(self, folder: TaskFolder) -> None:
        """Forget a task."""
        stream = self._streams.pop((folder.attempt, folder.name), None)
        if stream is not None:
            self._dirty.pop(stream, None)
            self._by_watch.pop(stream.watch, None)
            self.on_the_way -= max(0, stream.sent - stream.acked)

    def reset(self) -> None:
        """Another server: nothing was sent, nothing is wanted yet."""
        for stream in self._streams.values():
            stream.sent = -1
        self._dirty.clear()
        self.on_the_way = 0

    def begin(self, folder: TaskFolder, offset: int, *, is_new: bool = False) -> None:
        """The server wants a log from `offset` on."""
        stream = self.open(folder)
        stream.is_new = is_new
        self.on_the_way -= max(0, stream.sent - stream.acked)
        stream.begin(offset)
        self._dirty[stream] = None

    def acknowledge(self, folder: TaskFolder, offset: int) -> None:
        """The server has a log up to `offset`."""
        stream = self._streams.get((folder.attempt, folder.name))
        if stream is not None and stream.sent >= 0:
            self.on_the_way -= stream.acknowledge(offset)

    def changed(self, watch: int) -> bool:
        """A watch fired; False where it is none of ours."""
        stream = self._by_watch.pop(watch, None)
        if stream is None:
            return False
        stream.is_watched = False
        self._dirty[stream] = None
        return True

    def touch(self, stream: Stream) -> None:
        """Look at a log by the next turn."""
        self._dirty[stream] = None

    def look_everywhere(self) -> None:
        """Look at every log that nothing watches."""
        for stream in self._streams.values():
            if not stream.is_watched and not stream.is_final and stream.sent >= 0:
                self._dirty[stream] = None

    @property
    def has_work(self) -> bool:
        """Whether a turn would find something to do."""
        return bool(self._dirty) and self.on_the_way < WINDOW

    def collect(self) -> tuple[list[list[Any]], bytes, list[Stream]]:
        """What to send now: (attempt, task, offset, length) and the bytes; and the streams that are through reading."""
        parts: list[list[Any]] = []
        pieces: list[bytes] = []
        drained: list[Stream] = []
        room = min(FRAME, WINDOW - self.on_the_way)
        for stream in list(self._dirty):
            if room <= 0:
                break
            if stream.sent < 0:
                del self._dirty[stream]
                continue
            offset = stream.sent
            data = stream.take(min(PIECE, room))
            if data:
                parts.append([stream.folder.attempt, stream.folder.name, offset, len(data)])
                pieces.append(data)
                room -= len(data)
                self.on_the_way += len(data)
                self._dirty.move_to_end(stream)
            elif self._watch(stream):
                del self._dirty[stream]
                drained.append(stream)
        return parts, b"".join(pieces), drained

    def _watch(self, stream: Stream) -> bool:
        """Be told of the next write. False where one came meanwhile, so that the log is not at its end after all."""
        if stream.is_final or stream.is_watched or self._watcher is None:
            return True
        try:
            stream.watch = self._watcher.add(stream.folder.file("log").encode(), once=True)
        except OSError:  # no watch left: `look_everywhere` finds it
            return True
        stream.is_watched = True
        self._by_watch[stream.watch] = stream
        return stream.folder.log_size() <= stream.sent
