"""Locks between clients: one per machine, and one for names, addresses and devices. The kernel frees them at exit.

Each lock is a byte of one file, so that a thousand machines need one descriptor and leave no files behind. They are
taken in a fixed order, the common one first, so that no deadlock can arise. Waiting polls every few milliseconds: a
blocked thread per waiter would exhaust the pool that the holder needs to finish.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

FIRST_PAUSE = 0.002
LONGEST_PAUSE = 0.05
_COMMON = 0


class Locks:
    """The locks of one folder of machines."""

    def __init__(self, root: Path) -> None:
        self._file = root / ".lock"

    @asynccontextmanager
    async def hold(self, names: Iterable[str], *, common: bool = False) -> AsyncIterator[None]:
        """Hold the locks of these machines, and the common one."""
        places = sorted({_place(name) for name in names})
        if common:
            places.insert(0, _COMMON)
        if not places:
            yield
            return
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for place in places:
                await _take(handle, place)
            yield
        finally:
            os.close(handle)


def _place(name: str) -> int:
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


async def _take(handle: int, place: int) -> None:
    pause = FIRST_PAUSE
    while not _try(handle, place):
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def _try(handle: int, place: int) -> bool:
    # Locks of the open file, not of the process: two calls of one client exclude each other too.
    request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, request)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: somebody holds it
        return False
    return True
