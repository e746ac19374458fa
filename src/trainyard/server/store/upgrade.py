"""Bring a database to the newest tables: a new one at once, an old one by its revisions. Alembic is imported only then."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select, text

from trainyard.lib.errors import ConflictError
from trainyard.server.store import migrations
from trainyard.server.store.database import Database
from trainyard.server.store.tables import metadata

# Alembic's own table, as it makes it.
_versions = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))

# Servers that start together on PostgreSQL do this one after the other.
_LOCK = 7_230_115


def ensure(db: Database) -> str:
    """Bring the tables up to date; returns the revision that they were at, empty for a new database."""
    found = db.read_now(revision)
    if found == migrations.HEAD:
        return found
    with db.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        found = revision(connection)
        if found == "":
            _make(connection)
        elif found != migrations.HEAD:
            _upgrade(connection, found)
    return found


def revision(connection: Connection) -> str:
    """Which revision a database is at; empty: it has no tables yet."""
    names = inspect(connection).get_table_names()
    if _versions.name in names:
        return str(connection.execute(select(_versions.c.version_num)).scalar() or "")
    if "workloads" in names:
        raise ConflictError(
            "The database has tables of ours, but does not say of which version.",
            hint="Restore it from a backup, or use an empty database.",
        )
    return ""


def _make(connection: Connection) -> None:
    metadata.create_all(connection)
    _versions.create(connection)
    connection.execute(insert(_versions), {"version_num": migrations.HEAD})


def _upgrade(connection: Connection, found: str) -> None:
    # Not at the top: most starts find a database that is up to date, and Alembic costs them 100 ms.
    command, config = import_module("alembic.command"), import_module("alembic.config")
    script = import_module("alembic.script")
    settings = config.Config()
    settings.set_main_option("script_location", str(Path(migrations.__file__).parent))
    settings.attributes["connection"] = connection
    known = {one.revision for one in script.ScriptDirectory.from_config(settings).walk_revisions()}
    if found not in known:
        raise ConflictError(
            f"The database was made by a newer version (revision {found}).",
            hint="Upgrade this program, or restore a backup of the older version.",
        )
    command.upgrade(settings, "head")
