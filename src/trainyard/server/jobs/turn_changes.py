"""What a turn of the conductor changes: a `TurnChanges` of records, events and things to do, and a `Job` as the leader remembers it.

Values only. What becomes of a workload is lifecycle.py, task_events.py and their neighbours; who writes a draft is the conductor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workload_steps import Step, advanced
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.events import Event, Subject
from trainyard.spec.workload import State


@dataclass(slots=True)
class Job:
    """What the leader remembers of a workload that holds places. A cache: the store is right."""

    record: WorkloadRecord
    tasks: dict[str, TaskRecord]
    # By the clock that never steps. What the record says was written by the other one, which people set.
    began: float | None = None  # to run, as its nodes have said
    kept_until: float | None = None  # for a look, after its end
    leaves_at: float | None = None  # told to make room for another
    was_too_large: bool = False  # it is due for more replicas, and there was no room at the last look
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
    """`job….3`: the third start of a workload."""
    return f"{workload_id}.{attempt}"


def split_attempt(text: str) -> tuple[str, int]:
    """The workload and the number of the start."""
    workload, _, attempt = text.rpartition(".")
    return workload, int(attempt)


@dataclass(slots=True)
class TurnChanges:
    """The changes of one turn."""

    records: dict[str, WorkloadRecord] = field(default_factory=dict)
    tasks: dict[tuple[str, int, str], TaskRecord] = field(default_factory=dict)
    new_tasks: list[TaskRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)  # workloads to start on their nodes
    ends: dict[str, None] = field(default_factory=dict)  # workloads to end there
    binds: dict[str, None] = field(default_factory=dict)  # workloads whose tasks are to hear of each other
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
            self.binds.pop(workload, None)
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
        self,
        record: WorkloadRecord,
        to: State,
        now: float,
        *,
        reason: str,
        message: str,
        data: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> WorkloadRecord:
        """Move a workload to another state, and say why."""
        moved = self.change(
            advanced(
                Step(record=record, to=to, reason=reason, message=message, changes=changes, data=data), now
            )
        )
        self.tell(moved, now, reason, message, data)
        return moved
