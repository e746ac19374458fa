"""Processes of this computer: which live, which belongs below which, and how to stop whole trees of them. Reads /proc.

A process number alone identifies nothing, because the kernel uses it again. A process is its number and the tick of
the clock at which it started.

Python 3.8, its standard library and read_file.py only: the program on a node has this module too, see engines/nodes/agent_bundle.py.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trainyard.lib.read_file import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet

FREEZE_ROUNDS = 50  # a fork bomb is frozen after two or three
_DEAD = (b"Z", b"X")


class ProcessId(NamedTuple):
    """Identifies a process for good."""

    pid: int
    start: int


class ProcessRow(NamedTuple):
    """A living process and its place in the tree."""

    id: ProcessId
    parent: int
    session: int


@lru_cache
def boot_id() -> str:
    """Identifies this start of the kernel: numbers of processes mean nothing after another start."""
    return read_file("/proc/sys/kernel/random/boot_id").decode().strip()


# -- one process


def stat_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/<pid>/stat after the name, beginning with the state; None where there is no such process."""
    try:
        return read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None


def find_process(pid: int) -> ProcessRow | None:
    """The process of that number, if it lives."""
    fields = stat_fields(pid)
    # A leader that has ended while its threads go on looks dead, and is not.
    if fields is None or (fields[0] in _DEAD and int(fields[17]) <= 1):
        return None
    return ProcessRow(ProcessId(pid, int(fields[19])), parent=int(fields[1]), session=int(fields[3]))


def start_time(pid: int) -> int:
    """When a process began, in ticks since the kernel's start; 0 where none of that number lives."""
    row = find_process(pid)
    return 0 if row is None else row.id.start


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still lives."""
    return start_time(process.pid) == process.start


def name_of(pid: int) -> str:
    """The short name of the program; '' where there is no such process."""
    try:
        return read_file(f"/proc/{pid}/comm").decode(errors="replace").strip()
    except OSError:
        return ""


def environment_of(pid: int) -> list[bytes]:
    """The `NAME=value` words that a process began with; none where it has ended or belongs to another user."""
    try:
        return read_file(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return []


def variable_of(pid: int, name: bytes) -> str:
    """The value that a process began with for a variable; '' where it has none."""
    words = environment_of(pid)
    return next(
        (word[len(name) + 1 :].decode(errors="replace") for word in words if word.startswith(name + b"=")), ""
    )


def send(process: ProcessId, number: int) -> bool:
    """Signal this very process, never another with its number. False where that is not permitted. Needs Python 3.9."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(handle, number)
        except PermissionError:
            return False
        finally:
            os.close(handle)
    return True


# -- many processes


def all_pids() -> list[int]:
    """The number of every process."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # names only


def find_processes() -> dict[int, ProcessRow]:
    """Every process that lives now, by number."""
    rows = (find_process(pid) for pid in all_pids())
    return {row.id.pid: row for row in rows if row is not None}


def find_marked(mark: bytes, among: Iterable[int] | None = None) -> list[int]:
    """Processes that began with this `NAME=value` in their environment."""
    return [pid for pid in (all_pids() if among is None else among) if mark in environment_of(pid)]


def first_thread_children(pid: int) -> list[int]:
    """The processes that the first thread of a process has started, which is quicker to read than those of all threads."""
    try:
        return [int(word) for word in read_file(f"/proc/{pid}/task/{pid}/children").split()]
    except OSError:
        return []


def children_of(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    found: list[int] = []
    with suppress(OSError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  # names only
            found += map(int, read_file(f"/proc/{pid}/task/{thread}/children").split())
    return found


def descendants_of(pid: int) -> list[int]:
    """All processes below one, parents first."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children_of(waiting.pop())
        found += below
        waiting += below
    return found


def closure(roots: Iterable[int], table: Mapping[int, ProcessRow]) -> set[int]:
    """The roots, all processes below them, and all that share a session that one of them leads."""
    below: dict[int, list[int]] = {}
    for pid, row in table.items():
        below.setdefault(row.parent, []).append(pid)
        if row.session != pid:
            below.setdefault(row.session, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += below.get(pid, ())
    return found


def ancestors(pid: int, table: Mapping[int, ProcessRow]) -> set[int]:
    """The process itself and all above it."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found


def freeze(found: AbstractSet[ProcessId], find: Callable[[], AbstractSet[ProcessId]]) -> set[ProcessId]:
    """Stop what was found, and what `find` finds more, until nothing is left that could fork.

    All are frozen before one is killed: a child that is born meanwhile is found by its parent only.
    """
    frozen: set[ProcessId] = set()
    for _ in range(FREEZE_ROUNDS):
        fresh = found - frozen
        if not fresh:
            break
        for process in fresh:
            send(process, signal.SIGSTOP)
        frozen |= fresh
        found = find()
    return frozen
