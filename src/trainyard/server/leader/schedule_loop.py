"""Looks at the clock for schedules: by the leader, once a second. What a moment brings is jobs/schedules.py."""

from __future__ import annotations

import asyncio
import logging

from trainyard.lib.clock import Steps
from trainyard.lib.errors import Error
from trainyard.server.jobs.schedules import plan_anew, tick, too_late
from trainyard.server.leader.leader_lease import LeaderTerm
from trainyard.server.service_context import Context
from trainyard.server.store.jobs import schedules
from trainyard.server.wakeups import EVENTS, RECONCILER

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
# Another server, whose clock was wrong, may have planned one: that is not seen by our clock.
PLAN_SECONDS = 600.0


class ScheduleLoop:
    """Submits the jobs of schedules whose time has come."""

    def __init__(self, term: LeaderTerm, context: Context) -> None:
        self._term = term
        self._context = context
        self._steps = Steps(term.clock)
        self._plan_at = term.clock.monotonic()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except Error as error:
                logger.warning("schedules are looked at again later: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> int:
        """One look; how many jobs were submitted. Each in a transaction of its own, so that one does not keep the others."""
        now = self._context.now()
        submitted = 0
        if self._term.db.is_short_of_room():  # they are still due when there is room
            return submitted
        await self._plan(now)
        for schedule in await self._term.db.read(lambda c: schedules.due_schedules(c, now)):
            try:
                made = await self._term.write(lambda c, one=schedule: tick(c, self._context, one, now))  # type: ignore[misc]
            except Error as error:  # written by somebody meanwhile: it is still due
                logger.info("the schedule %s is looked at again: %s", schedule, error)
                continue
            if made is not None:
                submitted += 1
                self._context.wakeups.wake(RECONCILER, EVENTS)
        return submitted

    async def _plan(self, now: float) -> None:
        """Now and then, and after the clock was set: let none wait for a time that is not the next any more."""
        if self._steps.was_set():
            self._plan_at = self._term.clock.monotonic()
        if self._term.clock.monotonic() < self._plan_at:
            return
        for schedule in await self._term.db.read(lambda c: too_late(c, now)):
            await self._term.write(lambda c, one=schedule: plan_anew(c, one, now))  # type: ignore[misc]
        self._plan_at = self._term.clock.monotonic() + PLAN_SECONDS
