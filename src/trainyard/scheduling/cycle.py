"""The pure function `schedule`: one cycle from a snapshot. `scheduler.py` keeps state and follows the same rules."""

from __future__ import annotations

from trainyard.scheduling.diagnosis import waits
from trainyard.scheduling.model import Decision, Snapshot
from trainyard.scheduling.scheduler import Scheduler


def schedule(snapshot: Snapshot, now: float) -> list[Decision]:
    """Decide for every waiting workload, preempt some running ones, and acquire nodes for pools that can grow."""
    scheduler = Scheduler(snapshot, now)
    cycle = scheduler.cycle(now)
    return [*cycle.admits, *cycle.preempts, *cycle.acquires, *waits(scheduler)]
