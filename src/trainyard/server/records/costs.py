"""What a job has used on a day, what a machine has cost on a day, and a budget, as they are stored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UseRecord:
    """What a job has used of one type of device on one day; or sums of that, where what they are not grouped by is empty."""

    workload_id: str = ""
    workspace_id: str = ""
    user_id: str = ""
    device_type: str = ""
    day: int = 0  # since 1970, UTC
    device_seconds: float = 0.0
    idle_device_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_mib_seconds: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDay:
    """What a machine of a pool has cost on one day; or sums of that, where what they are not grouped by is empty."""

    pool: str
    currency: str
    machine: str = ""
    day: int = 0  # since 1970, UTC
    seconds: float = 0.0
    used_cost: float = 0.0  # while a job had a place there
    idle_cost: float = 0.0
    starting_cost: float = 0.0  # before its node was ready

    @property
    def cost(self) -> float:
        """In all."""
        return self.used_cost + self.idle_cost + self.starting_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRecord:
    """What a workspace or a user may cost in a month."""

    subject: str  # workspace, user
    subject_id: str
    amount: float
    warn_at: tuple[float, ...]
    action: str  # warn, hold, stop
    month: int = 0
    warned: tuple[float, ...] = ()  # shares that were told in that month; 1.0: it is used up
    version: int = 1
