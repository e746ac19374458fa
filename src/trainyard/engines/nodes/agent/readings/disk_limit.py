"""The node's disk: each task may use so much of it, and some of it stays free for the agent's own work.

A task that uses more than its limit is ended. Where less is free than the reserve, the task that uses most is: one that is over
loses its files, one that runs is ended. How much they use is found out by disk_usage.py; who ends them is their supervisor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ..tasks.folder import note, open_regular
from ..tasks.task_list import Task, Tasks
from .disk_reasons import LIMIT, RESERVE
from .disk_usage import Use, measure, read_uses, task_key

ENOUGH_PERCENT = 125  # of the reserve, before tasks are taken again
RESERVE_PERCENT = 5  # of a small disk: no more than this is kept free
LEAST_FILES = 10_000  # that can still be made, or this part of a small disk's:
FILES_PERCENT = 1
LOOK_SECONDS = 30.0  # between two looks while the disk hardly changes
BUSY_SECONDS = 1.0  # while it does
REST = 4  # looks take no more than a fifth of the time
# Who uses less than this is not to blame, and its end would help nobody: somebody else has filled the disk.
LEAST_OF_WORST, LEAST_FILES_OF_WORST = 1 << 20, 100
WORTH = 20  # and this part of what is missing
RELIEF_SECONDS = 10.0  # for what was ended last to give its room back
READ = 65536


class Disk:
    """What the file system of the node's folder has left."""

    __slots__ = ("free", "free_files", "total", "total_files", "used")

    def __init__(self) -> None:
        found = os.statvfs(".")
        self.free = found.f_bavail * found.f_frsize
        self.total = found.f_blocks * found.f_frsize
        self.used = (found.f_blocks - found.f_bfree) * found.f_frsize
        self.free_files, self.total_files = found.f_favail, found.f_files

    def reserve(self, wanted_mib: int) -> int:
        """Bytes that are to stay free."""
        return min(wanted_mib << 20, self.total * RESERVE_PERCENT // 100)

    @property
    def lacks_files(self) -> bool:
        """Whether hardly any file can be made; some file systems do not count them."""
        least = min(LEAST_FILES, self.total_files * FILES_PERCENT // 100)
        return self.total_files > 0 and self.free_files < least


class DiskLimits:
    """Looks at what tasks use whenever that may have changed, and has those ended that use too much."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._uses: dict[tuple[str, str], Use] = {}
        self._pipe = -1
        self._said = b""
        self._began = 0.0
        self._next = 0.0
        self._relieved = 0.0
        self._used = 0  # of the whole disk, when it was looked at last
        self.reserve_mib = 0
        self.disk = Disk()

    @property
    def _is_short(self) -> bool:
        """Whether less is free than is to stay free."""
        is_counted = self.reserve_mib > 0
        return is_counted and (self.disk.free < self.disk.reserve(self.reserve_mib) or self.disk.lacks_files)

    def _problem(self) -> str:
        """Why no task is taken now; empty: some are. A disk that was full counts as such until there is a little more."""
        reserve = self.disk.reserve(self.reserve_mib)
        least = reserve * ENOUGH_PERCENT // 100 if self._tasks.refusal else reserve
        if self.disk.free < least:
            return f"its disk is full: {self.disk.free >> 20} MiB are free, {least >> 20} MiB are needed"
        if self._is_short:
            return f"its disk is full: only {self.disk.free_files} files can be made"
        return ""

    def poll(self) -> None:
        """Look, where it is time; take what was found. Never blocks."""
        self.disk = Disk()
        self._tasks.refusal = self._problem()
        if self._pipe >= 0:
            self._read()
        elif self._is_due():
            self._begin()

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._is_short:
            return bool(self._tasks.by_key) and now >= min(self._next, self._began + BUSY_SECONDS)
        limited = [task for task in self._running() if limit_of(task)]
        if not limited:
            return False
        if now >= self._next:
            return True
        rooms = [limit_of(task) - self._use(task).bytes for task in limited]
        return self.disk.used - self._used >= min(rooms) // 2 and now >= self._began + BUSY_SECONDS

    def _use(self, task: Task) -> Use:
        return self._uses.get(task_key(task)) or Use()

    def _running(self) -> list[Task]:
        return [task for task in self._tasks.by_key.values() if not task.is_cleared]

    def _begin(self) -> None:
        looked_at = list(self._tasks.by_key.values()) if self._is_short else self._running()
        self._began = time.monotonic()
        self._used = self.disk.used
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        self._next = self._began + LOOK_SECONDS
        try:
            self._tasks.fork(lambda: measure(looked_at, writer), writer)
        except OSError:  # no process can be made now
            os.close(reader)
            return
        finally:
            os.close(writer)
        self._pipe, self._said = reader, b""

    def _read(self) -> None:
        try:
            while piece := os.read(self._pipe, READ):
                self._said += piece
        except BlockingIOError:
            return
        os.close(self._pipe)
        self._pipe = -1
        took = time.monotonic() - self._began
        self._began += REST * took  # from where the next look counts its rest
        self._next = self._began + LOOK_SECONDS
        self._uses = read_uses(self._said)
        self._judge()

    def _judge(self) -> None:
        for task in self._running():
            limit = limit_of(task)
            if limit and self._use(task).bytes > limit:
                self._end(task, LIMIT)
        if self._is_short and time.monotonic() - self._relieved > RELIEF_SECONDS:
            self._relieve()

    def _relieve(self) -> None:
        """Get room from who uses most: of bytes, or of files where those are what is missing. Who uses little is left alone."""
        missing = self.disk.reserve(self.reserve_mib) - self.disk.free
        is_files = missing <= 0
        least = LEAST_FILES_OF_WORST if is_files else max(LEAST_OF_WORST, missing // WORTH)

        def amount(task: Task) -> int:
            return self._use(task).files if is_files else self._use(task).all_bytes

        known = [
            task
            for task in self._tasks.by_key.values()
            if amount(task) >= least and not _is_ended_by_us(task)
        ]
        if not known:
            return
        self._relieved = time.monotonic()
        worst = max(known, key=amount)
        if worst.is_cleared:
            self._tasks.discard_work(worst)
        else:
            self._end(worst, RESERVE)

    def _end(self, task: Task, why: str) -> None:
        """Note why, where its supervisor reads it, and have it end. The state has room even on a full disk."""
        with contextlib.suppress(OSError):
            if not _is_ended_by_us(task):
                state = open_regular(task.folder.file("state"), os.O_WRONLY | os.O_APPEND)
                try:
                    use = self._use(task)
                    note(state, {"over": [why, (use.bytes if why == LIMIT else use.all_bytes) >> 20]})
                finally:
                    os.close(state)
                task.refresh()
            task.signal(signal.SIGUSR2)


def _is_ended_by_us(task: Task) -> bool:
    return "over" in task.history and not task.is_cleared


def limit_of(task: Task) -> int:
    """Bytes of the node's disk that a task may use; 0: as many as there are."""
    limit = task.order.get("disk_mib")
    return limit << 20 if isinstance(limit, int) else 0
