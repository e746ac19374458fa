"""Tokens: known by their digest only. How they are made and read is auth/tokens.py."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from trainyard.lib.errors import NotFoundError
from trainyard.server.records.tokens import TokenRecord
from trainyard.server.store.tables import tokens

# A token's last use is written down this much late at most: a write for every request would be too many.
USE_SECONDS = 300.0


_NAMES = tuple(one.name for one in fields(TokenRecord))


def insert_token(connection: Connection, record: TokenRecord) -> None:
    """Write a new token."""
    values = {name: getattr(record, name) for name in _NAMES}
    connection.execute(insert(tokens), {**values, "scopes": list(record.scopes)})


def find_by_digest(connection: Connection, digest: str) -> TokenRecord | None:
    """The token with this digest, valid or not."""
    row = connection.execute(select(tokens).where(tokens.c.digest == digest)).first()
    return None if row is None else _record(row)


def load(connection: Connection, id: str) -> TokenRecord:  # noqa: A002  # the column's name
    """The token with this id, or NotFoundError."""
    row = connection.execute(select(tokens).where(tokens.c.id == id)).first()
    if row is None:
        raise NotFoundError(f"There is no token {id!r}.")
    return _record(row)


def of_user(connection: Connection, user_id: str) -> list[TokenRecord]:
    """A user's tokens, newest first, without those that are revoked."""
    query = select(tokens).where(tokens.c.user_id == user_id, tokens.c.revoked_at.is_(None))
    return [_record(row) for row in connection.execute(query.order_by(tokens.c.id.desc()))]


def note_use(connection: Connection, id: str, now: float) -> None:  # noqa: A002  # same
    """Write down that a token was used."""
    connection.execute(update(tokens).where(tokens.c.id == id).values(last_used_at=now))


def revoke(connection: Connection, id: str, now: float) -> None:  # noqa: A002  # same
    """Close a token for good; doing it twice is doing it once."""
    statement = update(tokens).where(tokens.c.id == id, tokens.c.revoked_at.is_(None))
    connection.execute(statement.values(revoked_at=now))


def revoke_all(
    connection: Connection, user_id: str, now: float, *, except_id: str = "", kind: str = ""
) -> None:
    """Close all of a user's tokens, but for one, or only those of a kind."""
    statement = update(tokens).where(
        tokens.c.user_id == user_id, tokens.c.revoked_at.is_(None), tokens.c.id != except_id
    )
    if kind:
        statement = statement.where(tokens.c.kind == kind)
    connection.execute(statement.values(revoked_at=now))


def delete_expired(connection: Connection, before: float) -> None:
    """Forget tokens that were revoked, or ran out, before a time."""
    connection.execute(delete(tokens).where((tokens.c.expires_at < before) | (tokens.c.revoked_at < before)))


def _record(row: Row[Any]) -> TokenRecord:
    values = dict(row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
    return TokenRecord(**{**values, "scopes": tuple(values["scopes"])})
