"""Jobs that wait for jobs: whether a need is met, and what becomes of a job whose needs are or cannot be. Pure.

Where needs are kept is jobs/dependencies.py; who looks at them is the conductor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainyard.server.jobs.lifecycle import WAITS_FOR_JOBS
from trainyard.server.jobs.turn_changes import TurnChanges
from trainyard.server.records.dependencies import EndedNeed
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import Condition, Desired, NeedSpec, State

_WORDS = {Condition.SUCCEEDED: "succeed", Condition.FAILED: "fail", Condition.ENDED: "end"}


def is_met(condition: Condition, state: State | None) -> bool:
    """Whether a job that has ended so, is what was waited for. One that was stopped has neither succeeded nor failed."""
    if condition is Condition.ENDED:
        return True
    wanted = State.SUCCEEDED if condition is Condition.SUCCEEDED else State.FAILED
    return state is wanted


def sentence(needs: Sequence[NeedSpec]) -> str:
    """What a job waits for, for people."""
    told = [f"{need.job} to {_WORDS[need.condition]}" for need in needs[:5]]
    more = f" and {len(needs) - 5} more" if len(needs) > 5 else ""
    return f"It waits for {', '.join(told)}{more}."


def follow_needs(
    turn_changes: TurnChanges, record: WorkloadRecord, ended: Sequence[EndedNeed], now: float, *, left: int
) -> WorkloadRecord:
    """Take over that jobs which this one waits for have ended; `left` others have not."""
    turn_changes.met += [(record.id, one.need.needs_id) for one in ended]
    if record.state is not State.HELD:
        return record  # it is over, or somebody let it go on
    for one in ended:
        if not is_met(one.need.condition, one.state):
            return turn_changes.advance(
                record, State.CANCELLED, now, reason="need_not_met", message=_why_never(one)
            )
    if left or record.reason != WAITS_FOR_JOBS:
        return record
    if record.desired == Desired.RUN:
        return turn_changes.advance(
            record,
            State.WAITING,
            now,
            reason="queued",
            message="What it waited for has ended: it is in the queue.",
        )
    changed = turn_changes.change(
        replace(record, reason="paused", message="What it waited for has ended; it is paused.")
    )
    turn_changes.tell(changed, now, "needs_met", changed.message)
    return changed


def _why_never(one: EndedNeed) -> str:
    need = one.need
    became = "is gone" if one.state is None else f"has {_PAST[one.state]}"
    return f"It needed {need.needs_id} to {_WORDS[need.condition]}, which {became}."


_PAST = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.CANCELLED: "been cancelled"}
