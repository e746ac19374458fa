"""Workspaces, the groups above them, and who belongs to which."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from trainyard.lib.errors import ConflictError, NotFoundError
from trainyard.messages.catalogue import failure
from trainyard.server.records.workspaces import (
    GroupRecord,
    MemberRecord,
    Role,
    WorkspaceRecord,
    limits_of_json,
    limits_to_json,
)
from trainyard.server.store.tables import groups, members, users, workspaces
from trainyard.server.store.versioned_rows import versioned_update, write_one

_NAMES = tuple(one.name for one in fields(WorkspaceRecord))
_CHANGING = tuple(name for name in _NAMES if name not in {"id", "created_at", "version"})
_UPDATE = versioned_update(workspaces, "id", _CHANGING)
_BY_ID = select(workspaces).where(workspaces.c.id == bindparam("wanted_id"))
_UPDATE_GROUP = versioned_update(groups, "id", ("name", "quota"))


# -- workspaces


def insert_workspace(connection: Connection, record: WorkspaceRecord) -> None:
    """Write a new workspace; ConflictError where the name is taken."""
    try:
        with connection.begin_nested():
            connection.execute(insert(workspaces), _values(record, _NAMES))
    except IntegrityError as error:
        raise ConflictError(
            f"There is a workspace {record.name!r} already.", hint="Choose another name."
        ) from error


def find(connection: Connection, id: str) -> WorkspaceRecord | None:  # noqa: A002  # the column's name
    """The workspace with this id, or None."""
    row = connection.execute(_BY_ID, {"wanted_id": id}).first()
    return None if row is None else _record(row)


def find_by_name(connection: Connection, name: str) -> WorkspaceRecord | None:
    """The workspace of this name, or None."""
    row = connection.execute(select(workspaces).where(workspaces.c.name == name)).first()
    return None if row is None else _record(row)


def load(connection: Connection, id: str) -> WorkspaceRecord:  # noqa: A002  # same
    """The workspace with this id, or NotFoundError."""
    record = find(connection, id)
    if record is None:
        raise failure(NotFoundError, "no_workspace", workspace=id)
    return record


def list_workspaces(
    connection: Connection, *, ids: Collection[str] | None = None, with_archived: bool = False
) -> list[WorkspaceRecord]:
    """All workspaces by name, or those of these ids."""
    query = select(workspaces).order_by(workspaces.c.name)
    if ids is not None:
        query = query.where(workspaces.c.id.in_(list(ids)))
    if not with_archived:
        query = query.where(workspaces.c.archived_at.is_(None))
    return [_record(row) for row in connection.execute(query)]


def names(connection: Connection) -> dict[str, str]:
    """What all workspaces are called, by id."""
    return {row.id: row.name for row in connection.execute(select(workspaces.c.id, workspaces.c.name))}


def save(connection: Connection, record: WorkspaceRecord) -> WorkspaceRecord:
    """Write what can change, if the stored version is still `record.version`; else StaleError."""
    row = (record.id, record.version, _values(record, _CHANGING))
    write_one(connection, _UPDATE, row, table=workspaces, key="id", what="workspace")
    return replace(record, version=record.version + 1)


# -- groups


def insert_group(connection: Connection, record: GroupRecord) -> None:
    """Write a new group; ConflictError where the name is taken."""
    try:
        with connection.begin_nested():
            connection.execute(
                insert(groups),
                {
                    "id": record.id,
                    "name": record.name,
                    "quota": limits_to_json(record.quota),
                    "version": record.version,
                },
            )
    except IntegrityError as error:
        raise ConflictError(
            f"There is a group {record.name!r} already.", hint="Choose another name."
        ) from error


def find_group(connection: Connection, id: str) -> GroupRecord | None:  # noqa: A002  # same
    """The group with this id, or None."""
    row = connection.execute(select(groups).where(groups.c.id == id)).first()
    return None if row is None else _group(row)


def list_groups(connection: Connection) -> list[GroupRecord]:
    """All groups by name."""
    return [_group(row) for row in connection.execute(select(groups).order_by(groups.c.name))]


def save_group(connection: Connection, record: GroupRecord) -> GroupRecord:
    """Write what can change, if the stored version is still `record.version`; else StaleError."""
    values = {"name": record.name, "quota": limits_to_json(record.quota)}
    row = (record.id, record.version, values)
    write_one(connection, _UPDATE_GROUP, row, table=groups, key="id", what="group")
    return replace(record, version=record.version + 1)


def remove_group(connection: Connection, id: str) -> None:  # noqa: A002  # same
    """Forget a group; ConflictError while workspaces belong to it."""
    try:
        with connection.begin_nested():
            connection.execute(delete(groups).where(groups.c.id == id))
    except IntegrityError as error:
        raise ConflictError(
            f"Workspaces belong to the group {id!r}.", hint="Move them to another group first."
        ) from error


# -- members


def members_of(connection: Connection, workspace_id: str) -> list[MemberRecord]:
    """Who belongs to a workspace, by name."""
    query = (
        select(members, users.c.name.label("user_name"))
        .join(users, users.c.id == members.c.user_id)
        .where(members.c.workspace_id == workspace_id)
        .order_by(users.c.name)
    )
    return [
        MemberRecord(
            workspace_id=row.workspace_id, user_id=row.user_id, role=Role(row.role), user_name=row.user_name
        )
        for row in connection.execute(query)
    ]


def roles_of(connection: Connection, user_id: str) -> dict[str, Role]:
    """A user's role in every workspace that they belong to, by its id."""
    query = select(members.c.workspace_id, members.c.role).where(members.c.user_id == user_id)
    return {row.workspace_id: Role(row.role) for row in connection.execute(query)}


def set_member(connection: Connection, workspace_id: str, user_id: str, role: Role) -> None:
    """Make somebody a member, or give them another role."""
    where = (members.c.workspace_id == workspace_id) & (members.c.user_id == user_id)
    if connection.execute(update(members).where(where).values(role=role.value)).rowcount:
        return
    try:
        with connection.begin_nested():
            connection.execute(
                insert(members), {"workspace_id": workspace_id, "user_id": user_id, "role": role.value}
            )
    except IntegrityError:  # somebody else made them a member this moment
        connection.execute(update(members).where(where).values(role=role.value))


def remove_member(connection: Connection, workspace_id: str, user_id: str) -> bool:
    """End a membership; False where there was none."""
    where = (members.c.workspace_id == workspace_id) & (members.c.user_id == user_id)
    return bool(connection.execute(delete(members).where(where)).rowcount)


# -- inside


def _values(record: WorkspaceRecord, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in names}
    values["quota"] = limits_to_json(record.quota)
    return values


def _record(row: Row[Any]) -> WorkspaceRecord:
    values = dict(row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
    values["quota"] = limits_of_json(values["quota"])
    return WorkspaceRecord(**values)


def _group(row: Row[Any]) -> GroupRecord:
    return GroupRecord(id=row.id, name=row.name, quota=limits_of_json(row.quota), version=row.version)
