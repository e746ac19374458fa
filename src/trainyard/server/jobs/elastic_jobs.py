"""Elastic jobs that run with fewer replicas than they want: when one is due for more, and how it is told to start anew. Pure.

Whether there is room for more is the scheduler's to say (scheduling/elastic_jobs.py); pools that get more nodes are elastic_pools.py.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.scheduling import Enlarge
from trainyard.server.cluster import scheduler_snapshot
from trainyard.server.jobs import lifecycle
from trainyard.server.jobs.turn_changes import Job, TurnChanges
from trainyard.spec.workload import Desired, State, TaskState, tasks_of

GROWING = lifecycle.GROWING


def is_due(job: Job, tick: float) -> bool:
    """Whether it has run for long enough with fewer replicas than it wants; `tick` is by the clock that never steps."""
    record = job.record
    wait, limit = record.spec.grow_seconds, record.spec.max_run_seconds
    # NB: began is unknown until its nodes have said how long it runs: another leader may have started it a moment ago.
    if not wait or job.began is None or tick - job.began < wait:
        return False
    if limit and limit - _ran(job, tick) < wait:
        return False  # so little is left of its time that starting anew costs more than it brings
    return (
        record.state is State.RUNNING
        and record.desired is Desired.RUN
        and len(job.tasks) < len(tasks_of(record.spec))
        # What has begun to end is not started again, and on a node that is silent nobody hears us.
        and all(task.state is TaskState.RUNNING for task in job.tasks.values())
    )


def _ran(job: Job, tick: float) -> float:
    """How long it has run in all: in this start, and in those that it left to grow."""
    return scheduler_snapshot.ran_before(job.record) + (
        0.0 if job.began is None else max(0.0, tick - job.began)
    )


def enlarge(turn_changes: TurnChanges, job: Job, found: Enlarge, now: float, tick: float) -> None:
    """Ask a job to go, for it starts at once again with more replicas. It is neither a failure nor a retry.

    Its time limit goes on: it said that it goes on where it was.
    """
    claim = [[slot.role, slot.node, list(slot.devices)] for slot in found.slots]
    job.record = replace(
        job.record,
        leave_by=found.leave_by,
        leave_for=found.id,
        wait={"claim": claim, "had": found.count, "ran": _ran(job, tick)},
    )
    count, seconds = len(found.slots), round(found.leave_by - now)
    lifecycle.finish(
        turn_changes,
        job,
        now,
        State.WAITING,
        reason=GROWING,
        message=f"There is room for {count} tasks instead of {found.count}: it has {seconds} s, and starts anew with them.",
        data={"from": found.count, "to": count},
    )
