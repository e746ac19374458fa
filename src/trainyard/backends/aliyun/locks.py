"""Locks between the clients of one user, so that two of them do not make the same thing at once. Freed at exit.

Between users and between computers the provider decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from trainyard.lib.ids import short_hash
from trainyard.lib.locks import hold_file


@asynccontextmanager
async def hold(folder: Path, name: str) -> AsyncIterator[None]:
    """Hold the lock of this name; any text will do. Waiting for it can be cancelled."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with hold_file(folder / f"{short_hash(name, 20)}.lock"):
        yield
