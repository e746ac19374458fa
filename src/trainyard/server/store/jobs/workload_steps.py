"""Writes workloads with their state. Only the leader does.

`advance` refuses a step that is not in TRANSITIONS, notes the times, and appends the event, all in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from trainyard.server.records.workload_steps import CODES, SENTENCES, Step, advanced
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store import events
from trainyard.server.store.jobs.workloads import CHANGING, UPDATE, row_values
from trainyard.server.store.tables import workloads
from trainyard.server.store.versioned_rows import write_many, write_one
from trainyard.spec.events import Event, Subject
from trainyard.spec.workload import State


def save_many(connection: Connection, records: Sequence[WorkloadRecord]) -> list[str]:
    """Write those whose stored version is still the record's; returns the ids of the others, which were not written."""
    rows = [(record.id, record.version, row_values(record, CHANGING)) for record in records]
    return write_many(connection, UPDATE, rows, table=workloads, key="id")


def advance(
    connection: Connection,
    record: WorkloadRecord,
    to: State,
    *,
    now: float,
    reason: str = "",
    message: str = "",
    actor: str = "",
    **changes: Any,
) -> WorkloadRecord:
    """Bring a workload to another state: checks that the step is allowed, notes times, saves, appends the event.

    A state that follows FINISHING has to be given with it, as `ending`. Raises ConflictError for a step that is not
    in TRANSITIONS, StaleError where somebody wrote the workload meanwhile.
    """
    step = Step(record=record, to=to, reason=reason, message=message, changes=changes)
    moved = advanced(step, now)
    row = (moved.id, moved.version, row_values(moved, CHANGING))
    write_one(connection, UPDATE, row, table=workloads, key="id", what="job")
    moved = replace(moved, version=moved.version + 1)
    events.append(connection, _event(moved, step, now, actor))
    return moved


def advance_many(
    connection: Connection, steps: Sequence[Step], *, now: float, actor: str = ""
) -> list[WorkloadRecord]:
    """The same for many, at the price of three statements. Those that had moved on are left out of the answer."""
    moved = [advanced(step, now) for step in steps]
    stale = set(save_many(connection, moved))
    written = [(one, step) for one, step in zip(moved, steps, strict=True) if one.id not in stale]
    events.append_many(connection, [_event(one, step, now, actor) for one, step in written])
    return [replace(one, version=one.version + 1) for one, _step in written]


def _event(record: WorkloadRecord, step: Step, now: float, actor: str) -> Event:
    return Event(
        time=now,
        subject=Subject.WORKLOAD,
        subject_id=record.id,
        workspace_id=record.workspace_id,
        code=step.reason or CODES[record.state],
        message=step.message or SENTENCES[record.state],
        state=record.state.value,
        actor=actor,
        data=step.data,
    )
