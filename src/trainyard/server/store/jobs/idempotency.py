"""Keys of requests that may be repeated: what the first one was, and what it was answered."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from trainyard.lib.errors import ConflictError
from trainyard.server.records.idempotency import AnswerRecord, KeyTakenError
from trainyard.server.store.tables import idempotency


def find(connection: Connection, user_id: str, key: str, digest: str) -> AnswerRecord | None:
    """What the first request with this key was answered; ConflictError where that was another request."""
    where = (idempotency.c.user_id == user_id) & (idempotency.c.key == key)
    row = connection.execute(select(idempotency).where(where)).first()
    if row is None:
        return None
    if row.digest != digest:
        raise ConflictError(
            f"The idempotency key {key.rpartition(':')[2]!r} was used for another request.",
            hint="Use a new key for every new request.",
        )
    return AnswerRecord(**row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names


def keep(connection: Connection, record: AnswerRecord) -> None:
    """Keep an answer; KeyTakenError where the same key was used this moment by another request."""
    try:
        with connection.begin_nested():
            connection.execute(
                insert(idempotency),
                {
                    "user_id": record.user_id,
                    "key": record.key,
                    "digest": record.digest,
                    "status": record.status,
                    "body": record.body,
                    "created_at": record.created_at,
                },
            )
    except IntegrityError as error:
        raise KeyTakenError("The same request is being worked on.", hint="Try again in a moment.") from error


def forget(connection: Connection, user_id: str, key: str) -> None:
    """Let a key be used again."""
    connection.execute(delete(idempotency).where(idempotency.c.user_id == user_id, idempotency.c.key == key))


def delete_before(connection: Connection, time: float) -> None:
    """Forget old answers."""
    connection.execute(delete(idempotency).where(idempotency.c.created_at < time))
