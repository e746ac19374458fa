"""What a job waits for: one stored dependency, and one that has ended."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.workload import Condition, State


@dataclass(frozen=True, slots=True)
class NeedRecord:
    """One job that another one waits for."""

    workload_id: str
    needs_id: str
    condition: Condition = Condition.SUCCEEDED


@dataclass(frozen=True, slots=True)
class EndedNeed:
    """A need whose job has ended."""

    need: NeedRecord
    state: State | None  # None: nothing is known of the job any more
