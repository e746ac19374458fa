"""A lock between the processes of one person on one computer: a file that is there while it is held. Freed at death."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

LONGEST_PAUSE = 0.05


@asynccontextmanager
async def hold_file(path: Path) -> AsyncIterator[None]:
    """Hold the lock of this path. Waiting for it can be cancelled, as no thread blocks."""
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
