"""REST schemas of secrets; a part of schemas.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret of a user or a workspace. Its value is not told."""

    id: str
    name: str
    scope: str  # user or workspace
    workspace_id: str | None  # None: the user's own
    user: str  # who made it
    created_at: datetime
    changed_at: datetime
    last_used_at: datetime | None  # when a job last got it
    workspace: str | None = None  # its name


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretValue:
    """What a secret is to be from now on."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # read by pydantic; a class variable by intent

    value: str = field(repr=False)
