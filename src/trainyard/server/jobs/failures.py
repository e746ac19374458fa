"""Why a job has failed: the logs of the tasks that failed, and what diagnosis.py finds in them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from trainyard.client.schemas import Diagnosis
from trainyard.server.auth.actor import Actor
from trainyard.server.explain.diagnosis import diagnose
from trainyard.server.jobs.service import Jobs
from trainyard.server.logs.log_files import LogStore
from trainyard.server.records.tasks import TaskRecord
from trainyard.spec.exit_reasons import NEVER_BEGAN, NOT_STARTED, exit_reason
from trainyard.spec.workload import State

LOOKED_AT_TASKS = 32
LOOKED_AT_BYTES = 256 * 1024  # at the end of each task's log, and
LOOKED_AT_IN_ALL = (
    1 << 20
)  # of all: a job that prints what looks like failures to us takes a second, and not ten
FAILING = frozenset({State.FAILED, State.RETAINED, State.FINISHING})


async def diagnose_job(
    jobs: Jobs, logs: LogStore, actor: Actor, job_id: str, *, chinese: bool = False
) -> Diagnosis | None:
    """What is known of the failure of a job's last attempt; None where it has not failed."""
    record = await jobs.get(actor, job_id)
    if record.state not in FAILING or not record.exit_code:
        return None
    tasks = [one for one in await jobs.tasks(actor, record.id) if one.exit_code]
    # What ended first is more likely the cause than what ended because of it.
    tasks.sort(key=lambda task: (task.was_told, task.ended_at or 0.0))
    found = await asyncio.to_thread(
        lambda: diagnose(record.exit_code, _logs(logs, tasks[:LOOKED_AT_TASKS]), chinese=chinese)
    )
    # The platform did not start it, and has said why: the code says nothing of a command then.
    untried = record.exit_code == NOT_STARTED and any(
        exit_reason(task.reason) in NEVER_BEGAN for task in tasks
    )
    return replace(found, meaning="") if untried else found


def _logs(logs: LogStore, tasks: Sequence[TaskRecord]) -> list[tuple[str, list[str]]]:
    limit = min(LOOKED_AT_BYTES, LOOKED_AT_IN_ALL // max(1, len(tasks)))
    return [
        (
            task.name,
            [
                task.message,  # what the node itself says of its end
                *logs.before(task.workload_id, task.attempt, task.name, limit=limit)
                .data.decode(errors="replace")
                .splitlines(),
            ],
        )
        for task in tasks
    ]
