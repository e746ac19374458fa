"""What becomes of a workload when something happens to it: pure functions from records to changed records and events.

Nothing here reads a clock, a database or a node. The conductor collects the changes of one turn in a `Draft` and writes them in
one transaction; what is to be done on nodes afterwards is in the draft too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainyard.engines.api import (
    Observation,
    TaskCleared,
    TaskEnded,
    TaskNoted,
    TaskStarted,
    TaskUnknown,
)
from trainyard.scheduling import Admit, Slot
from trainyard.server import kinds
from trainyard.server.store.workloads import Step, TaskRecord, WorkloadRecord, advanced
from trainyard.spec.events import Event, Subject
from trainyard.spec.workload import (
    RETRIED_EXIT_CODES,
    Desired,
    Restart,
    Retain,
    State,
    TaskState,
    task_name,
    tasks_of,
)

# Why a workload that runs is told to go and to come back.
SENT_BACK = frozenset({"preempted", "paused", "drained", "start_failed", "hung"})
# Why a workload is held that other ones have to end before.
WAITS_FOR_JOBS = "waits_for_jobs"
# A workload that could not be started so often, on whatever nodes, is given up.
MAX_START_FAILURES = 5
# How a task ends whose ssh found its port taken, see the agent's gate.py.
NO_PORT = 203
# Nodes that a workload avoids at most, because they failed it.
MOST_AVOIDED = 16
CLEARED = "No process of it is left; its places are free."


OfTask = TaskStarted | TaskEnded | TaskNoted | TaskCleared | TaskUnknown


@dataclass(slots=True)
class Job:
    """What the leader remembers of a workload that holds places. A cache: the store is right."""

    record: WorkloadRecord
    tasks: dict[str, TaskRecord]
    # By the clock that never steps. What the record says was written by the other one, which people set.
    began: float | None = None  # to run, as its nodes have said
    kept_until: float | None = None  # for a look, after its end
    leaves_at: float | None = None  # told to make room for another
    noted: set[tuple[str, str]] = field(
        default_factory=set
    )  # what nodes had to say about it, and people were told

    @property
    def attempt_id(self) -> str:
        """The name of this start of it, for the engine."""
        return attempt_id(self.record.id, self.record.attempt)

    @property
    def nodes(self) -> frozenset[str]:
        """Where its tasks are."""
        return frozenset(task.node for task in self.tasks.values())


def attempt_id(workload_id: str, attempt: int) -> str:
    """`dlc….3`: the third start of a workload."""
    return f"{workload_id}.{attempt}"


def split_attempt(text: str) -> tuple[str, int]:
    """The workload and the number of the start."""
    workload, _, attempt = text.rpartition(".")
    return workload, int(attempt)


@dataclass(slots=True)
class Draft:
    """The changes of one turn."""

    records: dict[str, WorkloadRecord] = field(default_factory=dict)
    tasks: dict[tuple[str, int, str], TaskRecord] = field(default_factory=dict)
    new_tasks: list[TaskRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)  # workloads to start on their nodes
    ends: dict[str, None] = field(default_factory=dict)  # workloads to end there
    forgets: list[tuple[str, frozenset[str]]] = field(default_factory=list)  # attempts whose traces may go
    strays: dict[str, None] = field(default_factory=dict)  # attempts that are over, and heard of again
    met: list[tuple[str, str]] = field(
        default_factory=list
    )  # workloads, and what they need not wait for any more
    are_repeated: bool = False  # the launches: an earlier leader may have asked for them

    def without(self, ids: Iterable[str]) -> None:
        """Take back what was drafted for workloads that somebody else has written meanwhile."""
        for workload in ids:
            self.records.pop(workload, None)
            self.tasks = {key: task for key, task in self.tasks.items() if key[0] != workload}
            self.new_tasks = [task for task in self.new_tasks if task.workload_id != workload]
            self.events = [event for event in self.events if event.subject_id != workload]
            self.launches = [one for one in self.launches if one != workload]
            self.ends.pop(workload, None)
            self.met = [pair for pair in self.met if pair[0] != workload]
            self.strays = {one: None for one in self.strays if split_attempt(one)[0] != workload}
            self.forgets = [
                (attempt, nodes) for attempt, nodes in self.forgets if split_attempt(attempt)[0] != workload
            ]

    def change(self, record: WorkloadRecord) -> WorkloadRecord:
        """Note a changed record."""
        self.records[record.id] = record
        return record

    def change_task(self, task: TaskRecord) -> TaskRecord:
        """Note a changed task."""
        self.tasks[task.workload_id, task.attempt, task.name] = task
        return task

    def tell(
        self,
        record: WorkloadRecord,
        now: float,
        code: str,
        message: str,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Note what happened to a workload."""
        self.events.append(
            Event(
                time=now,
                subject=Subject.WORKLOAD,
                subject_id=record.id,
                workspace_id=record.workspace_id,
                code=code,
                message=message,
                state=record.state,
                data=data,
            )
        )

    def advance(
        self, record: WorkloadRecord, to: State, now: float, *, reason: str, message: str, **changes: Any
    ) -> WorkloadRecord:
        """Move a workload to another state, and say why."""
        moved = self.change(
            advanced(Step(record=record, to=to, reason=reason, message=message, changes=changes), now)
        )
        self.tell(moved, now, reason, message)
        return moved


# -- admission


def admit(draft: Draft, record: WorkloadRecord, admitted: Admit, now: float) -> Job:
    """Give a waiting workload its places, and start it."""
    attempt = record.attempt + 1
    placed = place_tasks(record, attempt, admitted.slots)
    record = draft.advance(
        record,
        State.ADMITTED,
        now,
        reason="admitted",
        message="Placed on " + _listed(sorted({task.node for task in placed})) + "." + _fewer(record, placed),
    )
    record = draft.advance(
        record, State.STARTING, now, reason="starting", message=f"Start {attempt} is under way."
    )
    draft.new_tasks += placed
    draft.launches.append(record.id)
    return Job(record, {task.name: task for task in placed})


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


def follow_wish(draft: Draft, record: WorkloadRecord, now: float) -> WorkloadRecord:
    """Act on `desired` for a workload that holds nothing: into the queue, out of it, or to its end."""
    state = State(record.state)
    if record.desired == Desired.CANCEL and state in {State.WAITING, State.HELD}:
        return draft.advance(
            record, State.CANCELLED, now, reason="stopped", message="Stopped before it started."
        )
    if record.desired == Desired.PAUSE and state is State.WAITING:
        return draft.advance(
            record, State.HELD, now, reason="paused", message="Paused: out of the queue until resumed."
        )
    if record.desired == Desired.RUN and state is State.HELD and record.reason != WAITS_FOR_JOBS:
        return draft.advance(record, State.WAITING, now, reason="queued", message="In the queue.")
    return record


def follow_wish_of_holder(draft: Draft, job: Job, now: float) -> None:
    """Act on `desired` for a workload that holds places."""
    record = job.record
    state = State(record.state)
    if record.desired == Desired.RUN:
        if state is State.FINISHING and record.ending == State.HELD:
            job.record = draft.change(replace(record, ending=State.WAITING))
        return
    cancelled = record.desired == Desired.CANCEL
    ending = State.CANCELLED if cancelled else State.HELD
    if state is State.FINISHING:
        if record.ending in {State.WAITING, State.HELD} and record.ending != ending:
            job.record = draft.change(replace(record, ending=ending))
        return
    if state is State.RETAINED and not cancelled:
        return  # the program has ended: there is nothing to pause
    if state is State.RETAINED:  # its result stands
        finish(draft, job, now, State(record.ending), reason=record.reason, message=record.message)
        return
    if cancelled:
        finish(draft, job, now, ending, reason="stopped", message="Stopped.")
    else:
        finish(draft, job, now, ending, reason="paused", message="Paused: it starts again when resumed.")


# -- the end


def finish(
    draft: Draft,
    job: Job,
    now: float,
    ending: State,
    *,
    reason: str,
    message: str,
    exit_code: int | None = None,
) -> None:
    """Begin to end a workload: its places are free when no process of it is left."""
    record = job.record
    changes: dict[str, Any] = {"ending": ending, "retain_until": None}
    if exit_code is not None:
        changes["exit_code"] = exit_code
    job.record = draft.advance(record, State.FINISHING, now, reason=reason, message=message, **changes)
    draft.ends[record.id] = None
    settle(draft, job, now)


def preempt(draft: Draft, job: Job, now: float, *, for_id: str, leave_by: float, message: str) -> None:
    """Send a workload back to the queue, with its age."""
    job.record = replace(job.record, leave_by=leave_by, leave_for=for_id)
    finish(draft, job, now, State.WAITING, reason="preempted", message=message)


def settle(draft: Draft, job: Job, now: float) -> None:
    """Where nothing of a finishing workload is left, move it on."""
    record = job.record
    if record.state != State.FINISHING or not all(task.is_cleared for task in job.tasks.values()):
        return
    draft.ends.pop(record.id, None)
    draft.forgets.append((job.attempt_id, job.nodes))
    if record.reason in SENT_BACK and all(_was_done(task) for task in job.tasks.values()):
        # It was done before it heard that it should go: running it again would be running it twice.
        codes = [task.exit_code or 0 for task in job.tasks.values()]
        code = next((code for code in codes if code), 0)
        reached = State.FAILED if code else State.SUCCEEDED
        job.record = draft.advance(
            record, reached, now, reason=reached.value, message=f"Ended with {code}.", exit_code=code
        )
        return
    ended = Step(
        record=record, to=State(record.ending), reason=record.reason, message=record.message, changes={}
    )
    job.record = draft.change(advanced(ended, now))
    draft.tell(job.record, now, record.reason, CLEARED)  # why it ends was said when it began to


def _was_done(task: TaskRecord) -> bool:
    return task.state == TaskState.ENDED and not task.was_told


# -- what nodes say


def note(draft: Draft, job: Job, seen: TaskNoted) -> None:
    """Tell people what a node has to say about a task: each thing once for a whole attempt."""
    if (seen.code, seen.message) not in job.noted:
        job.noted.add((seen.code, seen.message))
        draft.tell(job.record, seen.time, seen.code, seen.message)


def watch(draft: Draft, job: Job, seen: Observation, now: float) -> None:
    """Take over what a node said about a task of this attempt. Saying it twice changes nothing."""
    if isinstance(seen, TaskNoted):
        note(draft, job, seen)
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
            task = replace(
                task,
                state=TaskState.ENDED,
                exit_code=seen.exit_code,
                ended_at=seen.time,
                message=seen.message,
                was_told=seen.was_told or seen.is_fenced,
                started_at=task.started_at if task.started_at is not None else seen.time,
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
        job.tasks[task.name] = draft.change_task(task)
        judge(draft, job, now)


def judge(draft: Draft, job: Job, now: float) -> None:
    """Decide from its tasks where a workload stands."""
    tasks = list(job.tasks.values())
    if job.record.state == State.STARTING and all(task.state != TaskState.PENDING for task in tasks):
        started = min((task.started_at for task in tasks if task.started_at is not None), default=now)
        job.record = draft.advance(
            job.record,
            State.RUNNING,
            now,
            reason="running",
            message="All tasks run." if len(tasks) > 1 else "It runs.",
            started_at=started,
            first_started_at=job.record.first_started_at or started,
        )
    if job.record.state in {State.STARTING, State.RUNNING}:
        _judge_running(draft, job, tasks, now)
    else:
        settle(draft, job, now)


def _judge_running(draft: Draft, job: Job, tasks: list[TaskRecord], now: float) -> None:
    gone = [
        task
        for task in tasks
        if (task.state == TaskState.LOST and task.is_cleared)
        or (task.state == TaskState.ENDED and task.was_told)
    ]
    if gone:
        job.record = shun(job.record, {task.node for task in gone})
        finish(
            draft,
            job,
            now,
            State.WAITING,
            reason="task_lost",
            message=f"Task {gone[0].name} was lost with its node {gone[0].node}; it goes back to the queue.",
        )
        return
    spec = job.record.spec
    decisive = kinds.decisive(spec, tasks)
    fatal = kinds.fatal(spec, tasks)
    failed = [task for task in fatal if task.state == TaskState.ENDED and task.exit_code != 0]
    if failed:
        first = min(failed, key=lambda task: (task.ended_at or now, task.rank))
        _fail(draft, job, first, now)
    elif all(task.state == TaskState.ENDED for task in decisive):
        _succeed(draft, job, now)


def _succeed(draft: Draft, job: Job, now: float) -> None:
    spec = job.record.spec
    if spec.restart is Restart.ALWAYS and job.record.failures < spec.max_retries:
        job.record = replace(job.record, failures=job.record.failures + 1)
        finish(
            draft,
            job,
            now,
            State.WAITING,
            reason="restarted",
            message="It ended, and is to be run again.",
            exit_code=0,
        )
        return
    _end(draft, job, now, State.SUCCEEDED, reason="succeeded", message="Ended with 0.", exit_code=0)


def _fail(draft: Draft, job: Job, task: TaskRecord, now: float) -> None:
    spec, record = job.record.spec, job.record
    code = task.exit_code if task.exit_code is not None else 1
    which = f"Task {task.name}" if len(job.tasks) > 1 else "It"
    said = f"{which} ended with {code}" + (f" ({task.message})" if task.message else "")
    may = spec.restart in {Restart.ON_FAILURE, Restart.ALWAYS} or (
        spec.restart is Restart.EXIT_CODE and code in RETRIED_EXIT_CODES
    )
    if may and record.failures < spec.max_retries:
        job.record = replace(record, failures=record.failures + 1)
        finish(
            draft,
            job,
            now,
            State.WAITING,
            reason="retried",
            message=f"{said}; retry {record.failures + 1} of {spec.max_retries}.",
            exit_code=code,
        )
        return
    if code == NO_PORT and kinds.has_ssh(spec) and record.attempt < MAX_START_FAILURES:
        # Another job on the node has it. The next start has another port, so this is no failure of the job's.
        finish(draft, job, now, State.WAITING, reason="port_taken", message=f"{said}; it is tried again.")
        return
    _end(draft, job, now, State.FAILED, reason="failed", message=f"{said}.", exit_code=code)


def _end(
    draft: Draft, job: Job, now: float, ending: State, *, reason: str, message: str, exit_code: int
) -> None:
    spec, record = job.record.spec, job.record
    keeps = (
        spec.retain is Retain.ALWAYS
        or (spec.retain is Retain.ON_FAILURE and ending is State.FAILED)
        or (spec.retain is Retain.ON_SUCCESS and ending is State.SUCCEEDED)
    )
    if spec.retain_seconds and keeps and record.state == State.RUNNING:
        job.record = draft.advance(
            record,
            State.RETAINED,
            now,
            reason=reason,
            message=message,
            ending=ending,
            exit_code=exit_code,
        )
        return
    finish(draft, job, now, ending, reason=reason, message=message, exit_code=exit_code)


def shun(record: WorkloadRecord, nodes: Iterable[str]) -> WorkloadRecord:
    """The same workload, which avoids nodes that have failed it; the oldest of many are tried again."""
    listed = [*(one for one in record.avoid if one not in nodes), *sorted(nodes)]
    return replace(record, avoid=tuple(listed[-MOST_AVOIDED:]))


def could_not_start(
    draft: Draft, job: Job, now: float, *, message: str, unsent: str = "", blamed: str = ""
) -> None:
    """A launch failed: what was started of it is ended, and it waits again. Node `unsent` cannot know of it."""
    if blamed:
        job.record = shun(job.record, {blamed})
    record = job.record
    for task in list(job.tasks.values()):
        if task.node == unsent and not task.is_cleared:
            job.tasks[task.name] = draft.change_task(replace(task, is_cleared=True))
    given_up = record.attempt >= MAX_START_FAILURES and record.first_started_at is None
    finish(
        draft,
        job,
        now,
        State.FAILED if given_up else State.WAITING,
        reason="start_failed",
        message=f"{message} Given up after {record.attempt} starts." if given_up else message,
    )


def lose_node(draft: Draft, job: Job, node: str, now: float) -> None:
    """A node is silent. Its tasks may still run, so nothing of them is ended or started again yet."""
    changed = False
    for task in list(job.tasks.values()):
        if task.node == node and task.state in {TaskState.PENDING, TaskState.RUNNING} and not task.is_cleared:
            if task.state == TaskState.RUNNING:
                job.tasks[task.name] = draft.change_task(
                    replace(task, state=TaskState.LOST, message="Its node does not answer.")
                )
            changed = True
    if changed:
        draft.tell(
            job.record,
            now,
            "node_silent",
            f"Node {node} does not answer; the job is found again when it does.",
        )


def bury(draft: Draft, job: Job, node: str, now: float, why: str) -> None:
    """A node is gone for good, or has ended its tasks by its fence: what it had is cleared."""
    for task in list(job.tasks.values()):
        if task.node == node and not task.is_cleared:
            state = task.state if task.state == TaskState.ENDED else TaskState.LOST
            job.tasks[task.name] = draft.change_task(
                replace(task, state=state, is_cleared=True, message=why, ended_at=task.ended_at or now)
            )
    judge(draft, job, now)


def pass_time(draft: Draft, job: Job, now: float) -> None:
    """The time of a workload is up: end what has run for as long as it may, and what was kept for a look long enough."""
    record = job.record
    if record.state == State.RUNNING:
        finish(
            draft,
            job,
            now,
            State.FAILED,
            reason="time_limit",
            message=f"Stopped after its time limit of {record.spec.max_run_seconds} s.",
        )
    elif record.state == State.RETAINED:
        finish(draft, job, now, State(record.ending), reason=record.reason, message=record.message)


def next_due(job: Job, now: float, tick: float) -> float | None:
    """When the time of a workload is up, by the clock that never steps; `tick` is now by that one."""
    record = job.record
    if record.state == State.RUNNING and record.spec.max_run_seconds:
        # NB: unknown until its nodes answer, who alone know how long it has run. Until then nobody could end it either.
        return None if job.began is None else job.began + record.spec.max_run_seconds
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
    return 0.0 if record.ending == State.SUCCEEDED else float(record.spec.grace_seconds)


def _listed(names: list[str]) -> str:
    if len(names) <= 4:
        return ", ".join(names)
    return ", ".join(names[:3]) + f" and {len(names) - 3} more"
