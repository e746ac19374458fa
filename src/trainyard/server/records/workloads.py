"""A workload as it is stored, and what a step to another state makes of it. Writing it is store/jobs/workloads.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.spec.workload import Desired, State, WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """One row of workloads. Frozen; a change makes another one, and `save` or `advance` writes it."""

    id: str
    name: str
    kind: str
    workspace_id: str
    user_id: str
    spec: WorkloadSpec
    submitted_at: float
    priority: int = 5
    preemptible: bool = False
    state: State = State.WAITING
    desired: Desired = Desired.RUN
    version: int = 1
    attempt: int = 0
    failures: int = 0
    ending: str = ""
    reason: str = ""
    message: str = ""
    facts: Mapping[str, Any] | None = (
        None  # what the reason's sentence names; `text` is its code, where it is not the reason
    )
    exit_code: int | None = None
    avoid: tuple[str, ...] = ()
    wait: Mapping[str, Any] | None = None
    queued_at: float | None = None
    admitted_at: float | None = None
    started_at: float | None = None
    first_started_at: float | None = None
    stopped_at: float | None = None
    ended_at: float | None = None
    leave_by: float | None = None
    leave_for: str = ""
    retain_until: float | None = None
    due_at: float | None = None
    deleted_at: float | None = None
    dlc: Mapping[str, Any] | None = None
    origin: str = ""  # sweep:…, schedule:…, template:…
