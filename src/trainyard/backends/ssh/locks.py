"""Locks between the clients of one user, so that two requests for the same names run one after the other.

They only save time. Between users the hosts decide. The kernel frees the locks when a client exits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from trainyard.lib.locks import hold_file


@asynccontextmanager
async def hold(folder: Path, names: Iterable[str]) -> AsyncIterator[None]:
    """Hold the locks of these names, taken in one order, so that nobody waits in a circle."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a home that cannot be written to; the hosts decide
        yield
        return
    async with AsyncExitStack() as held:
        for name in sorted(set(names)):
            await held.enter_async_context(hold_file(folder / name))
        yield
