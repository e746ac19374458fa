"""Records → what the API shows of them, as plain data. The shapes are client/schemas.py's; a test compares the two.

Secrets end here: no hash, digest or value of a variable that is named like a secret is ever shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from trainyard.server.auth.authentication import NewToken
from trainyard.server.cluster.quota import QuotaView
from trainyard.server.explain.explanations import Explanation
from trainyard.server.jobs.service import masked
from trainyard.server.records.access_requests import RequestRecord
from trainyard.server.records.audit import AuditRecord
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.tokens import TokenRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.records.workspaces import GroupRecord, MemberRecord, WorkspaceRecord
from trainyard.server.store.people.workspaces import limits_to_json
from trainyard.spec.events import Event
from trainyard.spec.workload import RoleSpec, WorkloadSpec

Data = dict[str, Any]
_SPEC_FIELDS = tuple(each.name for each in fields(WorkloadSpec) if each.name not in {"roles", "env", "tags"})
_ROLE_FIELDS = tuple(each.name for each in fields(RoleSpec) if each.name not in {"env", "labels"})


def when(seconds: float | None) -> str | None:
    """RFC 3339 in UTC, to the millisecond."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


@lru_cache(maxsize=4096)
def _sizes(roles: tuple[tuple[int, float, int, int, str], ...]) -> tuple[int, float, int, int, str]:
    return (
        sum(role[0] for role in roles),
        round(sum(role[0] * role[1] for role in roles), 3),
        sum(role[0] * role[2] for role in roles),
        sum(role[0] * role[3] for role in roles),
        ",".join(dict.fromkeys(role[4] for role in roles if role[4])),
    )


def job(record: WorkloadRecord, users: Mapping[str, str], workspaces: Mapping[str, str]) -> Data:
    """A job as lists show it. `users` and `workspaces` are names by id."""
    spec = record.spec
    replicas, cpu, memory, devices, device = _sizes(
        tuple((role.replicas, role.cpu, role.memory_mib, role.devices, role.device) for role in spec.roles)
    )
    wait = record.wait or {}
    return {
        "id": record.id,
        "name": record.name,
        "kind": record.kind,
        "workspace": workspaces.get(record.workspace_id, record.workspace_id),
        "workspace_id": record.workspace_id,
        "user": users.get(record.user_id, record.user_id),
        "state": record.state,
        "desired": record.desired,
        "priority": record.priority,
        "preemptible": record.preemptible,
        "version": record.version,
        "attempt": record.attempt,
        "failures": record.failures,
        "reason": record.reason,
        "message": record.message,
        "exit_code": record.exit_code,
        "replicas": replicas,
        "cpu": cpu,
        "memory_mib": memory,
        "devices": devices,
        "device": device,
        "position": wait.get("position"),
        "estimated_start": when(wait.get("start")),
        "submitted_at": when(record.submitted_at),
        "queued_at": when(record.queued_at),
        "started_at": when(record.started_at),
        "stopped_at": when(record.stopped_at),
        "ended_at": when(record.ended_at),
        "retain_until": when(record.retain_until),
        "origin": record.origin,
    }


def job_detail(record: WorkloadRecord, users: Mapping[str, str], workspaces: Mapping[str, str]) -> Data:
    """A job with its spec."""
    return {
        **job(record, users, workspaces),
        "spec": spec_of(record.spec),
        "avoid": list(record.avoid),
    }


def spec_of(spec: WorkloadSpec) -> Data:
    """What was asked for, without secrets: not even its owner's, who has them anyway."""
    spec = masked(spec)
    shown: Data = {name: getattr(spec, name) for name in _SPEC_FIELDS}
    shown["env"] = dict(spec.env)
    shown["tags"] = dict(spec.tags)
    shown["code"] = None if spec.code is None else asdict(spec.code)
    shown["mounts"] = [asdict(mount) for mount in spec.mounts]
    shown["secrets"] = [asdict(secret) for secret in spec.secrets]
    shown["after"] = [asdict(need) for need in spec.after]
    shown["roles"] = [
        {
            **{name: getattr(role, name) for name in _ROLE_FIELDS},
            "env": dict(role.env),
            "labels": dict(role.labels),
        }
        for role in spec.roles
    ]
    return shown


def task(record: TaskRecord) -> Data:
    """A task."""
    return {
        "name": record.name,
        "role": record.role,
        "number": record.number,
        "rank": record.rank,
        "attempt": record.attempt,
        "node": record.node,
        "devices": list(record.devices),
        "state": record.state,
        "exit_code": record.exit_code,
        "message": record.message,
        "address": record.address,
        "started_at": when(record.started_at),
        "ended_at": when(record.ended_at),
        "log_bytes": record.log_bytes,
    }


def explanation(said: Explanation) -> Data:
    """Why a job waits."""
    return {
        "state": said.state,
        "starts_now": said.starts_now,
        "position": said.position,
        "reason": said.reason,
        "sentence": said.sentence,
        "remedy": said.remedy,
        "estimated_start": when(said.estimated_start),
        "nodes": list(said.nodes),
        "diagnosis": None,
    }


def event(record: Event) -> Data:
    """An event."""
    return {
        "seq": record.seq,
        "time": when(record.time),
        "subject": record.subject,
        "subject_id": record.subject_id,
        "workspace_id": record.workspace_id,
        "code": record.code,
        "message": record.message,
        "state": record.state,
        "actor": record.actor,
        "data": None if record.data is None else dict(record.data),
    }


def node(record: NodeRecord, *, tasks: int | None = None) -> Data:
    """A node."""
    return {
        "name": record.name,
        "engine": record.engine,
        "pool": record.pool,
        "desired": record.desired,
        "state": record.state,
        "reason": record.reason,
        "address": dict(record.address),
        "cpu": record.cpu / 1000,
        "memory_mib": record.memory_mib,
        "devices": dict(record.devices),
        "simulated": record.simulated,
        "unhealthy": {kind: list(indices) for kind, indices in record.unhealthy.items()},
        "labels": dict(record.labels),
        "taints": list(record.taints),
        "facts": dict(record.facts),
        "tasks": tasks,
        "fence_seconds": record.fence_seconds,
        "options": dict(record.options),
        "avoid_until": when(record.avoid_until),
        "seen_at": when(record.seen_at),
        "created_at": when(record.created_at),
        "version": record.version,
    }


def workspace(record: WorkspaceRecord, role: str = "") -> Data:
    """A workspace, with the role of who asks."""
    return {
        "id": record.id,
        "name": record.name,
        "description": record.description,
        "group_id": record.group_id,
        "quota": limits_to_json(record.quota),
        "needs_approval": record.needs_approval,
        "max_run_seconds": record.max_run_seconds,
        "created_at": when(record.created_at),
        "archived_at": when(record.archived_at),
        "version": record.version,
        "role": role,
    }


def member(record: MemberRecord) -> Data:
    """A member."""
    return {
        "workspace_id": record.workspace_id,
        "user_id": record.user_id,
        "user": record.user_name,
        "role": record.role,
    }


def group(record: GroupRecord) -> Data:
    """A group."""
    return {
        "id": record.id,
        "name": record.name,
        "quota": limits_to_json(record.quota),
        "version": record.version,
    }


def user(record: UserRecord) -> Data:
    """An account, without its hash."""
    return {
        "id": record.id,
        "name": record.name,
        "display_name": record.display_name,
        "email": record.email,
        "is_admin": record.is_admin,
        "is_active": record.is_active,
        "must_change_password": record.must_change_password,
        "created_at": when(record.created_at),
        "version": record.version,
    }


def token(record: TokenRecord) -> Data:
    """A token, without its digest."""
    return {
        "id": record.id,
        "user_id": record.user_id,
        "name": record.name,
        "scopes": list(record.scopes),
        "kind": record.kind,
        "created_at": when(record.created_at),
        "expires_at": when(record.expires_at),
        "last_used_at": when(record.last_used_at),
        "revoked_at": when(record.revoked_at),
    }


def new_token(made: NewToken, *, shown: bool = True) -> Data:
    """A token with its secret; the one place that shows it."""
    record = made.record
    return {
        "token": made.token if shown else "",
        "id": record.id,
        "scopes": list(record.scopes),
        "expires_at": when(record.expires_at),
    }


def request(record: RequestRecord) -> Data:
    """A request."""
    return {
        "id": record.id,
        "kind": record.kind,
        "name": record.name,
        "user_id": record.user_id,
        "workspace_id": record.workspace_id,
        "body": dict(record.body),
        "state": record.state,
        "decided_by": record.decided_by,
        "decided_at": when(record.decided_at),
        "answer": record.answer,
        "created_at": when(record.created_at),
        "version": record.version,
    }


def audit(record: AuditRecord) -> Data:
    """An entry of the audit log."""
    return {
        "seq": record.seq,
        "time": when(record.time),
        "actor": record.actor,
        "address": record.address,
        "action": record.action,
        "subject": record.subject,
        "workspace_id": record.workspace_id,
        "outcome": record.outcome,
        "data": None if record.data is None else dict(record.data),
    }


def quota(view: QuotaView) -> Data:
    """A place of the quota tree."""
    return {
        "id": view.id,
        "name": view.name,
        "kind": view.kind,
        "parent": view.parent,
        "nominal": None if view.nominal is None else dict(view.nominal),
        "limit": None if view.limit is None else dict(view.limit),
        "used": dict(view.used),
        "waiting": view.waiting,
        "running": view.running,
        "users": {user: dict(amounts) for user, amounts in view.users.items()},
    }
