"""Workspaces, the groups above them, and their members."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, NotFoundError, StaleError
from trainyard.lib.ids import new_id
from trainyard.messages.catalogue import failure
from trainyard.scheduling import Strategy
from trainyard.server import validation
from trainyard.server.auth.actor import Actor, require
from trainyard.server.auth.authentication import Authentication
from trainyard.server.people.workspace_lookup import find_workspace
from trainyard.server.records.workspaces import (
    GroupRecord,
    Limits,
    MemberRecord,
    Role,
    WorkspaceRecord,
    limits_to_json,
)
from trainyard.server.service_context import Context
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import users, workspaces
from trainyard.spec import job_limits
from trainyard.spec.events import Subject
from trainyard.spec.workload import FINAL

_AMOUNTS = ("nominal", "borrow", "lend", "per_user")
_KNOWN = frozenset({*_AMOUNTS, "users", "weight", "strategy"})
LARGEST = 1 << 53  # JavaScript's integers end here
UNSET: Any = object()


class Workspaces:
    """`services.workspaces`."""

    def __init__(self, context: Context, authentication: Authentication) -> None:
        self._context = context
        self._authentication = authentication

    async def list(self, actor: Actor, *, with_archived: bool = False) -> Sequence[WorkspaceRecord]:
        """The workspaces that the actor belongs to, by name; all for an administrator."""
        ids = actor.places("workspaces:read")
        return await self._context.db.read(
            lambda c: workspaces.list_workspaces(c, ids=ids, with_archived=with_archived)
        )

    async def get(self, actor: Actor, workspace: str) -> WorkspaceRecord:
        """One workspace by id or name."""

        def work(connection: Connection) -> WorkspaceRecord:
            record = find_workspace(connection, actor, workspace)
            require(actor, "workspaces:read", record.id)
            return record

        return await self._context.db.read(work)

    async def create(
        self,
        actor: Actor,
        name: str,
        *,
        description: str = "",
        group_id: str | None = None,
        quota: Mapping[str, Any] | None = None,
        needs_approval: bool = False,
        max_run_seconds: int = 0,
    ) -> WorkspaceRecord:
        """Make a workspace; who makes it is its first administrator."""
        require(actor, "workspaces:manage")
        validation.check_workspace_name(name)
        record = WorkspaceRecord(
            id=new_id("ws"),
            name=name,
            created_at=self._context.now(),
            description=description,
            group_id=group_id,
            quota=limits_from(quota or {}),
            needs_approval=needs_approval,
            max_run_seconds=max_run_seconds,
        )
        _check(record)

        def work(connection: Connection) -> WorkspaceRecord:
            _check_group(connection, record)
            workspaces.insert_workspace(connection, record)
            workspaces.set_member(connection, record.id, actor.user_id, Role.ADMIN)
            self._note(connection, actor, "create", record, f"{actor.name} made the workspace.")
            return record

        made = await self._context.write(actor, "workspaces.create", name, work)
        self._authentication.forget()
        return made

    async def change(
        self,
        actor: Actor,
        workspace: str,
        *,
        description: str | None = None,
        group_id: str | None = UNSET,
        quota: Mapping[str, Any] | None = None,
        needs_approval: bool | None = None,
        max_run_seconds: int | None = None,
        version: int | None = None,
    ) -> WorkspaceRecord:
        """Change a workspace. Its quota and its group are the platform's administrators' to change."""
        given = {
            "description": description,
            "needs_approval": needs_approval,
            "max_run_seconds": max_run_seconds,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if quota is not None:
            changes["quota"] = limits_from(quota)
        if group_id is not UNSET:
            changes["group_id"] = group_id or None

        def work(connection: Connection) -> WorkspaceRecord:
            record = find_workspace(connection, actor, workspace)
            require(actor, "workspaces:write", record.id)
            if changes.keys() & {"quota", "group_id"}:
                require(actor, "workspaces:manage")
            if version is not None and version != record.version:
                raise StaleError(
                    f"The workspace {record.name!r} has version {record.version} by now.",
                    hint="Load it again.",
                )
            changed = replace(record, **changes)
            _check(changed)
            _check_group(connection, changed)
            if changed == record:
                return record
            saved = workspaces.save(connection, changed)
            self._note(
                connection, actor, "change", saved, f"{actor.name} changed the workspace.", sorted(changes)
            )
            return saved

        return await self._context.write(actor, "workspaces.change", workspace, work)

    async def archive(self, actor: Actor, workspace: str) -> WorkspaceRecord:
        """Close a workspace to new jobs; refused while jobs of it have not ended."""

        def work(connection: Connection) -> WorkspaceRecord:
            record = find_workspace(connection, actor, workspace)
            require(actor, "workspaces:manage")
            counts = workloads.counts_by_state(connection, record.id)
            if left := sum(number for state, number in counts.items() if state not in FINAL):
                raise ConflictError(
                    f"{left} jobs of the workspace {record.name!r} have not ended.", hint="Stop them first."
                )
            if record.archived_at is not None:
                return record
            saved = workspaces.save(connection, replace(record, archived_at=self._context.now()))
            self._note(connection, actor, "archive", saved, f"{actor.name} archived the workspace.")
            return saved

        return await self._context.write(actor, "workspaces.archive", workspace, work)

    # -- members

    async def members(self, actor: Actor, workspace: str) -> Sequence[MemberRecord]:
        """Who belongs to a workspace, by name."""

        def work(connection: Connection) -> Sequence[MemberRecord]:
            record = find_workspace(connection, actor, workspace)
            require(actor, "workspaces:read", record.id)
            return workspaces.members_of(connection, record.id)

        return await self._context.db.read(work)

    async def set_member(self, actor: Actor, workspace: str, user: str, role: Role) -> MemberRecord:
        """Make somebody a member, or give them another role."""

        def work(connection: Connection) -> MemberRecord:
            record = find_workspace(connection, actor, workspace)
            require(actor, "members:write", record.id)
            found = users.find_by_name(connection, user) or users.find(connection, user)
            if found is None:
                raise failure(NotFoundError, "no_user", user=user)
            workspaces.set_member(connection, record.id, found.id, role)
            _check_admins(connection, record, actor)
            message = f"{actor.name} made {found.name} {role.value}."
            self._note(connection, actor, "set_member", record, message, [found.name, role.value])
            return MemberRecord(workspace_id=record.id, user_id=found.id, role=role, user_name=found.name)

        saved = await self._context.write(actor, "members.set", workspace, work)
        self._authentication.forget()
        return saved

    async def remove_member(self, actor: Actor, workspace: str, user: str) -> None:
        """End a membership; everybody may end their own. Their jobs stay."""

        def work(connection: Connection) -> None:
            record = find_workspace(connection, actor, workspace)
            found = users.find_by_name(connection, user) or users.find(connection, user)
            if found is None or found.id != actor.user_id:
                require(actor, "members:write", record.id)
            else:
                require(actor, "account:write")
            if found is None or not workspaces.remove_member(connection, record.id, found.id):
                raise NotFoundError(f"{user!r} is no member of {record.name!r}.")
            _check_admins(connection, record, actor)
            self._note(
                connection,
                actor,
                "remove_member",
                record,
                f"{found.name} is no member any more.",
                [found.name],
            )

        await self._context.write(actor, "members.remove", workspace, work)
        self._authentication.forget()

    # -- groups

    async def groups(self, actor: Actor) -> Sequence[GroupRecord]:
        """All groups for an administrator; for others those above their workspaces."""
        if not actor.can("workspaces:manage"):
            require(actor, "quota:read")

        def work(connection: Connection) -> Sequence[GroupRecord]:
            every = workspaces.list_groups(connection)
            if actor.can("workspaces:manage"):
                return every
            own = workspaces.list_workspaces(connection, ids=actor.roles.keys())
            above = {one.group_id for one in own}
            return [group for group in every if group.id in above]

        return await self._context.db.read(work)

    async def create_group(
        self, actor: Actor, name: str, *, quota: Mapping[str, Any] | None = None
    ) -> GroupRecord:
        """Make a group."""
        require(actor, "workspaces:manage")
        validation.check_workspace_name(name)
        record = GroupRecord(id=new_id("g"), name=name, quota=limits_from(quota or {}))

        def work(connection: Connection) -> GroupRecord:
            namesake = workspaces.find_by_name(connection, name)
            if namesake is not None and namesake.group_id is None:
                raise ConflictError(
                    f"There is a workspace {name!r} without a group, whose shared folder the group would get.",
                    hint="Choose another name.",
                )
            workspaces.insert_group(connection, record)
            self._note_group(connection, actor, "create_group", record)
            return record

        return await self._context.write(actor, "groups.create", name, work)

    async def change_group(
        self, actor: Actor, group: str, *, quota: Mapping[str, Any] | None = None, version: int | None = None
    ) -> GroupRecord:
        """Change a group's quota."""
        require(actor, "workspaces:manage")

        def work(connection: Connection) -> GroupRecord:
            record = _group(connection, group)
            if version is not None and version != record.version:
                raise StaleError(
                    f"The group {record.name!r} has version {record.version} by now.", hint="Load it again."
                )
            if quota is None:
                return record
            saved = workspaces.save_group(connection, replace(record, quota=limits_from(quota)))
            self._note_group(connection, actor, "change_group", saved)
            return saved

        return await self._context.write(actor, "groups.change", group, work)

    async def remove_group(self, actor: Actor, group: str) -> None:
        """Remove a group that no workspace belongs to."""
        require(actor, "workspaces:manage")

        def work(connection: Connection) -> None:
            record = _group(connection, group)
            workspaces.remove_group(connection, record.id)
            self._note_group(connection, actor, "remove_group", record)

        await self._context.write(actor, "groups.remove", group, work)

    # -- inside

    def _note(
        self,
        connection: Connection,
        actor: Actor,
        action: str,
        record: WorkspaceRecord,
        message: str,
        details: Sequence[str] = (),
    ) -> None:
        data: dict[str, Any] = {"details": list(details)} if details else {}
        if action in {"create", "change"}:
            data["quota"] = limits_to_json(record.quota)
        self._context.audit(
            connection, actor, f"workspaces.{action}", record.name, workspace_id=record.id, data=data or None
        )
        self._context.tell(
            connection, actor, Subject.WORKSPACE, record.id, action, message, workspace_id=record.id
        )

    def _note_group(self, connection: Connection, actor: Actor, action: str, record: GroupRecord) -> None:
        data = {"quota": limits_to_json(record.quota)}
        self._context.audit(connection, actor, f"workspaces.{action}", record.name, data=data)
        # The leader reads quotas anew after an event of a workspace; a group's concerns them all.
        message = f"{actor.name} changed the group {record.name}."
        self._context.tell(connection, actor, Subject.WORKSPACE, record.id, action, message)


def limits_from(data: Mapping[str, Any]) -> Limits:
    """A quota as people write it, checked. Amounts are integers: thousandths of a core, MiB, devices."""
    for name in data:
        if name not in _KNOWN:
            raise validation.FieldError(
                f"quota.{name[:40]}", "is not known", hint=f"There are: {', '.join(sorted(_KNOWN))}."
            )
    amounts = {name: _amounts(f"quota.{name}", data[name]) for name in _AMOUNTS if name in data}
    people = data.get("users", {})
    if not isinstance(people, Mapping):
        raise validation.FieldError("quota.users", "is not a table", hint="Give amounts by the user's name.")
    limits = {str(user): _amounts(f"quota.users.{str(user)[:40]}", given) for user, given in people.items()}
    weight = data.get("weight", 1.0)
    if (
        isinstance(weight, bool)
        or not isinstance(weight, int | float)
        or not 0 < weight <= 1e6
        or not math.isfinite(weight)
    ):
        raise validation.FieldError("quota.weight", f"is {str(weight)[:40]!r}", hint="Give a number above 0.")
    strategy = str(data.get("strategy") or "")
    if strategy and strategy not in set(Strategy):
        raise validation.FieldError(
            "quota.strategy", f"is {strategy[:40]!r}", hint=f"Choose one of {', '.join(Strategy)}."
        )
    return Limits(**amounts, users=limits, weight=float(weight), strategy=strategy)


def _amounts(field: str, data: object) -> dict[str, int]:
    if not isinstance(data, Mapping) or len(data) > job_limits.TAGS:
        raise validation.FieldError(
            field, "is not a table of amounts", hint='Write {"cpu": 64000, "V100": 8}.'
        )
    found: dict[str, int] = {}
    for name, amount in data.items():
        if not isinstance(name, str) or not job_limits.DEVICE.match(name):
            raise validation.FieldError(
                field, f"names {str(name)[:40]!r}, which is no resource", hint="Use cpu, memory or a device."
            )
        if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= LARGEST:
            raise validation.FieldError(
                f"{field}.{name}", f"is {str(amount)[:40]!r}", hint="Give a whole number from 0."
            )
        found[name] = amount
    return found


def _check(record: WorkspaceRecord) -> None:
    validation.check_text("description", record.description, longest=2000, lines=True)
    if not 0 <= record.max_run_seconds <= job_limits.SECONDS:
        raise validation.FieldError(
            "max_run_seconds", f"is {record.max_run_seconds}", hint="Give seconds; 0 is no limit."
        )


def _check_group(connection: Connection, record: WorkspaceRecord) -> None:
    """A workspace without a group shares the folder of its own name: no group may have that name, whose members share it, too."""
    if record.group_id is not None:
        if workspaces.find_group(connection, record.group_id) is None:
            raise NotFoundError(
                f"There is no group {record.group_id!r}.", hint="See `trainyard workspaces groups`."
            )
    elif any(group.name == record.name for group in workspaces.list_groups(connection)):
        raise ConflictError(
            f"There is a group {record.name!r}, whose shared folder the workspace {record.name!r} would get.",
            hint="Put the workspace into the group, or choose another name.",
        )


def _check_admins(connection: Connection, record: WorkspaceRecord, actor: Actor) -> None:
    """A workspace keeps an administrator, unless one of the platform's decides otherwise."""
    if actor.is_admin or any(one.role is Role.ADMIN for one in workspaces.members_of(connection, record.id)):
        return
    raise ConflictError(
        f"The workspace {record.name!r} would be without an administrator.", hint="Name another one first."
    )


def _group(connection: Connection, text: str) -> GroupRecord:
    found = [one for one in workspaces.list_groups(connection) if text in {one.id, one.name}]
    if not found:
        raise failure(NotFoundError, "no_group", group=text)
    return found[0]
