"""What a new job may wait for: jobs that there are, that the submitter may see, and that can still end as needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, NotFoundError
from trainyard.server.auth.actor import Actor
from trainyard.server.jobs.dependencies import is_met, sentence
from trainyard.server.jobs.lifecycle import WAITS_FOR_JOBS
from trainyard.server.records.dependencies import NeedRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store.jobs import dependencies, workloads
from trainyard.server.validation import FieldError
from trainyard.spec.workload import FINAL, NeedSpec, State, WorkloadSpec

MOST = 200


def check_needs(spec: WorkloadSpec) -> None:
    """What can be said of them without looking."""
    if len(spec.after) > MOST:
        raise FieldError("after", f"has {len(spec.after)} jobs", hint=f"Wait for at most {MOST}.")
    names = [need.job for need in spec.after]
    if len(set(names)) < len(names):
        raise FieldError("after", "has one job twice", hint="Name each once.")


def open_needs(connection: Connection, actor: Actor, spec: WorkloadSpec) -> Sequence[NeedSpec]:
    """Those that are not met yet. There can be no circle: a job can only wait for what was submitted before it."""
    if not spec.after:
        return ()
    known = workloads.load_many(connection, [need.job for need in spec.after])
    found = []
    for need in spec.after:
        record = known.get(need.job)
        if record is None or record.deleted_at is not None or not actor.can("jobs:read", record.workspace_id):
            raise NotFoundError(
                f"There is no job {need.job!r} to wait for.", hint="Name jobs of `after` by their ids."
            )
        if record.state not in FINAL:
            found.append(need)
        elif not is_met(need.condition, record.state):
            raise ConflictError(
                f"The job {need.job} has ended ({record.state.value}), so it can never be {need.condition.value}.",
                hint="Leave it out of `after`, or wait for another condition.",
            )
    return found


def hold_for_needs(
    connection: Connection, actor: Actor, records: Sequence[WorkloadRecord]
) -> tuple[list[WorkloadRecord], list[NeedRecord]]:
    """New jobs, held where they wait for others, and what they wait for."""
    held: list[WorkloadRecord] = []
    needs: list[NeedRecord] = []
    for record in records:
        waits = open_needs(connection, actor, record.spec)
        needs += [NeedRecord(record.id, need.job, need.condition) for need in waits]
        held.append(_held(record, waits) if waits else record)
    return held, needs


def waits_on(connection: Connection, record: WorkloadRecord) -> WorkloadRecord:
    """A job that was let go on: held all the same where it waits for others."""
    left = [
        NeedSpec(job=one.needs_id, condition=one.condition)
        for one in dependencies.needs_of(connection, record.id)
    ]
    return _held(record, left) if left else record


def _held(record: WorkloadRecord, waits: Sequence[NeedSpec]) -> WorkloadRecord:
    if record.reason:  # an approval comes first
        return record
    return replace(record, state=State.HELD, reason=WAITS_FOR_JOBS, message=sentence(waits), queued_at=None)
