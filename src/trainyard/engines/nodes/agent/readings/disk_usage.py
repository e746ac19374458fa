"""How much of the node's disk tasks use: their folders, and files that they have deleted and still hold open.

Looked at in a process of its own: a task may have millions of files, and the agent has others to serve.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import stat
from typing import Any

from .. import kernel
from ..tasks.task_list import Task
from .sampler import all_processes, processes_of

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
BLOCK = 512  # what st_blocks counts
MOST_DEPTH = 800  # of folders in folders; each is held open while we are in it
MOST_ENTRIES = 20_000_000  # of one task; then what was counted so far is said
MOST_HANDLES = 100_000  # of one task's processes
PRIORITY = 10  # tasks go before us


class Use:
    """What one task uses."""

    __slots__ = ("bytes", "elsewhere", "files")

    def __init__(self, size: int = 0, files: int = 0, elsewhere: int = 0) -> None:
        self.bytes = size  # in its own folder, or without a name; this is what its limit is for
        self.files = files
        self.elsewhere = elsewhere  # what it writes to other places of the same disk

    @property
    def all_bytes(self) -> int:
        """All that the disk would have without it."""
        return self.bytes + self.elsewhere


def measure(tasks: list[Task], output: int) -> None:
    """In a process of its own: write what tasks use, by attempt and name, as one JSON text."""
    os.nice(PRIORITY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST_DEPTH
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    device = os.stat(".").st_dev
    running = {id(task): pids for task, pids in processes_of(tasks, all_processes())}
    found = []
    for task in tasks:
        use = folder_use(task.folder.path)
        pids = running.get(id(task), [])[1:]  # the first is its supervisor
        nameless, named = held_bytes(pids, device, os.path.abspath(task.folder.path))
        written = sum(kernel.disk_bytes_of(pid)[1] for pid in pids)
        elsewhere = min(named, written)  # a file that it has only opened was there before
        found.append([*task_key(task), use.bytes + nameless, use.files, elsewhere])
    with os.fdopen(output, "wb") as file:
        file.write(json.dumps(found).encode())


def read_uses(data: bytes) -> dict[tuple[str, str], Use]:
    """What `measure` wrote; nothing where it was killed meanwhile."""
    try:
        found: list[Any] = json.loads(data)
    except ValueError:
        return {}
    return {(attempt, name): Use(*numbers) for attempt, name, *numbers in found}


def task_key(task: Task) -> tuple[str, str]:
    """By what a task is known."""
    return task.folder.attempt, task.folder.name


def folder_use(path: str) -> Use:
    """What a folder holds on its own file system, by no link; a file with several names counts once. No recursion."""
    use = Use()
    linked: set[int] = set()
    try:
        handles = [os.open(path, FOLDER)]
    except OSError:
        return use
    device = os.fstat(handles[0]).st_dev
    waiting = [_look(handles[0], use, linked)]
    while handles:
        if not waiting[-1] or use.files > MOST_ENTRIES:
            waiting.pop()
            os.close(handles.pop())
            continue
        name = waiting[-1].pop()
        if len(handles) > MOST_DEPTH:
            continue
        with contextlib.suppress(OSError):  # removed meanwhile
            handle = os.open(name, FOLDER, dir_fd=handles[-1])
            if os.fstat(handle).st_dev != device:  # a mount
                os.close(handle)
                continue
            handles.append(handle)
            waiting.append(_look(handle, use, linked))
    return use


def _look(handle: int, use: Use, linked: set[int]) -> list[str]:
    """Count what is in a folder; the names of folders in it."""
    below = []
    with contextlib.suppress(OSError), os.scandir(handle) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                use.files += 1
                if stat.S_ISDIR(found.st_mode):
                    below.append(entry.name)
                elif found.st_nlink > 1:
                    if found.st_ino in linked:
                        continue
                    linked.add(found.st_ino)
                use.bytes += found.st_blocks * BLOCK
    return below


def held_bytes(pids: list[int], device: int, folder: str) -> tuple[int, int]:
    """What processes hold open to write to: of files without a name, and of files outside of a folder."""
    nameless: dict[int, int] = {}
    named: dict[int, int] = {}
    looked = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                looked += 1
                if looked > MOST_HANDLES:
                    break
                with contextlib.suppress(OSError):
                    path = f"/proc/{pid}/fd/{number}"
                    found = os.stat(path)
                    if found.st_dev != device or not stat.S_ISREG(found.st_mode):
                        continue
                    if not found.st_nlink:
                        nameless[found.st_ino] = found.st_blocks * BLOCK
                    elif _can_write(path) and not os.readlink(path).startswith(f"{folder}/"):
                        named[found.st_ino] = found.st_blocks * BLOCK
    return sum(nameless.values()), sum(named.values())


def _can_write(path: str) -> bool:
    """Whether a descriptor of a process is one to write with: the rights of its link in /proc say so."""
    return bool(os.lstat(path).st_mode & stat.S_IWUSR)
