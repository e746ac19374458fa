"""A request to join the platform or a workspace as it is stored, its kinds and states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RequestKind(StrEnum):
    """What is asked for."""

    ACCOUNT = "account"
    MEMBERSHIP = "membership"
    QUOTA = "quota"


class RequestState(StrEnum):
    """What became of it."""

    OPEN = "open"
    APPROVED = "approved"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One row of requests."""

    id: str
    kind: RequestKind
    created_at: float
    name: str = ""
    user_id: str | None = None
    workspace_id: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    state: RequestState = RequestState.OPEN
    decided_by: str | None = None
    decided_at: float | None = None
    answer: str = ""
    version: int = 1
