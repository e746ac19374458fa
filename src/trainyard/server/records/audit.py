"""One line of the audit log: who did or tried what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DONE, DENIED = "done", "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One row of audit."""

    time: float
    actor: str
    action: str
    subject: str
    outcome: str = DONE
    address: str = ""
    workspace_id: str | None = None
    data: Mapping[str, Any] | None = None
    seq: int = 0
