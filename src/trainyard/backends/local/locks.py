"""Locks between clients: one per machine, one for handing out names, addresses and devices. Freed by the kernel at death.

Taken in one order (the common one first, then machines by name), so that nobody waits in a circle. Waiting is a look
every few milliseconds: a blocked thread per waiter would exhaust the pool that the holder needs to finish.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.05


class Locks:
    """The locks of one folder of machines."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @asynccontextmanager
    async def hold(self, names: Iterable[str], *, common: bool = False) -> AsyncIterator[None]:
        """Hold the locks of these machines, and the common one."""
        paths = [self._root / ".lock"] if common else []
        paths += [self._path(name) for name in sorted(set(names))]
        held: list[int] = []
        try:
            for path in paths:
                held.append(await _take(path))  # noqa: PERF401  # what is held so far must be known if one fails
            yield
        finally:
            for handle in held:
                os.close(handle)

    def forget(self, name: str) -> None:
        """Delete the lock of a machine that is no more; only while holding it."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._root / f".{name}.lock"


async def _take(path: Path) -> int:
    pause = FIRST_PAUSE
    while (handle := _try(path)) is None:
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
    return handle


def _try(path: Path) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its last holder may have deleted it: then this is a lock that nobody else will look at.
        if os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
    os.close(handle)
    return None
