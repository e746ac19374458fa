"""The processes of an emulated machine: finding and ending all of them. Trees in general are lib/process_tree.py's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from trainyard.lib.process_tree import (
    ProcessId,
    closure,
    environment_of,
    find_processes,
    freeze,
    send,
)
from trainyard.lib.read_file import read_file

FIRST_PAUSE = 0.002  # seconds between two looks at the dying; doubles
LONGEST_PAUSE = 0.05
KILL_SECONDS = (
    10.0  # SIGKILL takes effect at once, unless the process sits in the kernel (a dead network disk)
)


@dataclass(frozen=True, slots=True)
class Marks:
    """By what a process shows whose it is: a `NAME=value` in its environment, or a word on its command line.

    The second for sshd: it writes its title over its environment.
    """

    variable: bytes
    argument: bytes


def find_below(roots: Iterable[int], *, marks: Marks | None = None) -> set[ProcessId]:
    """Every living process below these, in a session that one of them leads, or marked, and all below those.

    The roots themselves and we are not among them.
    """
    table = find_processes()
    first = set(roots)
    found = closure([*first, *(pid for pid in table if marks and _carries(pid, marks))], table)
    return {table[pid].id for pid in found - first - {os.getpid()} if pid in table}


async def end_below(roots: Iterable[int], *, marks: Marks | None = None) -> None:
    """Kill every process that `find_below` finds, and those that they have forked meanwhile."""
    find = partial(find_below, list(roots), marks=marks)
    waited = 0.0
    while waited < KILL_SECONDS and (found := find()):
        for process in freeze(found, find):
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


def _carries(pid: int, marks: Marks) -> bool:
    if marks.variable in environment_of(pid):
        return True
    try:
        return marks.argument in read_file(f"/proc/{pid}/cmdline").replace(b"\0", b" ").split(b" ")
    except OSError:  # it has ended meanwhile
        return False
