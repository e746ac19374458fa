"""Who a process is, and ending a machine's processes for good. Reads /proc; Linux only.

A number alone is nobody: it is used again. A process is its number and the tick it started at.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

FIRST_PAUSE = 0.002  # seconds between two looks at the dying; doubles
LONGEST_PAUSE = 0.05
FREEZE_LIMIT = 10_000  # more processes than that are not frozen in one go
KILL_SECONDS = (
    10.0  # SIGKILL takes effect at once, unless the process sits in the kernel (a dead network disk)
)


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Who a process is, for good."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Marks:
    """By what a process shows whose it is: a `NAME=value` in its environment, or a word on its command line.

    The second for sshd: it writes its title over its environment.
    """

    variable: bytes
    argument: bytes


@cache
def kernel_id() -> str:
    """Which run of this computer's kernel this is: numbers of processes mean nothing in another."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123  # no Path for one line
        return file.read().strip()


def find_process(pid: int) -> ProcessId | None:
    """The process of that number, if it lives."""
    found = _load(pid)
    return None if found is None else found[0]


def find_name(pid: int) -> str:
    """The short name of the program; '' where there is no such process."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123  # no Path for one line
            return file.read().strip()
    except OSError:
        return ""


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still lives."""
    return find_process(process.pid) == process


def send(process: ProcessId, number: signal.Signals) -> None:
    """Signal this very process, never a stranger with its number."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def find_below(roots: Iterable[int], *, marks: Marks | None = None) -> set[ProcessId]:
    """Every living process below these, in a session that one of them leads, or marked, and all below those.

    The roots themselves and we are not among them.
    """
    table = {pid: row for name in os.listdir("/proc") if name.isdigit() and (row := _load(pid := int(name)))}  # noqa: PTH208
    below: dict[int, list[int]] = {}
    for pid, (_, parent, session) in table.items():
        below.setdefault(parent, []).append(pid)
        if session != pid:
            below.setdefault(session, []).append(pid)
    first = set(roots)
    waiting = [*first, *(pid for pid in table if marks and _carries(pid, marks))]
    found: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += below.get(pid, ())
    return {table[pid][0] for pid in found - first - {os.getpid()} if pid in table}


async def end_below(roots: Iterable[int], *, marks: Marks | None = None) -> None:
    """Kill every process that `find_below` finds, and those that they have forked meanwhile."""
    roots = list(roots)
    waited = 0.0
    while waited < KILL_SECONDS and (found := find_below(roots, marks=marks)):
        # All are frozen before one is killed: a child that is born meanwhile is found by its parent only.
        frozen: set[ProcessId] = set()
        while found - frozen and len(frozen) < FREEZE_LIMIT:
            for process in found - frozen:
                send(process, signal.SIGSTOP)
            frozen |= found
            found = find_below(roots, marks=marks)
        for process in frozen | found:
            send(process, signal.SIGKILL)
        waited += FIRST_PAUSE
        await asyncio.sleep(FIRST_PAUSE)


async def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Look until it is so; False where it never was."""
    pause, waited = FIRST_PAUSE, 0.0
    while not condition():
        if waited >= seconds:
            return False
        await asyncio.sleep(pause)
        waited += pause
        pause = min(pause * 2, LONGEST_PAUSE)
    return True


def _load(pid: int) -> tuple[ProcessId, int, int] | None:
    """The process, its parent and its session; None where it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # a thousand of these per look
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # A leader that has ended while its threads go on looks dead, and is not.
    if fields[0] in {b"Z", b"X"} and int(fields[17]) <= 1:
        return None
    return ProcessId(pid, int(fields[19])), int(fields[1]), int(fields[3])


def _carries(pid: int, marks: Marks) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  # same
            if marks.variable in file.read().split(b"\0"):
                return True
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123  # same
            return marks.argument in file.read().replace(b"\0", b" ").split(b" ")
    except OSError:  # gone, or somebody else's
        return False
