"""Settings that live in the database: by key, any JSON value. What an operator sets for a server is server/settings.py."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from trainyard.server.store.tables import settings


def find(connection: Connection, key: str) -> Any:
    """A setting's value, or None."""
    return connection.execute(select(settings.c.value).where(settings.c.key == key)).scalar()


def ensure(connection: Connection, key: str, value: Any) -> Any:
    """A setting's value; where there is none, this one from now on."""
    found = find(connection, key)
    if found is not None:
        return found
    try:
        with connection.begin_nested():
            connection.execute(insert(settings), {"key": key, "value": value})
    except IntegrityError:  # another server was quicker
        return find(connection, key)
    return value


def save(connection: Connection, key: str, value: Any) -> None:
    """Set a setting."""
    if not connection.execute(update(settings).where(settings.c.key == key).values(value=value)).rowcount:
        ensure(connection, key, value)
