"""Secrets of users and of workspaces: sealed values by name. Who may have one is people/secrets.py's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select, update

from trainyard.server.records.secrets import SecretRecord, place_of
from trainyard.server.store.tables import secrets


def insert_secret(connection: Connection, record: SecretRecord) -> None:
    """Write a new one."""
    connection.execute(insert(secrets), {column.name: getattr(record, column.name) for column in secrets.c})


def save_secret(connection: Connection, secret_id: str, sealed: bytes, now: float) -> None:
    """Give one another value."""
    query = update(secrets).where(secrets.c.id == secret_id)
    connection.execute(query.values(sealed=sealed, changed_at=now))


def remove_secret(connection: Connection, secret_id: str) -> None:
    """Forget one."""
    connection.execute(delete(secrets).where(secrets.c.id == secret_id))


def find_secret(
    connection: Connection, name: str, user_id: str, workspace_id: str | None
) -> SecretRecord | None:
    """One of a user's own, or of a workspace."""
    wanted = secrets.c.place == place_of(user_id, workspace_id), secrets.c.name == name
    row = connection.execute(select(secrets).where(*wanted)).first()
    return None if row is None else _record(row)


def list_secrets(
    connection: Connection, user_id: str, workspace_ids: Collection[str] | None
) -> list[SecretRecord]:
    """A user's own and those of these workspaces (None: all), by name."""
    own = secrets.c.place == place_of(user_id, None)
    shared = (
        secrets.c.workspace_id.is_not(None)
        if workspace_ids is None
        else secrets.c.workspace_id.in_(list(workspace_ids))
    )
    query = select(secrets).where(or_(own, shared)).order_by(secrets.c.name, secrets.c.place)
    return [_record(row) for row in connection.execute(query)]


def find_in_places(
    connection: Connection, places: Collection[str], names: Collection[str]
) -> list[SecretRecord]:
    """All of these names in these places."""
    query = select(secrets).where(secrets.c.place.in_(list(places)), secrets.c.name.in_(list(names)))
    return [_record(row) for row in connection.execute(query)]


def note_used(connection: Connection, ids: Collection[str], now: float) -> None:
    """Write down that a job got them."""
    connection.execute(update(secrets).where(secrets.c.id.in_(list(ids))).values(last_used_at=now))


def _record(row: Any) -> SecretRecord:
    values = dict(row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
    values.pop("place")
    return SecretRecord(**values)
