"""What becomes of a workload by the scheduler's, people's and the clock's will: it is placed, held, told to go, ended. Pure.

Nothing here reads a clock, a database or a node. The conductor collects the changes of one turn in a `TurnChanges` (turn_changes.py) and
writes them in one transaction. What follows from what nodes say is task_events.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainyard.messages.catalogue import Said, say
from trainyard.scheduling import Admit, Slot
from trainyard.server.cluster.scheduler_snapshot import ran_before, time_run
from trainyard.server.jobs.turn_changes import Job, TurnChanges
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workload_steps import Step, advanced
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import Desired, State, TaskState, task_name, tasks_of

# Why a workload that runs is told to go and to come back.
GROWING = "growing"
# Why the books pause a job.
OVER_BUDGET = "over_budget"
SENT_BACK = frozenset({"preempted", "paused", OVER_BUDGET, "drained", "start_failed", "hung", GROWING})
# Why a workload is held that other ones have to end before.
WAITS_FOR_JOBS = "waits_for_jobs"
# By its own times a workload may have run for so much longer than by those of its tasks, or shorter: told to go, it takes its time.
LEAST_STEP_SECONDS, MOST_GRACE_SECONDS = 60.0, 600.0
CLEARED = "No process of it is left; its places are free."


# -- admission


def admit(turn_changes: TurnChanges, record: WorkloadRecord, admitted: Admit, now: float) -> Job:
    """Give a waiting workload its places, and start it."""
    attempt = record.attempt + 1
    placed = place_tasks(record, attempt, admitted.slots)
    nodes = _listed(sorted({task.node for task in placed}))
    record = turn_changes.advance(
        record,
        State.ADMITTED,
        now,
        reason="admitted",
        message=f"Placed on {nodes}.{_grown(record, placed)}{_fewer(record, placed)}",
        wait=time_run(record),
    )
    record = turn_changes.advance(
        record,
        State.STARTING,
        now,
        reason="starting",
        message=f"Start {attempt} is under way.",
        data={"attempt": attempt},
    )
    turn_changes.new_tasks += placed
    turn_changes.launches.append(record.id)
    return Job(record, {task.name: task for task in placed})


def _grown(record: WorkloadRecord, placed: list[TaskRecord]) -> str:
    """What is to be said of a workload that went for a larger start, and has it now."""
    had = (record.wait or {}).get("had", 0)
    return f" It had {had} tasks, and has {len(placed)} now." if had and had != len(placed) else ""


def _fewer(record: WorkloadRecord, placed: list[TaskRecord]) -> str:
    """What is to be said of an elastic workload that has not got all of its replicas."""
    wanted = len(tasks_of(record.spec))
    if len(placed) == wanted:
        return ""
    return f" It is elastic, and runs with {len(placed)} of {wanted} tasks."


def place_tasks(record: WorkloadRecord, attempt: int, slots: Iterable[Slot]) -> list[TaskRecord]:
    """One task for every slot, in the order of roles; an elastic role has as many as were given."""
    by_role: dict[str, list[Slot]] = {}
    for slot in slots:
        by_role.setdefault(slot.role, []).append(slot)
    placed: list[TaskRecord] = []
    for role, number in tasks_of(record.spec):
        if number >= len(by_role.get(role.name, ())):
            continue
        slot = by_role[role.name][number]
        placed.append(
            TaskRecord(
                workload_id=record.id,
                attempt=attempt,
                name=task_name(role.name, number),
                role=role.name,
                number=number,
                rank=len(placed),
                node=slot.node,
                devices=slot.devices,
                state=TaskState.PENDING,
            )
        )
    return placed


# -- what people want


def follow_wish(turn_changes: TurnChanges, record: WorkloadRecord, now: float) -> WorkloadRecord:
    """Act on `desired` for a workload that holds nothing: into the queue, out of it, or to its end."""
    state = State(record.state)
    if record.desired == Desired.CANCEL and state in {State.WAITING, State.HELD}:
        return turn_changes.advance(
            record,
            State.CANCELLED,
            now,
            reason="stopped",
            message="Stopped before it started.",
            data={"text": "stopped_before_start"},
        )
    if record.desired == Desired.PAUSE and state is State.WAITING:
        said = _why_paused(record, "paused")
        return turn_changes.advance(
            record, State.HELD, now, reason=_pause_reason(record), message=said.message
        )
    if record.desired == Desired.RUN and state is State.HELD and record.reason != WAITS_FOR_JOBS:
        return turn_changes.advance(record, State.WAITING, now, reason="queued", message="In the queue.")
    return record


def follow_wish_of_holder(turn_changes: TurnChanges, job: Job, now: float) -> None:
    """Act on `desired` for a workload that holds places."""
    record = job.record
    state = State(record.state)
    if record.desired == Desired.RUN:
        if state is State.FINISHING and record.ending == State.HELD:
            job.record = turn_changes.change(replace(record, ending=State.WAITING))
        return
    cancelled = record.desired == Desired.CANCEL
    ending = State.CANCELLED if cancelled else State.HELD
    if state is State.FINISHING:
        if record.ending in {State.WAITING, State.HELD} and record.ending != ending:
            job.record = turn_changes.change(replace(record, ending=ending))
        return
    if state is State.RETAINED and not cancelled:
        return  # the program has ended: there is nothing to pause
    if state is State.RETAINED:  # its result stands
        finish(
            turn_changes,
            job,
            now,
            State(record.ending),
            reason=record.reason,
            message=record.message,
            data=record.facts,
        )
        return
    if cancelled:
        finish(turn_changes, job, now, ending, reason="stopped", message="Stopped.")
    else:
        said = _why_paused(record, "paused_while_running")
        finish(
            turn_changes,
            job,
            now,
            ending,
            reason=_pause_reason(record),
            message=said.message,
            data={"text": said.code},
        )


def _pause_reason(record: WorkloadRecord) -> str:
    return OVER_BUDGET if record.reason == OVER_BUDGET else "paused"


def _why_paused(record: WorkloadRecord, by_a_person: str) -> Said:
    """What is said of it: who finds their job held should not have to guess that money is the reason."""
    return say(OVER_BUDGET if record.reason == OVER_BUDGET else by_a_person)


# -- the end


def finish(
    turn_changes: TurnChanges,
    job: Job,
    now: float,
    ending: State,
    *,
    reason: str,
    message: str,
    exit_code: int | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Begin to end a workload: its places are free when no process of it is left."""
    record = job.record
    changes: dict[str, Any] = {"ending": ending, "retain_until": None}
    if exit_code is not None:
        changes["exit_code"] = exit_code
    job.record = turn_changes.advance(
        record, State.FINISHING, now, reason=reason, message=message, data=data, **changes
    )
    turn_changes.ends[record.id] = None
    settle(turn_changes, job, now)


def preempt(
    turn_changes: TurnChanges, job: Job, now: float, *, for_id: str, leave_by: float, message: str
) -> None:
    """Send a workload back to the queue, with its age."""
    job.record = replace(job.record, leave_by=leave_by, leave_for=for_id)
    finish(turn_changes, job, now, State.WAITING, reason="preempted", message=message)


def settle(turn_changes: TurnChanges, job: Job, now: float) -> None:
    """Where nothing of a finishing workload is left, move it on."""
    record = job.record
    if record.state != State.FINISHING or not all(task.is_cleared for task in job.tasks.values()):
        return
    turn_changes.ends.pop(record.id, None)
    turn_changes.forgets.append((job.attempt_id, job.nodes))
    record = _as_its_tasks_ran(job)
    if record.reason in SENT_BACK and all(_was_done(task) for task in job.tasks.values()):
        # It was done before it heard that it should go: running it again would be running it twice.
        codes = [task.exit_code or 0 for task in job.tasks.values()]
        code = next((code for code in codes if code), 0)
        reached = State.FAILED if code else State.SUCCEEDED
        job.record = turn_changes.advance(
            record,
            reached,
            now,
            reason=reached.value,
            message=f"Ended with {code}.",
            exit_code=code,
            data={"text": "ended_with", "code": code},
        )
        return
    to = State(record.ending)
    # The places of a larger start are its own, until it has them or is wanted no more.
    changes = {"wait": record.wait} if to is State.WAITING and record.leave_for == record.id else {}
    ended = Step(
        record=record, to=to, reason=record.reason, message=record.message, changes=changes, data=record.facts
    )
    job.record = turn_changes.change(advanced(ended, now))
    turn_changes.tell(
        job.record, now, record.reason, CLEARED, {"text": "cleared"}
    )  # why it ends was said when it began to


def _as_its_tasks_ran(job: Job) -> WorkloadRecord:
    """With the times of its tasks where its own cannot be: the clock was set while it ran, and its nodes have counted."""
    record, tasks = job.record, job.tasks.values()
    begins = [task.started_at for task in tasks if task.started_at is not None]
    ends = [task.ended_at for task in tasks if task.ended_at is not None]
    if record.started_at is None or record.stopped_at is None or not begins or not ends:
        return record
    begin, end = min(begins), max(ends)
    length, known = record.stopped_at - record.started_at, end - begin
    is_likely = length >= 0 and -LEAST_STEP_SECONDS <= known - length <= MOST_GRACE_SECONDS
    if known < 0 or is_likely:
        return record
    return replace(record, started_at=begin, stopped_at=end)


def _was_done(task: TaskRecord) -> bool:
    return task.state == TaskState.ENDED and not task.was_told


# -- time


def pass_time(turn_changes: TurnChanges, job: Job, now: float) -> None:
    """The time of a workload is up: end what has run for as long as it may, and what was kept for a look long enough."""
    record = job.record
    if record.state == State.RUNNING:
        finish(
            turn_changes,
            job,
            now,
            State.FAILED,
            reason="time_limit",
            message=f"Stopped after its time limit of {record.spec.max_run_seconds} s.",
            data={"seconds": record.spec.max_run_seconds},
        )
    elif record.state == State.RETAINED:
        finish(
            turn_changes,
            job,
            now,
            State(record.ending),
            reason=record.reason,
            message=record.message,
            data=record.facts,
        )


def next_due(job: Job, now: float, tick: float) -> float | None:
    """When the time of a workload is up, by the clock that never steps; `tick` is now by that one."""
    record = job.record
    if record.state == State.RUNNING and record.spec.max_run_seconds:
        # NB: unknown until its nodes answer, who alone know how long it has run. Until then nobody could end it either.
        return None if job.began is None else job.began + record.spec.max_run_seconds - ran_before(record)
    if record.state == State.RETAINED and record.retain_until is not None:
        if job.kept_until is None:
            left = min(max(0.0, record.retain_until - now), float(record.spec.retain_seconds))
            job.kept_until = tick + left
        return job.kept_until
    return None


def grace_left(job: Job, now: float, tick: float) -> float:
    """How long a workload that is told to go may take."""
    record = job.record
    if record.leave_by is not None:
        if job.leaves_at is None:
            job.leaves_at = tick + max(0.0, record.leave_by - now)
        return max(0.0, job.leaves_at - tick)
    return float(record.spec.grace_seconds)


def _listed(names: list[str]) -> str:
    if len(names) <= 4:
        return ", ".join(names)
    return ", ".join(names[:3]) + f" and {len(names) - 3} more"
