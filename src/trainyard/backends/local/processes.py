"""Processes of this computer: who they are, who belongs together, and how to end all of them. Reads /proc.

A number alone is nobody: it is used again. A process is its number and the tick it started at.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

from trainyard.lib.clock import Clock
from trainyard.lib.errors import DeniedError

FIRST_PAUSE = 0.005  # seconds between two looks at the dying; doubles
LONGEST_PAUSE = 0.1
FREEZE_ROUNDS = 50  # a fork bomb is frozen after two or three
FREEZE_LIMIT = 100_000  # more processes than that are not frozen in one go
QUIET_LOOKS = 5  # who has just moved from a dying parent to the keeper is missed by one look in thirty
KILL_SECONDS = (
    10.0  # SIGKILL takes effect at once, unless the process sits in the kernel (a dead network disk)
)
_DEAD = frozenset("ZX")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Who a process is, for good."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A living process and where it hangs in the tree."""

    id: ProcessId
    parent: int
    session: int


@dataclass(frozen=True, slots=True)
class Roots:
    """What makes a process one of a machine's: to descend from a keeper, or to carry a mark in its environment."""

    keepers: frozenset[ProcessId]
    marks: frozenset[bytes]


@cache
def boot_id() -> str:
    """Which start of this computer's kernel this is."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123  # as cheap as can be: called by `ls`
        return file.read().strip()


def load_process(pid: int) -> ProcessRow | None:
    """The process of that number, if it lives."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # a thousand of these per look
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # A leader that has ended while its threads go on looks dead, and is not.
    if fields[0].decode() in _DEAD and int(fields[17]) <= 1:
        return None
    return ProcessRow(ProcessId(pid, int(fields[19])), parent=int(fields[1]), session=int(fields[3]))


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still lives."""
    row = load_process(process.pid)
    return row is not None and row.id == process


def load_processes() -> dict[int, ProcessRow]:
    """Everybody who lives now."""
    rows = (load_process(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  # names only
    return {row.id.pid: row for row in rows if row is not None}


def find_members(roots: Roots) -> set[ProcessId]:
    """Every living process of the machines, except their keepers, ourselves and whom we descend from."""
    table = load_processes()
    keepers = {
        keeper.pid for keeper in roots.keepers if keeper.pid in table and table[keeper.pid].id == keeper
    }
    marked = {pid for pid in table if _carries(pid, roots.marks)}
    members = _closure(keepers | marked, table) - keepers - _ancestors(os.getpid(), table)
    return {table[pid].id for pid in members}


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Signal this very process, never a stranger with its number. False where we may not."""
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


async def end_all(roots: Roots, *, grace_seconds: float, clock: Clock) -> None:
    """End every process of the machines: SIGTERM, a grace period, SIGKILL; the keepers last.

    Keepers stay until the rest is gone, because orphans of a dead keeper could not be found any more. Cancelling
    leaves running what has not ended yet, and calling again carries on. DeniedError where somebody will not go.
    """
    if members := find_members(roots):
        for process in members:
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)  # who is stopped could not hear it
        await _wait_for_end(roots, members, clock.monotonic() + grace_seconds, clock)
    for keeper in roots.keepers:
        send(keeper, signal.SIGSTOP)  # from here it starts nothing any more
    _freeze_below({keeper.pid for keeper in roots.keepers})
    deadline = clock.monotonic() + KILL_SECONDS
    while members := find_members(roots):
        frozen = _freeze(roots, members)
        refused = [process for process in frozen if not send(process, signal.SIGKILL)]
        if refused or clock.monotonic() > deadline:
            raise _immortal(refused or members)
        await _wait_while(partial(_any_alive, frozen), deadline, clock)
    for keeper in roots.keepers:
        send(keeper, signal.SIGKILL)
    await _wait_while(partial(_any_alive, roots.keepers), deadline, clock)


async def _wait_for_end(roots: Roots, asked: AbstractSet[ProcessId], deadline: float, clock: Clock) -> None:
    """Wait until nobody is left or the time is up; tell interactive shells in their own way."""
    told: set[ProcessId] = set()

    def somebody_is_left() -> bool:
        alive = {process for process in asked if is_alive(process)}
        # An interactive shell ignores SIGTERM and obeys SIGHUP; but it passes that on to its children, so it is told
        # only when nobody is left who may be saving a checkpoint.
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


def _freeze(roots: Roots, members: set[ProcessId]) -> set[ProcessId]:
    """Stop everybody, and who was born meanwhile, until nobody is left who could fork."""
    frozen: set[ProcessId] = set()
    for _ in range(FREEZE_ROUNDS):
        _freeze_below({keeper.pid for keeper in roots.keepers})
        fresh = members - frozen
        if not fresh:
            break
        for process in fresh:
            send(process, signal.SIGSTOP)
        frozen |= fresh
        members = find_members(roots)
    return frozen


def _freeze_below(roots: AbstractSet[int]) -> None:
    """Stop the trees of these processes by their lists of children.

    Reading everybody takes milliseconds, in which a process that forks and ends all the time has moved on; this takes
    a tenth of one.
    """
    spared = _ancestors(os.getpid(), load_processes())
    seen: set[int] = set()
    quiet = 0
    while quiet < QUIET_LOOKS:
        waiting = list(roots)
        found = set()
        while waiting:
            for pid in _load_children(waiting.pop()):
                waiting.append(pid)
                if pid not in seen and pid not in spared:
                    found.add(pid)
                    if row := load_process(pid):
                        send(row.id, signal.SIGSTOP)
        seen |= found
        quiet = 0 if found and len(seen) < FREEZE_LIMIT else quiet + 1


def _load_children(pid: int) -> list[int]:
    """The children of a process's first thread; the kernel lists them where it is built to."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:  # noqa: PTH123  # must be quick
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _immortal(members: Iterable[ProcessId]) -> DeniedError:
    numbers = ", ".join(str(process.pid) for process in sorted(members, key=lambda process: process.pid))
    return DeniedError(
        f"these processes cannot be ended: {numbers}",
        hint=f"End them with the rights they have, for example `sudo kill -9 {numbers.replace(',', '')}`.",
    )


def _carries(pid: int, marks: AbstractSet[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  # a thousand of these per look
            return not marks.isdisjoint(file.read().split(b"\0"))
    except OSError:  # gone, or somebody else's
        return False


def _ignores(pid: int, number: signal.Signals) -> bool:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123  # same
            mask = file.read().partition(b"SigIgn:")[2].split(maxsplit=1)[0]
    except (OSError, IndexError):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)


def _closure(roots: AbstractSet[int], table: Mapping[int, ProcessRow]) -> set[int]:
    """The roots, all below them, and all who share a session that one of them leads."""
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


def _ancestors(pid: int, table: Mapping[int, ProcessRow]) -> set[int]:
    """The process itself and all above it."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found
