"""A template as it is stored."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.workload import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRecord:
    """One row of templates."""

    id: str
    name: str
    scope: str  # personal, workspace, all
    user_id: str
    spec: WorkloadSpec
    created_at: float
    workspace_id: str | None = None
    description: str = ""
    version: int = 1
