"""Nonces of signed requests that were taken, by digest. Which requests have one is services/nonces.py's."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete
from sqlalchemy.dialects import postgresql, sqlite

from trainyard.server.tables import nonces

_INSERTS = {
    "sqlite": sqlite.insert(nonces).on_conflict_do_nothing().returning(nonces.c.digest),
    "postgresql": postgresql.insert(nonces).on_conflict_do_nothing().returning(nonces.c.digest),
}


def insert_new(connection: Connection, told: Mapping[bytes, float]) -> frozenset[bytes]:
    """Write digests with the time until which they matter; answers with those that were not there before."""
    # Sorted: of two servers that write the same ones, none waits for the other in a circle.
    rows = [{"digest": digest, "expires_at": told[digest]} for digest in sorted(told)]
    return frozenset(connection.scalars(_INSERTS[connection.dialect.name], rows))


def delete_before(connection: Connection, time: float) -> None:
    """Forget those whose request would be refused for its time alone."""
    connection.execute(delete(nonces).where(nonces.c.expires_at < time))
