"""A code source as it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSourceRecord:
    """One row of code_sources."""

    id: str
    name: str
    workspace_id: str
    url: str
    created_at: float
    branch: str = ""
    commit: str = ""
    target: str = ""
    sealed: bytes | None = field(default=None, repr=False)
    version: int = 1
