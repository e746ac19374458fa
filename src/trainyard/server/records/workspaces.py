"""Workspaces, the groups above them and their members as they are stored, and the limits of a quota."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """What a member of a workspace may do there; auth/scopes.py says it in detail."""

    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The quota of a workspace or group. CPU in thousandths of a core, memory in MiB, devices counted, by name."""

    nominal: Mapping[str, int] = field(default_factory=dict)  # guaranteed
    borrow: Mapping[str, int] = field(default_factory=dict)  # at most so much above it; unnamed: what is free
    lend: Mapping[str, int] = field(default_factory=dict)  # at most so much of what is unused; unnamed: all
    per_user: Mapping[str, int] = field(default_factory=dict)
    users: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by the user's name
    weight: float = 1.0
    strategy: str = ""  # of the queue; empty: the policy's


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """One row of groups."""

    id: str
    name: str
    quota: Limits = field(default_factory=Limits)
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRecord:
    """One row of workspaces."""

    id: str
    name: str
    created_at: float
    description: str = ""
    group_id: str | None = None
    quota: Limits = field(default_factory=Limits)
    needs_approval: bool = False
    max_run_seconds: int = 0
    archived_at: float | None = None
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One row of members, with the user's name."""

    workspace_id: str
    user_id: str
    role: Role
    user_name: str = ""


def limits_to_json(limits: Limits) -> dict[str, Any]:
    """A quota as plain data, without what is not set."""
    data: dict[str, Any] = {
        name: dict(amounts)
        for name in ("nominal", "borrow", "lend", "per_user")
        if (amounts := getattr(limits, name))
    }
    if limits.users:
        data["users"] = {user: dict(amounts) for user, amounts in limits.users.items()}
    if limits.weight != 1.0:
        data["weight"] = limits.weight
    if limits.strategy:
        data["strategy"] = limits.strategy
    return data


def limits_of_json(data: Mapping[str, Any]) -> Limits:
    """A quota from plain data that `limits_to_json` made."""
    known = {one.name for one in fields(Limits)}
    return Limits(**{name: value for name, value in data.items() if name in known})
