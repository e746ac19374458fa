"""`schedule`: one cycle from a snapshot, as a pure function. The same rules with a memory are engine.py."""

from __future__ import annotations

from trainyard.scheduling.diagnosis import waits
from trainyard.scheduling.model import Decision, Snapshot
from trainyard.scheduling.scheduler import Scheduler


def schedule(snapshot: Snapshot, now: float) -> list[Decision]:
    """Exactly one decision for every waiting workload; Preempt for some running ones; Acquire for pools that grow."""
    scheduler = Scheduler(snapshot, now)
    cycle = scheduler.cycle(now)
    return [*cycle.admits, *cycle.preempts, *cycle.acquires, *waits(scheduler)]
