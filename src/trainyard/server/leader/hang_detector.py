"""Notices jobs that hang: no task of them says anything and, where nodes can tell, none of their devices does anything.

By the clock that never steps, and from when this server began to lead: a new leader waits the whole time again. While a
node does not answer, nobody knows, so nothing counts. What is done about a hung job is hang_policy.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainyard.engines.api import Meter, Reading
from trainyard.lib.clock import Clock
from trainyard.server.jobs.hang_policy import HungAttempt
from trainyard.server.jobs.turn_changes import Job
from trainyard.spec.workload import State, TaskState

LOOK_SECONDS = 1.0
BUSY_PERCENT = 1.0  # a device that does less does nothing
# Readings that are older say nothing about now.
FRESH_SECONDS = 120.0


class ActivityMeter:
    """A meter that notes which attempts use their devices, and hands everything on."""

    def __init__(self, clock: Clock, following: Meter) -> None:
        self._clock = clock
        self._following = following
        self.used: dict[str, float] = {}  # attempt → when a device of it did something
        self.known: dict[str, float] = {}  # attempt → when a node could tell

    def take(
        self, node: str, time: float, own: Reading | None, tasks: Mapping[tuple[str, str], Reading]
    ) -> None:
        """Note what a node has sent."""
        now = self._clock.monotonic()
        for (attempt_id, _task), reading in tasks.items():
            busy = [one.busy_percent for one in reading.devices if one.busy_percent is not None]
            if busy:
                self.known[attempt_id] = now
            if any(percent >= BUSY_PERCENT for percent in busy):
                self.used[attempt_id] = now
        self._following.take(node, time, own, tasks)

    def forget_but(self, attempts: set[str]) -> None:
        """Forget attempts that are over."""
        for noted in (self.used, self.known):
            for one in noted.keys() - attempts:
                del noted[one]


@dataclass(slots=True)
class _Watched:
    alive_at: float
    sizes: dict[str, int] = field(default_factory=dict)
    last_task: str = ""
    is_told: bool = False


class HangDetector:
    """Looks at all jobs that want to be watched over."""

    def __init__(
        self,
        clock: Clock,
        jobs: Callable[[], list[Job]],
        size: Callable[[str, int, str], int],
        told: Callable[[HungAttempt], None],
        pulse: ActivityMeter | None = None,
    ) -> None:
        self._clock = clock
        self._jobs = jobs
        self._size = size
        self._told = told
        self._pulse = pulse
        self._watched: dict[str, _Watched] = {}

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """One look."""
        now = self._clock.monotonic()
        wanted = {
            job.attempt_id: job
            for job in self._jobs()
            if job.record.spec.hang_seconds and job.record.state == State.RUNNING
        }
        for gone in self._watched.keys() - wanted.keys():
            del self._watched[gone]
        if self._pulse is not None:
            self._pulse.forget_but({job.attempt_id for job in self._jobs()})
        for attempt_id, job in wanted.items():
            watched = self._watched.setdefault(attempt_id, _Watched(now))
            self._feel(watched, job, now)
            limit = job.record.spec.hang_seconds
            if now - watched.alive_at >= limit and not watched.is_told:
                watched.is_told = True
                known = (
                    self._pulse is not None and now - self._pulse.known.get(attempt_id, -1e9) < FRESH_SECONDS
                )
                told = HungAttempt(
                    job.record.id, attempt_id, round(now - watched.alive_at), watched.last_task, known
                )
                self._told(told)

    def _feel(self, watched: _Watched, job: Job, now: float) -> None:
        record = job.record
        for task in job.tasks.values():
            if task.state == TaskState.LOST:
                watched.alive_at = now  # nobody knows
            size = self._size(record.id, record.attempt, task.name)
            if size != watched.sizes.get(task.name, 0):
                watched.sizes[task.name] = size
                watched.last_task = task.name
                watched.alive_at = now
        used = self._pulse.used.get(job.attempt_id) if self._pulse is not None else None
        if used is not None:
            watched.alive_at = max(watched.alive_at, used)
