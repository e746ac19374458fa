"""A storage and the sign-in at a registry as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRecord:
    """One row of storages. `source` and `target` may hold {user}, {group}, {workspace}, {job} and {day}."""

    id: str
    name: str
    kind: str  # folder or nfs
    source: str  # a path of the nodes; not absolute: below the platform's own folder; or host:/path
    target: str
    created_at: float
    workspace_id: str | None = None  # None: of all workspaces
    read_only: bool = False
    is_default: bool = False  # every task sees it, asked or not
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryRecord:
    """One row of registries."""

    id: str
    host: str
    username: str
    sealed: bytes = field(repr=False)
    created_at: float
    workspace_id: str | None = None  # None: for all workspaces
    version: int = 1
