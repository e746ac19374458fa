"""Nonces of signed requests: each is good for one request, on all servers of a platform together and after a restart too.

They are kept in the database for as long as their request could be sent again. Those that arrive while others are written are
written together, in one transaction.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

from trainyard.server.store import nonces
from trainyard.server.store.database import Database

# A request is refused where its time is further from ours than this.
CLOCK_SECONDS = 15 * 60.0
# So long its nonce is kept beyond that: the clocks of two servers may differ, and one may be set back a little.
MARGIN_SECONDS = 3600.0
# The last ones are remembered here as well: who sends one request again and again does not reach the database with it.
REMEMBERED = 20_000


class _Batch:
    """Nonces that are written together; `written` answers with those that are new."""

    def __init__(self) -> None:
        self.told: dict[bytes, float] = {}
        self.written: asyncio.Task[frozenset[bytes]]


class Nonces:
    """`services.nonces`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._open: _Batch | None = None  # takes more, until the one before it is written
        self._last: asyncio.Task[frozenset[bytes]] | None = None

    async def use(self, owner: str, nonce: str, at: float) -> bool:
        """Use up a nonce of a request that was signed at a time; whether nobody has before.

        The answer is true once at most, and only when it is in the database: a server that dies now or another one knows of it.
        """
        digest = hashlib.sha256(f"{owner}\n{nonce}".encode(errors="surrogateescape")).digest()
        if digest in self._seen:
            return False
        self._remember(digest)
        batch = self._batch()
        batch.told[digest] = at + CLOCK_SECONDS + MARGIN_SECONDS
        # NB: others wait for the same task, and it goes on where this request is cut off.
        return digest in await asyncio.shield(batch.written)

    def _batch(self) -> _Batch:
        if self._open is None:
            self._open = _Batch()
            self._open.written = asyncio.ensure_future(self._write(self._open, self._last))
            self._open.written.add_done_callback(_look_at)
            self._last = self._open.written
        return self._open

    async def _write(self, batch: _Batch, before: asyncio.Task[frozenset[bytes]] | None) -> frozenset[bytes]:
        if before is not None and not before.done():
            await asyncio.wait({before})
        self._open = None  # what comes from now on is the next batch's
        return await self._db.write(lambda c: nonces.insert_new(c, batch.told))

    def _remember(self, digest: bytes) -> None:
        self._seen[digest] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)


def _look_at(written: asyncio.Task[frozenset[bytes]]) -> None:
    """An error is told to each request that waits; where all have gone, nobody else needs to hear of it."""
    if not written.cancelled():
        written.exception()
