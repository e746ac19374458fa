"""Places for work that costs a lot: so many side by side, and so many of one user, who else would take them all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trainyard.server.auth.actor import LimitedError

RETRY_SECONDS = 1.0


class ConcurrencyLimit:
    """`count` places; `each`: how many one user may have or wait for."""

    def __init__(self, count: int, *, each: int, what: str) -> None:
        self._free = asyncio.Semaphore(count)
        self._each = each
        self._what = what
        self._taken: Counter[str] = Counter()

    @asynccontextmanager
    async def held_by(self, user_id: str) -> AsyncIterator[None]:
        """Wait for a place and hold it; LimitedError for one who waits for too many already."""
        if self._taken[user_id] >= self._each:
            raise LimitedError(f"Too many {self._what} at once.", retry_after=RETRY_SECONDS)
        self._taken[user_id] += 1
        try:
            async with self._free:
                yield
        finally:
            self._taken[user_id] -= 1
            if not self._taken[user_id]:
                del self._taken[user_id]
