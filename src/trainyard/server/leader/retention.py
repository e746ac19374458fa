"""What is old goes: logs and records of ended jobs, events, keys of repeated requests, nonces of signed ones. One pass now and then, by the leader."""

from __future__ import annotations

import asyncio
import logging
import time

from sqlalchemy import Connection

from trainyard.lib.errors import Error
from trainyard.server.disk_space import DiskSpace
from trainyard.server.leader.clock_trust import ClockTrust
from trainyard.server.leader.leader_lease import LeaderTerm
from trainyard.server.logs.log_files import LogStore
from trainyard.server.settings import ServerSettings
from trainyard.server.store import audit, events, nonces
from trainyard.server.store.jobs import idempotency, workloads
from trainyard.server.store.people import tokens
from trainyard.server.store.usage import device_figures, samples

logger = logging.getLogger(__name__)

PASS_SECONDS = 300.0
DAY = 86400.0
# A deleted job's log is kept for so long, in case that it was a slip; an administrator can still read the file.
DELETED_DAYS = 1.0
# While the disk is full it is not: who deletes a job then wants its room.
FULL_SECONDS = 2.0
BATCH = 500
# After the clock was set by more than some minutes: a year that never was would make everything old.
LEAP_SECONDS = 6 * 3600.0


class Retention:
    """Removes what is older than the settings say."""

    def __init__(
        self, term: LeaderTerm, logs: LogStore, settings: ServerSettings, disk: DiskSpace | None = None
    ) -> None:
        self._term = term
        self._disk = disk or DiskSpace()
        self._logs = logs
        self._settings = settings
        self._trust = ClockTrust(term.db, term.clock, patience=LEAP_SECONDS)

    async def run(self) -> None:
        """One pass after another, until cancelled."""
        passed = time.monotonic()
        while True:
            await asyncio.sleep(FULL_SECONDS)
            try:
                if self._disk.is_full():
                    await self.make_room()
                if time.monotonic() - passed >= PASS_SECONDS:
                    passed = time.monotonic()
                    await self.look()
            except Error as error:
                logger.warning("what is old stays for now: %s", error)

    async def make_room(self) -> None:
        """Remove the logs of deleted jobs at once. Their rows go later: those take no room that anybody would feel."""
        now = self._term.clock.now().timestamp()
        deleted = await self._term.db.read(lambda c: workloads.deleted_before(c, now, limit=BATCH))
        for workload in deleted:
            await asyncio.to_thread(self._logs.delete, workload)

    async def look(self) -> None:
        """One pass."""
        if await self._trust.is_lost():
            logger.warning("the clock was set: nothing is removed until it has gone on for some hours")
            return
        now = self._term.clock.now().timestamp()
        settings = self._settings
        old = await self._term.db.read(
            lambda c: [
                one.id for one in workloads.ended_before(c, now - settings.log_days * DAY, limit=BATCH)
            ]
        )
        for workload in old:
            await asyncio.to_thread(self._logs.delete, workload)
        gone = await self._term.write(lambda c: self._purge(c, now))
        for workload in gone:
            await asyncio.to_thread(self._logs.delete, workload)

    def _purge(self, c: Connection, now: float) -> list[str]:
        settings = self._settings
        gone = workloads.deleted_before(c, now - DELETED_DAYS * DAY, limit=BATCH)
        gone += [one.id for one in workloads.ended_before(c, now - settings.job_days * DAY, limit=BATCH)]
        workloads.purge(c, gone)
        events.delete_before(c, now - settings.event_days * DAY)
        audit.delete_before(c, now - settings.audit_days * DAY)
        idempotency.delete_before(c, now - DAY)
        nonces.delete_before(c, now)
        tokens.delete_expired(c, now)
        samples.delete_before(c, now)
        device_figures.delete_before(c, now)
        return gone
