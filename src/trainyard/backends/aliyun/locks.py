"""Locks between the clients of one person, so that two of them do not make the same thing at once. Freed at death.

Between people, and between computers, it is the provider that decides.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from trainyard.lib.ids import short_hash

LONGEST_PAUSE = 0.05


@asynccontextmanager
async def hold(folder: Path, name: str) -> AsyncIterator[None]:
    """Hold the lock of this name; any text will do. Waiting for it can be cancelled, as no thread blocks."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{short_hash(name, 20)}.lock"
    pause = 0.002
    while (handle := _try(path)) is None:
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # only while holding it; `_try` looks whether it is still there
        os.close(handle)


def _try(path: Path) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == path.stat().st_ino:
            return handle
    os.close(handle)
    return None
