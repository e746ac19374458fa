"""What one may do, as a table: the documentation comes from it, and so does every check.

A scope is allowed by the person's role, and by the token that they came with. What belongs to a workspace needs a role
there; what does not is for everybody who has signed in, or for administrators of the platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainyard.server.records.workspaces import Role

ALL = "*"


class ScopeHolder(StrEnum):
    """Who has a scope; each includes those after it."""

    EVERYBODY = "everybody"  # who has signed in
    VIEWER = "viewer"  # of the workspace
    MEMBER = "member"
    WORKSPACE_ADMIN = "workspace admin"
    ADMIN = "admin"  # of the platform


@dataclass(frozen=True, slots=True)
class Scope:
    """One row of the table."""

    name: str
    who: ScopeHolder
    what: str


_ROWS = (
    Scope("jobs:read", ScopeHolder.VIEWER, "See jobs, their tasks, logs and events."),
    Scope("jobs:write", ScopeHolder.MEMBER, "Submit jobs; stop, pause, resume, clone and delete one's own."),
    Scope("jobs:exec", ScopeHolder.MEMBER, "Open a terminal in a task of one's own job."),
    Scope("jobs:manage", ScopeHolder.WORKSPACE_ADMIN, "The same for jobs of others in the workspace."),
    Scope("jobs:approve", ScopeHolder.WORKSPACE_ADMIN, "Let jobs go on that wait for approval."),
    Scope("templates:read", ScopeHolder.EVERYBODY, "See and use one's own templates, those of one's workspaces and everybody's."),
    Scope("templates:write", ScopeHolder.EVERYBODY, "Keep templates of one's own."),
    Scope("templates:share", ScopeHolder.MEMBER, "Keep templates for a workspace."),
    Scope("templates:manage", ScopeHolder.ADMIN, "Keep templates for everybody."),
    Scope("sources:read", ScopeHolder.VIEWER, "See the code sources of a workspace, but for their tokens."),
    Scope("sources:write", ScopeHolder.MEMBER, "Add, change and remove code sources of a workspace."),
    Scope("secrets:read", ScopeHolder.EVERYBODY, "See the names of one's own secrets and of those of one's workspaces."),
    Scope("secrets:write", ScopeHolder.EVERYBODY, "Keep and remove secrets of one's own."),
    Scope("secrets:share", ScopeHolder.MEMBER, "Keep and remove secrets of a workspace."),
    Scope("workspaces:read", ScopeHolder.VIEWER, "See a workspace, its quota and its members."),
    Scope("workspaces:write", ScopeHolder.WORKSPACE_ADMIN, "Change a workspace's description, approval and time limit."),
    Scope("workspaces:manage", ScopeHolder.ADMIN, "Make and archive workspaces and groups, and set their quotas."),
    Scope("members:write", ScopeHolder.WORKSPACE_ADMIN, "Add and remove members, and set their roles."),
    Scope("requests:write", ScopeHolder.EVERYBODY, "Ask for membership or for quota, and see what one has asked for."),
    Scope("requests:decide", ScopeHolder.WORKSPACE_ADMIN, "Decide requests for membership."),
    Scope("requests:manage", ScopeHolder.ADMIN, "Decide requests for accounts and quota."),
    Scope("nodes:read", ScopeHolder.EVERYBODY, "See the nodes and what is free on them."),
    Scope("nodes:write", ScopeHolder.ADMIN, "Add, cordon, drain, label and remove nodes."),
    Scope("storages:read", ScopeHolder.EVERYBODY, "See the storages that tasks can have, and for which registries there are sign-ins."),
    Scope("storages:write", ScopeHolder.ADMIN, "Add and remove storages, and sign-ins of registries."),
    Scope("pools:read", ScopeHolder.EVERYBODY, "See the pools, their machines and what they cost."),
    Scope("pools:write", ScopeHolder.ADMIN, "Make, change and remove pools, which buy machines."),
    Scope("quota:read", ScopeHolder.EVERYBODY, "See the quotas of one's workspaces and of the groups above them."),
    Scope("account:write", ScopeHolder.EVERYBODY, "Change one's own password and name, make and revoke one's tokens, and leave workspaces."),
    Scope("users:read", ScopeHolder.ADMIN, "See all accounts."),
    Scope("users:write", ScopeHolder.ADMIN, "Make, change and close accounts."),
    Scope("audit:read", ScopeHolder.ADMIN, "Read the audit log."),
    Scope("usage:read", ScopeHolder.EVERYBODY, "See what one's own jobs have used and cost, and those of workspaces one administers."),
    Scope("budgets:write", ScopeHolder.ADMIN, "Set prices and budgets."),
    Scope("metrics:read", ScopeHolder.ADMIN, "Read the platform's metrics."),
)  # fmt: skip

TABLE: Mapping[str, Scope] = {row.name: row for row in _ROWS}

ROLES: Mapping[ScopeHolder, frozenset[Role]] = {
    ScopeHolder.VIEWER: frozenset({Role.VIEWER, Role.MEMBER, Role.ADMIN}),
    ScopeHolder.MEMBER: frozenset({Role.MEMBER, Role.ADMIN}),
    ScopeHolder.WORKSPACE_ADMIN: frozenset({Role.ADMIN}),
}


def is_known(scope: str) -> bool:
    """Whether a token may carry this: a scope, all of a noun (`jobs:*`), or all."""
    noun, _colon, verb = scope.partition(":")
    return (
        scope == ALL or scope in TABLE or (verb == ALL and any(name.startswith(f"{noun}:") for name in TABLE))
    )


def covers(scopes: frozenset[str], scope: str) -> bool:
    """Whether a token with these scopes may be used for one."""
    return ALL in scopes or scope in scopes or f"{scope.partition(':')[0]}:{ALL}" in scopes
