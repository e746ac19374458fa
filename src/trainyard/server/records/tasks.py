"""A task of one attempt of a job as it is stored."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.workload import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One row of tasks."""

    workload_id: str
    attempt: int
    name: str
    role: str
    number: int
    rank: int
    node: str
    devices: tuple[int, ...] = ()
    state: TaskState = TaskState.PENDING
    exit_code: int | None = None
    reason: str = (
        ""  # one of spec/exit_reasons.py; empty: it has not ended, or an older version wrote the row
    )
    message: str = ""
    address: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    log_bytes: int = 0
    was_told: bool = False
    is_cleared: bool = False
