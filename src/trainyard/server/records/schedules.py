"""A schedule as it is stored."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.workload import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRecord:
    """One row of schedules."""

    id: str
    name: str
    workspace_id: str
    user_id: str
    cron: str
    spec: WorkloadSpec
    created_at: float
    timezone: str = "UTC"
    overlap: str = "skip"
    is_active: bool = True
    next_at: float | None = None
    last_at: float | None = None
    last_job: str = ""
    message: str = ""
    version: int = 1
