"""Finds and ends all processes of local machines. lib/process_tree.py handles process trees in general."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from trainyard.lib.clock import Clock
from trainyard.lib.errors import DeniedError
from trainyard.lib.process_tree import (
    ProcessId,
    ancestors,
    closure,
    environment_of,
    find_process,
    find_processes,
    first_thread_children,
    freeze,
    is_alive,
    send,
)
from trainyard.lib.read_file import read_file

FIRST_PAUSE = 0.005  # seconds between two looks at the dying; doubles
LONGEST_PAUSE = 0.1
FREEZE_LIMIT = 100_000  # more processes than that are not frozen in one go
QUIET_LOOKS = 5  # one look in thirty misses a process that has just moved from a dying parent to the keeper
KILL_SECONDS = (
    10.0  # SIGKILL takes effect at once, unless the process sits in the kernel (a dead network disk)
)


@dataclass(frozen=True, slots=True)
class Roots:
    """Identifies the processes of machines: descendants of a keeper, or a mark in their environment."""

    keepers: frozenset[ProcessId]
    marks: frozenset[bytes]


def find_members(roots: Roots) -> set[ProcessId]:
    """Return every living process of the machines, except the keepers, this process and its ancestors."""
    table = find_processes()
    keepers = {
        keeper.pid for keeper in roots.keepers if keeper.pid in table and table[keeper.pid].id == keeper
    }
    marked = {pid for pid in table if not roots.marks.isdisjoint(environment_of(pid))}
    members = closure(keepers | marked, table) - keepers - ancestors(os.getpid(), table)
    return {table[pid].id for pid in members}


async def end_all(roots: Roots, *, grace_seconds: float, clock: Clock) -> None:
    """End every process of the machines: SIGTERM, a grace period, SIGKILL; the keepers last.

    Keepers stay until all other processes are gone, because orphans of a dead keeper could not be found any more.
    Cancelling leaves the remaining processes running, and calling again continues. DeniedError if a process cannot be
    ended.
    """
    if members := find_members(roots):
        for process in members:
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)  # a stopped process would not handle SIGTERM
        await _wait_for_end(roots, members, clock.monotonic() + grace_seconds, clock)
    for keeper in roots.keepers:
        send(keeper, signal.SIGSTOP)  # from here on the keeper starts no process
    deadline = clock.monotonic() + KILL_SECONDS
    while members := _freeze_and_find(roots):
        frozen = freeze(members, partial(_freeze_and_find, roots))
        refused = [process for process in frozen if not send(process, signal.SIGKILL)]
        if refused or clock.monotonic() > deadline:
            raise _immortal(refused or members)
        await _wait_while(partial(_any_alive, frozen), deadline, clock)
    for keeper in roots.keepers:
        send(keeper, signal.SIGKILL)
    await _wait_while(partial(_any_alive, roots.keepers), deadline, clock)


async def _wait_for_end(roots: Roots, asked: AbstractSet[ProcessId], deadline: float, clock: Clock) -> None:
    """Wait until no process is left or the time is up. Interactive shells get SIGHUP."""
    told: set[ProcessId] = set()

    def somebody_is_left() -> bool:
        alive = {process for process in asked if is_alive(process)}
        # An interactive shell ignores SIGTERM and obeys SIGHUP, which it passes on to its children. So it gets SIGHUP
        # only when no other process is left that may be saving a checkpoint.
        if all(_ignores(process.pid, signal.SIGTERM) for process in alive):
            for process in alive - told:
                send(process, signal.SIGHUP)
            told.update(alive)
        return bool(alive) or bool(find_members(roots))

    await _wait_while(somebody_is_left, deadline, clock)


def _any_alive(processes: Iterable[ProcessId]) -> bool:
    return any(is_alive(process) for process in processes)


async def _wait_while(condition: Callable[[], bool], deadline: float, clock: Clock) -> None:
    pause = FIRST_PAUSE
    while condition() and clock.monotonic() < deadline:
        await clock.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def _freeze_and_find(roots: Roots) -> set[ProcessId]:
    _freeze_below({keeper.pid for keeper in roots.keepers})
    return find_members(roots)


def _freeze_below(roots: AbstractSet[int]) -> None:
    """Stop the trees of these processes by their lists of children.

    Reading all processes takes milliseconds, and a process that forks and exits all the time escapes meanwhile. This
    takes a tenth of a millisecond.
    """
    spared = ancestors(os.getpid(), find_processes())
    seen: set[int] = set()
    quiet = 0
    while quiet < QUIET_LOOKS:
        waiting = list(roots)
        found = set()
        while waiting:
            for pid in first_thread_children(waiting.pop()):
                waiting.append(pid)
                if pid not in seen and pid not in spared:
                    found.add(pid)
                    if row := find_process(pid):
                        send(row.id, signal.SIGSTOP)
        seen |= found
        quiet = 0 if found and len(seen) < FREEZE_LIMIT else quiet + 1


def _immortal(members: Iterable[ProcessId]) -> DeniedError:
    numbers = ", ".join(str(process.pid) for process in sorted(members, key=lambda process: process.pid))
    return DeniedError(
        f"these processes cannot be ended: {numbers}",
        hint=f"End them with the rights they have, for example `sudo kill -9 {numbers.replace(',', '')}`.",
    )


def _ignores(pid: int, number: signal.Signals) -> bool:
    try:
        mask = read_file(f"/proc/{pid}/status").partition(b"SigIgn:")[2].split(maxsplit=1)[0]
    except (OSError, IndexError):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)
