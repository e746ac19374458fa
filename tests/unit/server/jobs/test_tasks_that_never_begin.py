"""A task that ends before it has met the others: those who could do without it later still wait for it now."""

from __future__ import annotations

import pytest

from trainyard.engines.api import TaskEnded, TaskStarted
from trainyard.server.jobs import task_events
from trainyard.server.jobs.turn_changes import Job, TurnChanges
from trainyard.server.launch import kinds
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.exit_reasons import EXIT_CODES, NEVER_BEGAN, ExitReason
from trainyard.spec.workload import Launcher, RoleSpec, State, Success, TaskState, WorkloadSpec, tasks_of

RAY = WorkloadSpec(name="j", command="x", kind="RayJob", roles=(RoleSpec(replicas=3),))
WHY = "the packages of this job could not be installed"


def begun(spec: WorkloadSpec) -> Job:
    """All tasks of a job run, as far as their node can tell."""
    spec = kinds.fit(spec)
    record = WorkloadRecord(
        id="w", name="j", kind="job", workspace_id="w", user_id="u", spec=spec, submitted_at=0.0,
        state=State.STARTING, attempt=1,
    )  # fmt: skip
    names = [(role.name, number) for role, number in tasks_of(spec)]
    tasks = {
        f"{role}-{number}": TaskRecord(
            workload_id="w", attempt=1, name=f"{role}-{number}", role=role, number=number, rank=rank, node="n",
            state=TaskState.PENDING,
        )
        for rank, (role, number) in enumerate(names)
    }  # fmt: skip
    job = Job(record, tasks)
    for name in tasks:
        task_events.watch(TurnChanges(), job, TaskStarted("w.1", name, 1.0, "127.0.0.1"), 1.0)
    assert job.record.state is State.RUNNING
    return job


def ended(job: Job, task: str, code: int, message: str = "", *, was_told: bool = False) -> Job:
    never = {EXIT_CODES[one]: one for one in NEVER_BEGAN} if message == WHY else {}
    reason = never.get(code, ExitReason.EXITED)
    seen = TaskEnded("w.1", task, code, 0, message, 2.0, reason=reason, was_told=was_told)
    task_events.watch(TurnChanges(), job, seen, 2.0)
    return job


@pytest.mark.parametrize("code", [125, 126, 127, 200, 204, 205])
def test_a_ray_job_fails_at_once_with_the_workers_reason_when_a_worker_cannot_begin(code):
    job = ended(begun(RAY), "worker-1", code, WHY)
    assert (job.record.state, job.record.ending, job.record.exit_code) == (State.FINISHING, "failed", code)
    assert job.record.message == f"Task worker-1 ended with {code} ({WHY})."


def test_a_launchers_job_fails_at_once_when_one_that_stands_by_cannot_begin():
    spec = WorkloadSpec(
        name="j",
        command="x",
        roles=(RoleSpec(replicas=2),),
        launcher=Launcher.TORCHRUN,
        success=Success.FIRST,
    )
    assert ended(begun(spec), "worker-1", 200, WHY).record.ending == "failed"


@pytest.mark.parametrize(
    ("code", "message"),
    [(1, ""), (1, WHY), (127, ""), (200, ""), (137, "ended by signal 9 (SIGKILL)")],
    ids=["failed", "said", "no-ray", "own-200", "killed"],
)
def test_a_ray_job_goes_on_when_a_worker_ends_that_had_begun(code, message):
    assert ended(begun(RAY), "worker-1", code, message).record.state is State.RUNNING


def test_a_plain_job_goes_on_when_a_task_that_nobody_waits_for_cannot_begin():
    spec = WorkloadSpec(name="j", command="x", roles=(RoleSpec(replicas=2),), success=Success.FIRST)
    assert ended(begun(spec), "worker-1", 200, WHY).record.state is State.RUNNING


def test_a_job_is_done_when_its_head_ends_before_a_worker_says_why_it_could_not_begin():
    job = ended(begun(RAY), "head-0", 0)
    assert ended(job, "worker-1", 204, "not reached").record.ending == "succeeded"
