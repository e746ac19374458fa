"""What one may do, as a table: the documentation comes from it, and so does every check.

A scope is allowed by the person's role, and by the token that they came with. What belongs to a workspace needs a role
there; what does not is for everybody who has signed in, or for administrators of the platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainyard.server.store.people.workspaces import Role

ALL = "*"


class Who(StrEnum):
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
    who: Who
    what: str


_ROWS = (
    Scope("jobs:read", Who.VIEWER, "See jobs, their tasks, logs and events."),
    Scope("jobs:write", Who.MEMBER, "Submit jobs; stop, pause, resume, clone and delete one's own."),
    Scope("jobs:exec", Who.MEMBER, "Open a terminal in a task of one's own job."),
    Scope("jobs:manage", Who.WORKSPACE_ADMIN, "The same for jobs of others in the workspace."),
    Scope("jobs:approve", Who.WORKSPACE_ADMIN, "Let jobs go on that wait for approval."),
    Scope("templates:read", Who.EVERYBODY, "See and use one's own templates, those of one's workspaces and everybody's."),
    Scope("templates:write", Who.EVERYBODY, "Keep templates of one's own."),
    Scope("templates:share", Who.MEMBER, "Keep templates for a workspace."),
    Scope("templates:manage", Who.ADMIN, "Keep templates for everybody."),
    Scope("sources:read", Who.VIEWER, "See the code sources of a workspace, but for their tokens."),
    Scope("sources:write", Who.MEMBER, "Add, change and remove code sources of a workspace."),
    Scope("secrets:read", Who.EVERYBODY, "See the names of one's own secrets and of those of one's workspaces."),
    Scope("secrets:write", Who.EVERYBODY, "Keep and remove secrets of one's own."),
    Scope("secrets:share", Who.MEMBER, "Keep and remove secrets of a workspace."),
    Scope("workspaces:read", Who.VIEWER, "See a workspace, its quota and its members."),
    Scope("workspaces:write", Who.WORKSPACE_ADMIN, "Change a workspace's description, approval and time limit."),
    Scope("workspaces:manage", Who.ADMIN, "Make and archive workspaces and groups, and set their quotas."),
    Scope("members:write", Who.WORKSPACE_ADMIN, "Add and remove members, and set their roles."),
    Scope("requests:write", Who.EVERYBODY, "Ask for membership or for quota, and see what one has asked for."),
    Scope("requests:decide", Who.WORKSPACE_ADMIN, "Decide requests for membership."),
    Scope("requests:manage", Who.ADMIN, "Decide requests for accounts and quota."),
    Scope("nodes:read", Who.EVERYBODY, "See the nodes and what is free on them."),
    Scope("nodes:write", Who.ADMIN, "Add, cordon, drain, label and remove nodes."),
    Scope("storages:read", Who.EVERYBODY, "See the storages that tasks can have, and for which registries there are sign-ins."),
    Scope("storages:write", Who.ADMIN, "Add and remove storages, and sign-ins of registries."),
    Scope("pools:read", Who.EVERYBODY, "See the pools, their machines and what they cost."),
    Scope("pools:write", Who.ADMIN, "Make, change and remove pools, which buy machines."),
    Scope("quota:read", Who.EVERYBODY, "See the quotas of one's workspaces and of the groups above them."),
    Scope("account:write", Who.EVERYBODY, "Change one's own password and name, make and revoke one's tokens, and leave workspaces."),
    Scope("users:read", Who.ADMIN, "See all accounts."),
    Scope("users:write", Who.ADMIN, "Make, change and close accounts."),
    Scope("audit:read", Who.ADMIN, "Read the audit log."),
    Scope("usage:read", Who.EVERYBODY, "See what one's own jobs have used and cost, and those of workspaces one administers."),
    Scope("budgets:write", Who.ADMIN, "Set prices and budgets."),
    Scope("metrics:read", Who.ADMIN, "Read the platform's metrics."),
)  # fmt: skip

TABLE: Mapping[str, Scope] = {row.name: row for row in _ROWS}

ROLES: Mapping[Who, frozenset[Role]] = {
    Who.VIEWER: frozenset({Role.VIEWER, Role.MEMBER, Role.ADMIN}),
    Who.MEMBER: frozenset({Role.MEMBER, Role.ADMIN}),
    Who.WORKSPACE_ADMIN: frozenset({Role.ADMIN}),
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
