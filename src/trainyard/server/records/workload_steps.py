"""A step of a workload to another state, and what it makes of the record. Only the leader makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainyard.lib.errors import ConflictError
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import TRANSITIONS, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One workload's way to another state, for `advance_many`."""

    record: WorkloadRecord
    to: State
    reason: str = ""
    message: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, object] | None = None  # what the sentence names; goes into the event too


# What an event is called when nobody gave a reason.
CODES: Mapping[State, str] = {state: state.value for state in State}
SENTENCES: Mapping[State, str] = {
    State.HELD: "It is held, until somebody lets it go on.",
    State.WAITING: "It is in the queue.",
    State.ADMITTED: "It has its places.",
    State.STARTING: "Its tasks are being started.",
    State.RUNNING: "It runs.",
    State.RETAINED: "Its program has ended; its places are kept for a look.",
    State.FINISHING: "What is left of it is being ended.",
    State.SUCCEEDED: "It has succeeded.",
    State.FAILED: "It has failed.",
    State.CANCELLED: "It was cancelled.",
}


def advanced(step: Step, now: float) -> WorkloadRecord:
    """The record after a step; pure. The version is still the one that was read."""
    record, to = step.record, step.to
    if to not in TRANSITIONS[record.state]:
        raise ConflictError(
            f"The job {record.id} is {record.state.value} and cannot become {to.value}.",
            hint="Load it again: it has moved on.",
        )
    if to is State.FINISHING and step.changes.get("ending") not in TRANSITIONS[State.FINISHING]:
        raise ValueError(f"{record.id}: FINISHING needs `ending`, the state that comes after it")
    noted: dict[str, Any] = {
        "state": to,
        "reason": step.reason,
        "message": step.message,
        "facts": step.data,
        "due_at": None,
        **_times(record, to, now),
        **step.changes,
    }
    if "ending" in step.changes:
        noted["ending"] = str(step.changes["ending"])
    return replace(record, **noted)


def _times(record: WorkloadRecord, to: State, now: float) -> dict[str, Any]:
    """What a step to this state changes by itself."""
    match to:
        case State.HELD:
            # Who paused it gave up its place in the queue.
            return {**_NOTHING_LEFT, "queued_at": None, "wait": None}
        case State.WAITING:
            kept = record.queued_at if record.queued_at is not None else now
            return {**_NOTHING_LEFT, "queued_at": kept, "wait": None, "exit_code": None, "stopped_at": None}
        case State.ADMITTED:
            return {"admitted_at": now, "attempt": record.attempt + 1, "wait": None, "exit_code": None}
        case State.RUNNING:
            first = record.first_started_at if record.first_started_at is not None else now
            return {"started_at": now, "first_started_at": first}
        case State.RETAINED:
            return {"stopped_at": now, "retain_until": now + record.spec.retain_seconds}
        case State.FINISHING:
            return {"stopped_at": record.stopped_at if record.stopped_at is not None else now}
        case State.SUCCEEDED | State.FAILED | State.CANCELLED:
            return {**_NOTHING_LEFT, "ended_at": now, "wait": None}
        case _:
            return {}


_NOTHING_LEFT = {"ending": "", "leave_by": None, "leave_for": "", "retain_until": None}
