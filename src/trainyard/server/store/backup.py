"""Copies of the database: taken while servers run, put back while none does. SQLite only: PostgreSQL has its own tools.

What jobs printed is in files beside the database; whoever wants that too copies the folder `logs`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url

from trainyard.lib.errors import ConflictError, DiskFullError, InvalidError, NotFoundError, UnsupportedError
from trainyard.lib.files import open_private
from trainyard.lib.private_folder import make_private
from trainyard.server.disk_space import telling_no_room
from trainyard.server.settings import ServerSettings
from trainyard.server.store.database import NO_ROOM_NAMES

# Terms of leaders that a lost database may have had since its backup was made; one begins with every start.
LEAP = 10_000
LOCK = "server.lock"  # held by a server for as long as it runs


def make_backup(settings: ServerSettings, target: Path, *, replace: bool = False) -> None:
    """Write a copy of the database as it is this moment, readable by its owner only; servers may go on meanwhile."""
    source = _file(settings, "Use pg_dump: `pg_dump --format=custom --file=FILE URL`.")
    if not source.exists():
        raise NotFoundError(f"There is no database {source}.", hint="Name the platform's folder with --data.")
    if target.exists() and not replace:
        raise ConflictError(f"{target} is there already.", hint="Choose another name, or use --force.")
    with telling_no_room(str(target)), _beside(target) as fresh:
        with _opened(source) as database, _opened(fresh) as copy:
            database.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, without companions
        _check(fresh)
        _sync(fresh)
        fresh.replace(target)


def restore_backup(settings: ServerSettings, source: Path) -> Path | None:
    """Put a backup in the place of the database, while no server runs; returns where the old one is kept."""
    target = _file(settings, "Use pg_restore: `pg_restore --clean --if-exists --dbname=URL FILE`.")
    if not source.exists():
        raise NotFoundError(
            f"There is no file {source}.", hint="Name a file that `trainyard admin backup` wrote."
        )
    _check(source)
    make_private(settings.data)
    with telling_no_room(str(target)), _alone(settings.data), _beside(target) as fresh:
        with _opened(source) as database, _opened(fresh) as copy:
            database.backup(copy)
            _count_on(copy, target)
        _sync(fresh)
        kept = None
        if target.exists():
            # The old one takes its unwritten pages along; else they would be played into the new one.
            with _opened(target) as old:
                old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                old.execute("PRAGMA journal_mode=DELETE")
            kept = target.with_name(f"{target.name}.before-restore")
            target.replace(kept)
        for companion in ("-wal", "-shm"):
            target.with_name(target.name + companion).unlink(missing_ok=True)
        fresh.replace(target)
    return kept


def _count_on(copy: sqlite3.Connection, old: Path) -> None:
    """Numbers that only go up do so still: nodes obey no older leader, and followers wait for no older event."""
    epochs, numbers = {}, {}
    if old.exists():
        with _opened(old) as database:
            epochs = dict(database.execute("SELECT name, epoch FROM leases"))
            numbers = dict(database.execute("SELECT name, seq FROM sqlite_sequence"))
    for name, epoch in copy.execute("SELECT name, epoch FROM leases").fetchall():
        newer = max(epoch, epochs.get(name, 0)) + LEAP
        copy.execute("UPDATE leases SET epoch = ?, until = 0 WHERE name = ?", (newer, name))
    for name, number in numbers.items():
        copy.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (number, name))
    copy.commit()


def _file(settings: ServerSettings, hint: str) -> Path:
    if not settings.is_embedded:
        raise UnsupportedError("The platform's database is PostgreSQL.", hint=hint)
    return Path(make_url(settings.database_url).database or "")


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A file of nobody else's in the same folder, so that it can take the target's place at once."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        for companion in ("", "-journal", "-wal", "-shm"):
            Path(name + companion).unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        connection = sqlite3.connect(path, timeout=30)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorname in NO_ROOM_NAMES:
            raise DiskFullError(
                f"There is no room on the disk for {path.parent}.", hint="Make room, then try again."
            ) from error
        raise InvalidError(
            f"{path} cannot be read as a database: {error}.", hint="Take another file."
        ) from error


def _check(path: Path) -> None:
    """A database of ours that is whole."""
    with _opened(path) as connection:
        answer = connection.execute("PRAGMA quick_check").fetchone()
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if answer != ("ok",):
        raise InvalidError(f"{path} is damaged: {answer[0]}.", hint="Take another backup.")
    if not {"alembic_version", "workloads", "users"} <= names:
        raise InvalidError(
            f"{path} is no database of a platform.", hint="Take a file of `trainyard admin backup`."
        )


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with open_private(folder / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(f"A server runs on {folder}.", hint="Stop it first.") from error
        yield
