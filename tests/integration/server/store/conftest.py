"""The same tests on a SQLite file and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from people import People, assemble
from postgres import postgres  # noqa: F401  # a fixture
from trainyard.lib.clock import ManualClock
from trainyard.server.store import upgrade
from trainyard.server.store.database import Database


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'platform.db'}"
    return request.getfixturevalue("postgres").emptied()


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    """A database with the newest tables."""
    database = Database(database_url)
    upgrade.ensure(database)
    yield database
    database.close()


@pytest.fixture
async def people(db: Database, tmp_path: Path) -> Iterator[People]:
    """A platform's people: an administrator, and two workspaces that know nothing of each other."""
    people = await assemble(db, ManualClock(), tmp_path)
    yield people
    people.services.close()
