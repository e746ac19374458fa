"""REST schemas of storages and registry logins; a part of schemas.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A storage that tasks see as a folder."""

    id: str
    name: str
    kind: str  # folder or nfs
    source: str
    target: str  # where tasks see it
    workspace_id: str | None  # None: of all workspaces
    read_only: bool
    default: bool  # every task sees it, asked or not
    options: Mapping[str, str]
    created_at: datetime
    workspace: str | None = None  # its name


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCreate:
    """A new storage. `source` and `target` may hold {user}, {group}, {workspace}, {job} and {day}."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # read by pydantic; a class variable by intent

    name: str
    source: str
    target: str
    kind: str = "folder"
    workspace: str = ""
    read_only: bool = False
    default: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A sign-in at a registry. Its password is not told."""

    id: str
    host: str
    username: str
    workspace_id: str | None  # None: for all workspaces
    created_at: datetime
    workspace: str | None = None  # its name


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryCreate:
    """A new sign-in at a registry."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    host: str
    username: str
    password: str = field(repr=False)
    workspace: str = ""
