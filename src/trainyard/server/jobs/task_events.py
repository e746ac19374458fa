"""What nodes say about the tasks of a workload, and what that means for it: runs, succeeds, fails, is lost. Pure.

What people and the scheduler want of it, and how it ends, is lifecycle.py; a job that says nothing at all is hang_policy.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from trainyard.engines.api import (
    Observation,
    TaskCleared,
    TaskEnded,
    TaskNoted,
    TaskStarted,
    TaskUnknown,
)
from trainyard.server.jobs.lifecycle import finish, settle
from trainyard.server.jobs.turn_changes import Job, TurnChanges
from trainyard.server.launch import kinds
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.exit_reasons import NEVER_BEGAN, ExitReason, exit_reason
from trainyard.spec.workload import RETRIED_EXIT_CODES, Restart, Retain, State, TaskState

# A workload that could not be started so often, on whatever nodes, is given up.
MAX_START_FAILURES = 5
# Nodes that a workload avoids at most, because they failed it.
MOST_AVOIDED = 16

# Clocks that differ by less were not set.
LEAST_STEP_SECONDS = 60.0

OfTask = TaskStarted | TaskEnded | TaskNoted | TaskCleared | TaskUnknown


def note(turn_changes: TurnChanges, job: Job, seen: TaskNoted) -> None:
    """Tell people what a node has to say about a task: each thing once for a whole attempt."""
    if (seen.code, seen.message) not in job.noted:
        job.noted.add((seen.code, seen.message))
        turn_changes.tell(job.record, seen.time, seen.code, seen.message)


def watch(turn_changes: TurnChanges, job: Job, seen: Observation, now: float) -> None:
    """Take over what a node said about a task of this attempt. Saying it twice changes nothing."""
    if isinstance(seen, TaskNoted):
        note(turn_changes, job, seen)
    if not isinstance(seen, TaskStarted | TaskEnded | TaskCleared | TaskUnknown):
        return
    task = job.tasks.get(seen.task)
    if task is None or task.is_cleared:
        return
    if isinstance(seen, TaskStarted):
        if task.state in {TaskState.PENDING, TaskState.LOST}:
            task = replace(
                task, state=TaskState.RUNNING, started_at=seen.time, address=seen.address, message=""
            )
    elif isinstance(seen, TaskEnded):
        if task.state != TaskState.ENDED:
            began, ended = _stretch(task, seen, now)
            task = replace(
                task,
                state=TaskState.ENDED,
                exit_code=seen.exit_code,
                reason=seen.reason.value,
                ended_at=ended,
                message=seen.message,
                was_told=seen.was_told or seen.is_fenced,
                started_at=began,
            )
    elif isinstance(seen, TaskCleared):
        state = task.state if task.state == TaskState.ENDED else TaskState.LOST
        task = replace(task, state=state, is_cleared=True, log_bytes=seen.log_bytes)
    else:
        task = replace(
            task,
            state=TaskState.LOST,
            is_cleared=True,
            message="Its node no longer knows of it.",
            ended_at=now,
        )
    if task != job.tasks[task.name]:
        job.tasks[task.name] = turn_changes.change_task(task)
        judge(turn_changes, job, now)


def _stretch(task: TaskRecord, seen: TaskEnded, now: float) -> tuple[float, float]:
    """From when to when a task has run: as long as its node has counted, whatever its clock was set to meanwhile."""
    began = task.started_at if task.started_at is not None else seen.time
    ran = max(0.0, seen.time - began) if seen.ran_seconds is None else seen.ran_seconds
    if began <= seen.time and abs(began + ran - seen.time) <= LEAST_STEP_SECONDS:
        return began, seen.time
    if began > now + LEAST_STEP_SECONDS:  # it was wrong then, and is not any more
        return seen.time - ran, seen.time
    return began, began + ran


def judge(turn_changes: TurnChanges, job: Job, now: float) -> None:
    """Decide from its tasks where a workload stands."""
    tasks = list(job.tasks.values())
    if job.record.state == State.STARTING and all(task.state != TaskState.PENDING for task in tasks):
        started = min((task.started_at for task in tasks if task.started_at is not None), default=now)
        job.record = turn_changes.advance(
            job.record,
            State.RUNNING,
            now,
            reason="running",
            message="All tasks run." if len(tasks) > 1 else "It runs.",
            data={"text": "all_tasks_run"} if len(tasks) > 1 else None,
            started_at=started,
            first_started_at=job.record.first_started_at or started,
        )
    if job.record.state in {State.STARTING, State.RUNNING}:
        _judge_running(turn_changes, job, tasks, now)
    else:
        settle(turn_changes, job, now)


def _judge_running(turn_changes: TurnChanges, job: Job, tasks: list[TaskRecord], now: float) -> None:
    gone = [
        task
        for task in tasks
        if (task.state == TaskState.LOST and task.is_cleared)
        or (task.state == TaskState.ENDED and task.was_told)
    ]
    if gone:
        job.record = shun(job.record, {task.node for task in gone})
        finish(
            turn_changes,
            job,
            now,
            State.WAITING,
            reason="task_lost",
            message=f"Task {gone[0].name} was lost with its node {gone[0].node}; it goes back to the queue.",
            data={"task": gone[0].name, "node": gone[0].node},
        )
        return
    spec = job.record.spec
    decisive = kinds.decisive(spec, tasks)
    fatal = kinds.fatal(spec, tasks)
    if len(tasks) > 1 and kinds.meets(spec):
        # Whoever else could do without this one waits for it at the gate: in vain.
        fatal += [task for task in tasks if _never_began(task) and task not in fatal]
    failed = [task for task in fatal if task.state == TaskState.ENDED and task.exit_code != 0]
    if failed:
        first = min(failed, key=lambda task: (task.ended_at or now, task.rank))
        _fail(turn_changes, job, first, now)
    elif all(task.state == TaskState.ENDED for task in decisive):
        _succeed(turn_changes, job, now)


def _never_began(task: TaskRecord) -> bool:
    return task.state == TaskState.ENDED and exit_reason(task.reason) in NEVER_BEGAN


def _succeed(turn_changes: TurnChanges, job: Job, now: float) -> None:
    spec = job.record.spec
    if spec.restart is Restart.ALWAYS and job.record.failures < spec.max_retries:
        job.record = replace(job.record, failures=job.record.failures + 1)
        finish(
            turn_changes,
            job,
            now,
            State.WAITING,
            reason="restarted",
            message="It ended, and is to be run again.",
            exit_code=0,
        )
        return
    _end(turn_changes, job, now, State.SUCCEEDED, reason="succeeded", message="Ended with 0.", exit_code=0)


def _fail(turn_changes: TurnChanges, job: Job, task: TaskRecord, now: float) -> None:
    spec, record = job.record.spec, job.record
    code = task.exit_code if task.exit_code is not None else 1
    which = f"Task {task.name}" if len(job.tasks) > 1 else "It"
    said = f"{which} ended with {code}" + (f" ({task.message})" if task.message else "")
    facts = {"task": task.name, "code": code, "exit": task.reason, "said": task.message}
    may = spec.restart in {Restart.ON_FAILURE, Restart.ALWAYS} or (
        spec.restart is Restart.EXIT_CODE and code in RETRIED_EXIT_CODES
    )
    if may and record.failures < spec.max_retries:
        job.record = replace(record, failures=record.failures + 1)
        finish(
            turn_changes,
            job,
            now,
            State.WAITING,
            reason="retried",
            message=f"{said}; retry {record.failures + 1} of {spec.max_retries}.",
            exit_code=code,
            data={**facts, "retry": record.failures + 1, "retries": spec.max_retries},
        )
        return
    is_port_taken = exit_reason(task.reason) is ExitReason.NO_PORT and kinds.has_ssh(spec)
    if is_port_taken and record.attempt < MAX_START_FAILURES:
        # Another job on the node has it. The next start has another port, so this is no failure of the job's.
        message = f"{said}; it is tried again."
        finish(turn_changes, job, now, State.WAITING, reason="port_taken", message=message, data=facts)
        return
    _end(
        turn_changes,
        job,
        now,
        State.FAILED,
        reason="failed",
        message=f"{said}.",
        exit_code=code,
        data=facts,
    )


def _end(
    turn_changes: TurnChanges,
    job: Job,
    now: float,
    ending: State,
    *,
    reason: str,
    message: str,
    exit_code: int,
    data: Mapping[str, object] | None = None,
) -> None:
    spec, record = job.record.spec, job.record
    keeps = (
        spec.retain is Retain.ALWAYS
        or (spec.retain is Retain.ON_FAILURE and ending is State.FAILED)
        or (spec.retain is Retain.ON_SUCCESS and ending is State.SUCCEEDED)
    )
    if spec.retain_seconds and keeps and record.state == State.RUNNING:
        job.record = turn_changes.advance(
            record,
            State.RETAINED,
            now,
            reason=reason,
            message=message,
            data=data,
            ending=ending,
            exit_code=exit_code,
        )
        return
    finish(turn_changes, job, now, ending, reason=reason, message=message, exit_code=exit_code, data=data)


def shun(record: WorkloadRecord, nodes: Iterable[str]) -> WorkloadRecord:
    """The same workload, which avoids nodes that have failed it; the oldest of many are tried again."""
    listed = [*(one for one in record.avoid if one not in nodes), *sorted(nodes)]
    return replace(record, avoid=tuple(listed[-MOST_AVOIDED:]))


def could_not_start(
    turn_changes: TurnChanges,
    job: Job,
    now: float,
    *,
    message: str,
    unsent: str = "",
    blamed: str = "",
    is_final: bool = False,
) -> None:
    """A launch failed: what was started of it is ended, and it waits again. Node `unsent` cannot know of it."""
    if blamed:
        job.record = shun(job.record, {blamed})
    record = job.record
    for task in list(job.tasks.values()):
        if task.node == unsent and not task.is_cleared:
            job.tasks[task.name] = turn_changes.change_task(replace(task, is_cleared=True))
    given_up = record.attempt >= MAX_START_FAILURES and record.first_started_at is None
    finish(
        turn_changes,
        job,
        now,
        State.FAILED if given_up or is_final else State.WAITING,
        reason="start_failed",
        message=f"{message} Given up after {record.attempt} starts." if given_up else message,
    )


def lose_node(turn_changes: TurnChanges, job: Job, node: str, now: float) -> None:
    """A node is silent. Its tasks may still run, so nothing of them is ended or started again yet."""
    changed = False
    for task in list(job.tasks.values()):
        if task.node == node and task.state in {TaskState.PENDING, TaskState.RUNNING} and not task.is_cleared:
            if task.state == TaskState.RUNNING:
                job.tasks[task.name] = turn_changes.change_task(
                    replace(task, state=TaskState.LOST, message="Its node does not answer.")
                )
            changed = True
    if changed:
        turn_changes.tell(
            job.record,
            now,
            "node_silent",
            f"Node {node} does not answer; the job is found again when it does.",
            {"node": node},
        )


def bury(turn_changes: TurnChanges, job: Job, node: str, now: float, why: str) -> None:
    """A node is gone for good, or has ended its tasks by its fence: what it had is cleared."""
    for task in list(job.tasks.values()):
        if task.node == node and not task.is_cleared:
            state = task.state if task.state == TaskState.ENDED else TaskState.LOST
            job.tasks[task.name] = turn_changes.change_task(
                replace(task, state=state, is_cleared=True, message=why, ended_at=task.ended_at or now)
            )
    judge(turn_changes, job, now)
