"""Users: who there is. Passwords are here as hashes only; how they are checked is auth/passwords.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from trainyard.lib.errors import ConflictError, NotFoundError
from trainyard.messages.catalogue import failure
from trainyard.server.records.users import UserRecord
from trainyard.server.store.tables import user_numbers, users
from trainyard.server.store.versioned_rows import chunks, versioned_update, write_one

_NAMES = tuple(one.name for one in fields(UserRecord))
_CHANGING = tuple(name for name in _NAMES if name not in {"id", "created_at", "version"})
_UPDATE = versioned_update(users, "id", _CHANGING)


def insert_user(connection: Connection, record: UserRecord) -> None:
    """Write a new user; ConflictError where the name is taken."""
    try:
        with connection.begin_nested():
            connection.execute(insert(users), {name: getattr(record, name) for name in _NAMES})
            connection.execute(insert(user_numbers), {"user_id": record.id})
    except IntegrityError as error:
        raise ConflictError(
            f"There is a user {record.name!r} already.", hint="Choose another name."
        ) from error


def find(connection: Connection, id: str) -> UserRecord | None:  # noqa: A002  # the column's name
    """The user with this id, or None."""
    return _one(connection.execute(select(users).where(users.c.id == id)).first())


def find_by_name(connection: Connection, name: str) -> UserRecord | None:
    """The user of this name, or None."""
    return _one(connection.execute(select(users).where(users.c.name == name)).first())


def find_by_subject(connection: Connection, subject: str) -> UserRecord | None:
    """The user whom an identity provider calls so, or None."""
    return _one(connection.execute(select(users).where(users.c.oidc_subject == subject)).first())


def load(connection: Connection, id: str) -> UserRecord:  # noqa: A002  # same
    """The user with this id, or NotFoundError."""
    record = find(connection, id)
    if record is None:
        raise failure(NotFoundError, "no_user", user=id)
    return record


def names(connection: Connection, ids: Iterable[str]) -> dict[str, str]:
    """What users are called, by id."""
    found: dict[str, str] = {}
    for part in chunks(set(ids)):
        rows = connection.execute(select(users.c.id, users.c.name).where(users.c.id.in_(part)))
        found.update({row.id: row.name for row in rows})
    return found


def numbers(connection: Connection, ids: Iterable[str]) -> dict[str, int]:
    """The numbers of users, by id: from 1 on, each one's own for good."""
    found: dict[str, int] = {}
    for part in chunks(set(ids)):
        rows = connection.execute(select(user_numbers).where(user_numbers.c.user_id.in_(part)))
        found.update({row.user_id: row.number for row in rows})
    return found


def load_many(connection: Connection, ids: Iterable[str]) -> list[UserRecord]:
    """The users with these ids, as far as there are any."""
    found: list[UserRecord] = []
    for part in chunks(set(ids)):
        found += [_record(row) for row in connection.execute(select(users).where(users.c.id.in_(part)))]
    return found


def mails(connection: Connection, ids: Iterable[str]) -> dict[str, str]:
    """Addresses by id; the name of one who has given none."""
    query = select(users.c.id, users.c.name, users.c.email).where(users.c.id.in_(list(ids)))
    return {row.id: row.email or row.name for row in connection.execute(query)}


def ids(connection: Connection, names: Iterable[str]) -> dict[str, str]:
    """The ids of users, by name."""
    found: dict[str, str] = {}
    for part in chunks(set(names)):
        rows = connection.execute(select(users.c.id, users.c.name).where(users.c.name.in_(part)))
        found.update({row.name: row.id for row in rows})
    return found


def list_page(connection: Connection, *, after_name: str = "", limit: int = 100) -> list[UserRecord]:
    """One page of users by name."""
    query = select(users).where(users.c.name > after_name).order_by(users.c.name).limit(limit)
    return [_record(row) for row in connection.execute(query)]


def count(connection: Connection) -> int:
    """How many users there are."""
    return connection.execute(select(func.count()).select_from(users)).scalar_one()


def count_admins(connection: Connection) -> int:
    """How many administrators can sign in."""
    query = select(func.count()).select_from(users)
    return connection.execute(query.where(users.c.is_admin, users.c.is_active)).scalar_one()


def save(connection: Connection, record: UserRecord) -> UserRecord:
    """Write what can change, if the stored version is still `record.version`; else StaleError."""
    values = {name: getattr(record, name) for name in _CHANGING}
    row = (record.id, record.version, values)
    write_one(connection, _UPDATE, row, table=users, key="id", what="user")
    return replace(record, version=record.version + 1)


def delete_unused(connection: Connection, id: str) -> None:  # noqa: A002  # same
    """Remove an account that never signed in. One that jobs or tokens point at cannot be removed, only closed."""
    connection.execute(delete(users).where(users.c.id == id, users.c.is_active.is_(False)))


def _one(row: Row[Any] | None) -> UserRecord | None:
    return None if row is None else _record(row)


def _record(row: Row[Any]) -> UserRecord:
    return UserRecord(**row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
