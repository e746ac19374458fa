"""Locks between the clients of one person: two of them that ask for the same names at once do so one after the other.

They make it quick and plain, not right: between people it is the hosts that decide. Freed by the kernel at death.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

LONGEST_PAUSE = 0.05


@asynccontextmanager
async def hold(folder: Path, names: Iterable[str]) -> AsyncIterator[None]:
    """Hold the locks of these names, taken in one order, so that nobody waits in a circle."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a home that cannot be written to; the hosts decide
        yield
        return
    held: list[tuple[Path, int]] = []
    try:
        for name in sorted(set(names)):
            path = folder / name
            held.append((path, await _take(path)))
        yield
    finally:
        for path, handle in held:
            path.unlink(missing_ok=True)  # only while holding it; `_try` looks whether it is still there
            os.close(handle)


async def _take(path: Path) -> int:
    # Not a thread that blocks: it could not be cancelled.
    pause = 0.002
    while (handle := _try(path)) is None:
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
    return handle


def _try(path: Path) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
    os.close(handle)
    return None
