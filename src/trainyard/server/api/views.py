"""Records → what the API shows of them, as plain data: the fields of the shapes of client/schemas.py.

What a record has by the same name needs no line here; only what differs does.

Secrets end here: no hash, digest or value of a variable that is named like a secret is ever shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from trainyard.client import schemas
from trainyard.messages.text import EN
from trainyard.server.api.shape_view import Data, shape_view, when
from trainyard.server.auth.authentication import NewToken
from trainyard.server.cluster.quota import QuotaView
from trainyard.server.explain.events import event_sentence
from trainyard.server.explain.explanations import Explanation
from trainyard.server.jobs.service import masked
from trainyard.server.records.access_requests import RequestRecord
from trainyard.server.records.audit import AuditRecord
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.tokens import TokenRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.records.workspaces import GroupRecord, MemberRecord, WorkspaceRecord, limits_to_json
from trainyard.spec.events import Event
from trainyard.spec.workload import WorkloadSpec


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
    return _job(schemas.Job, record, users, workspaces)


def job_detail(record: WorkloadRecord, users: Mapping[str, str], workspaces: Mapping[str, str]) -> Data:
    """A job with its spec."""
    return _job(schemas.JobDetail, record, users, workspaces, spec=spec_of(record.spec))


def _job(
    shape: type,
    record: WorkloadRecord,
    users: Mapping[str, str],
    workspaces: Mapping[str, str],
    **own: object,
) -> Data:
    replicas, cpu, memory, devices, device = _sizes(
        tuple(
            (role.replicas, role.cpu, role.memory_mib, role.devices, role.device)
            for role in record.spec.roles
        )
    )
    wait = record.wait or {}
    return shape_view(
        shape,
        record,
        workspace=workspaces.get(record.workspace_id, record.workspace_id),
        user=users.get(record.user_id, record.user_id),
        replicas=replicas,
        cpu=cpu,
        memory_mib=memory,
        devices=devices,
        device=device,
        position=wait.get("position"),
        estimated_start=when(wait.get("start")),
        **own,
    )


def spec_of(spec: WorkloadSpec) -> Data:
    """What was asked for, without secrets: not even its owner's, who has them anyway."""
    return shape_view(type(spec), masked(spec))


def task(record: TaskRecord) -> Data:
    """A task."""
    return shape_view(schemas.Task, record, exit_reason=record.reason)


def explanation(said: Explanation) -> Data:
    """Why a job waits."""
    return shape_view(schemas.Explanation, said, diagnosis=None)


def event(record: Event, language: str = EN) -> Data:
    """An event, told in a language."""
    message = event_sentence(record, language)
    return shape_view(schemas.Event, record, message=message)


def node(record: NodeRecord, *, tasks: int | None = None) -> Data:
    """A node."""
    return shape_view(schemas.Node, record, cpu=record.cpu / 1000, tasks=tasks)


def workspace(record: WorkspaceRecord, role: str = "") -> Data:
    """A workspace, with the role of who asks."""
    return shape_view(schemas.Workspace, record, quota=limits_to_json(record.quota), role=role)


def member(record: MemberRecord) -> Data:
    """A member."""
    return shape_view(schemas.Member, record, user=record.user_name)


def group(record: GroupRecord) -> Data:
    """A group."""
    return shape_view(schemas.Group, record, quota=limits_to_json(record.quota))


def user(record: UserRecord) -> Data:
    """An account, without its hash."""
    return shape_view(schemas.User, record)


def token(record: TokenRecord) -> Data:
    """A token, without its digest."""
    return shape_view(schemas.Token, record)


def new_token(made: NewToken, *, shown: bool = True) -> Data:
    """A token with its secret; the one place that shows it."""
    return shape_view(schemas.NewToken, made.record, token=made.token if shown else "")


def request(record: RequestRecord) -> Data:
    """A request."""
    return shape_view(schemas.Request, record)


def audit(record: AuditRecord) -> Data:
    """An entry of the audit log."""
    return shape_view(schemas.AuditEntry, record)


def quota(view: QuotaView) -> Data:
    """A place of the quota tree."""
    return shape_view(schemas.Quota, view)
