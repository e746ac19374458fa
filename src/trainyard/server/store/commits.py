"""Tells whether anything was committed since the last look, whoever committed it.

SQLite tells by `PRAGMA data_version` on a connection that never writes, PostgreSQL by its snapshot: two equal marks
have seen the same commits. So nothing has to remember to invalidate, other processes included.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Hashable

from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url

from trainyard.server.store.database import Database


class Commits:
    """Tells whether anything was committed since."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._looker: sqlite3.Connection | None = None
        if db.is_sqlite:
            path = make_url(db.url).database or ""
            self._looker = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)

    async def mark(self) -> Hashable:
        """A mark that is another one after every commit."""
        if self._looker is None:
            return await self._db.read(_snapshot)
        try:
            version: int = self._looker.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.OperationalError:  # busy for a moment: as good as changed
            return time.monotonic_ns()
        return version

    def close(self) -> None:
        """Let go of the connection."""
        if self._looker is not None:
            self._looker.close()


def _snapshot(connection: Connection) -> str:
    return str(connection.execute(text("SELECT pg_current_snapshot()::text")).scalar_one())
