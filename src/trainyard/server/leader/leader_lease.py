"""Who leads: one server at a time runs the loops, and one that has slept through its lease cannot write.

What the leader does is reconciler.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy import Connection

from trainyard.lib.clock import Clock
from trainyard.lib.errors import Error, StaleError
from trainyard.server.records.leases import LeaseRecord
from trainyard.server.store import leases
from trainyard.server.store.database import Database

T = TypeVar("T")
LEASE = "leader"
# Another server takes over so long after the leader was last heard of; the leader says so five times as often.
LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.0

logger = logging.getLogger(__name__)


class LeadLostError(Exception):
    """Another server leads now, or nobody could be told that we still do."""


class LeaderTerm:
    """One period of leading. Every write of the loops goes through here."""

    def __init__(self, db: Database, clock: Clock, owner: str, epoch: int) -> None:
        self.db = db
        self.clock = clock
        self.owner = owner
        self.epoch = epoch

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of the leader; LeadLostError, with nothing written, where another one leads."""

        def guarded(connection: Connection) -> T:
            try:
                leases.check(connection, LEASE, self.epoch)
            except StaleError as error:
                raise LeadLostError from error
            return work(connection)

        return await self.db.write(guarded)

    async def renew(self) -> None:
        """Hold on to the lease until it is lost. The term ends by an exception."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if not await self.db.write(lambda c: leases.renew(c, LEASE, self.epoch, seconds=LEASE_SECONDS)):
                raise LeadLostError

    async def resign(self) -> None:
        """Let the next leader begin at once."""
        await self.db.write(lambda c: leases.release(c, LEASE, self.epoch))


class WatchedLease:
    """The lease of another server: since when it looks as it does, by our own clock that nobody sets."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: LeaseRecord | None = None
        self._since = 0.0

    async def take(self, db: Database, owner: str) -> LeaseRecord | None:
        """Take the lease if it is free, or if its owner was silent for as long as it lasts."""
        is_silent = self._clock.monotonic() - self._since > LEASE_SECONDS
        silent = self._seen if is_silent else None

        def work(connection: Connection) -> tuple[LeaseRecord | None, LeaseRecord | None]:
            taken = leases.take(connection, LEASE, owner=owner, seconds=LEASE_SECONDS, silent=silent)
            return taken, None if taken is not None else leases.find(connection, LEASE)

        taken, held = await db.write(work)
        if held != self._seen:
            self._seen, self._since = held, self._clock.monotonic()
        return taken


async def lead(db: Database, clock: Clock, owner: str, work: Callable[[LeaderTerm], Awaitable[None]]) -> None:
    """Become the leader whenever nobody else is, and run `work` for as long as that lasts. Runs until cancelled."""
    watched = WatchedLease(clock)
    while True:
        try:
            lease = await watched.take(db, owner)
            if lease is not None:
                await _serve(LeaderTerm(db, clock, owner, lease.epoch), work)
        except Exception as error:  # noqa: BLE001  # whatever it was: a platform without a leader starts no job ever again
            _tell(error)
        await asyncio.sleep(RENEW_SECONDS / 2)


def _tell(error: Exception) -> None:
    """Say why a term has ended. Its parts run in groups, so what they raise comes in groups too."""
    causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    for cause in causes:
        if isinstance(cause, ExceptionGroup):
            _tell(cause)
        elif isinstance(cause, LeadLostError):
            logger.warning("another server leads now; standing by")
        elif isinstance(cause, Error):  # the database does not answer: there is nobody to lead for
            logger.warning("cannot lead: %s", cause)
        else:
            logger.error("leading has failed, and begins anew", exc_info=cause)


async def _serve(term: LeaderTerm, work: Callable[[LeaderTerm], Awaitable[None]]) -> None:
    parts = [asyncio.ensure_future(work(term)), asyncio.ensure_future(term.renew())]
    try:
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        with contextlib.suppress(Error):
            await term.resign()
