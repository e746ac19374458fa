"""The database: short transactions on threads of their own, and the guard that keeps the network out of them.

A transaction's body is a plain function of a connection, so it cannot wait for anything but the database. On SQLite
one thread writes, and commits together what arrived meanwhile: each piece in its own savepoint. What is in the tables
is tables.py; what is read and written is store/.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import json
import os
import queue
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError

from trainyard.lib.errors import Error, UnreachableError
from trainyard.server.disk_space import RENEW_SECONDS, WAL_BYTES, DiskSpace, disk_full, telling_no_room

T = TypeVar("T")
Work = Callable[[Connection], T]

# How many pieces of work one commit may carry: bounds how long the first of them waits.
GROUP = 256
READERS = 4
# PostgreSQL gives up one of two transactions that met; a few tries with a growing pause settle that.
ATTEMPTS = 6
# What SQLite calls a full disk: for its files, and for the memory that connections share.
NO_ROOM_NAMES = frozenset({"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"})

inside_transaction: contextvars.ContextVar[bool] = contextvars.ContextVar("inside_transaction", default=False)


# What the interpreter says before it reaches for the network or for another program. The database's own drivers do that in
# C, and before a transaction's body begins.
FORBIDDEN = frozenset(
    {
        "socket.connect",
        "socket.bind",
        "socket.sendto",
        "socket.getaddrinfo",
        "subprocess.Popen",
        "os.system",
        "os.posix_spawn",
    }
)


def _refuse(event_name: str, _arguments: tuple[Any, ...]) -> None:
    """Refuse the network while a transaction is open: it would hold locks for as long as the far side likes."""
    if event_name in FORBIDDEN and inside_transaction.get():
        raise RuntimeError(f"{event_name} inside a database transaction")


@functools.cache
def _guard_transactions() -> None:
    """Have the interpreter ask us. Once: such a hook cannot be taken back."""
    sys.addaudithook(_refuse)


@dataclass(slots=True)
class _Piece:
    work: Work[Any]
    done: Future[Any] = field(default_factory=Future)


class Database:
    """One database, SQLite by file or PostgreSQL by URL. Safe to use from many tasks at once."""

    def __init__(self, url: str, *, disk: DiskSpace | None = None) -> None:
        _guard_transactions()
        self.url = url
        self._disk = disk
        self.is_sqlite = url.startswith("sqlite")
        self.engine = _sqlite(url) if self.is_sqlite else _postgres(url)
        self._pieces: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="db-read")
        self._writers = None if self.is_sqlite else ThreadPoolExecutor(READERS, thread_name_prefix="db-write")
        self._writer = threading.Thread(target=self._write_all, name="db-write", daemon=True)
        if self.is_sqlite:
            self._writer.start()

    async def write(self, work: Work[T]) -> T:
        """Run `work` in a transaction that is committed when this returns. Raises what `work` raised, rolled back."""
        if self._writers is not None:
            return await asyncio.wrap_future(self._writers.submit(self._write_one, work))
        piece = _Piece(work)
        self._pieces.put(piece)
        return await asyncio.wrap_future(piece.done)

    async def read(self, work: Work[T]) -> T:
        """Run `work` in a transaction that is rolled back."""
        return await asyncio.wrap_future(self._readers.submit(self._read_one, work))

    def write_now(self, work: Work[T]) -> T:
        """The same for callers without a loop: set-up, the administrator's commands, tests."""
        if self._writers is not None:
            return self._write_one(work)
        piece = _Piece(work)
        self._pieces.put(piece)
        result: T = piece.done.result()
        return result

    def read_now(self, work: Work[T]) -> T:
        """The same for callers without a loop."""
        return self._read_one(work)

    async def ping(self) -> None:
        """Ask the database for nothing; the error where it does not answer."""
        await self.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one())

    def is_short_of_room(self) -> bool:
        """Whether the disk is full: what can wait, waits."""
        return self._disk is not None and self._disk.is_full()

    async def keep_reserve(self) -> None:
        """See to the reserve again and again, until cancelled: what was given up is made anew where there is room."""
        while self._disk is not None:
            await asyncio.to_thread(self._disk.renew)
            if self.is_sqlite and not self._disk.is_full() and _log_size(self.url) < WAL_BYTES:
                with contextlib.suppress(Error):
                    await self.write(lambda _: _extend_log(self.url))
            await asyncio.sleep(RENEW_SECONDS)

    def close(self) -> None:
        """Finish what was asked for, then let go."""
        if self._writers is None:
            self._pieces.put(None)
            self._writer.join()
        else:
            self._writers.shutdown()
        self._readers.shutdown()
        self.engine.dispose()

    # -- on the threads

    def _read_one(self, work: Work[T]) -> T:
        return self._tried(self.engine.connect, work)

    def _write_one(self, work: Work[T]) -> T:
        return self._tried(self.engine.begin, work)

    def _tried(self, opened: Callable[[], AbstractContextManager[Connection]], work: Work[T]) -> T:
        for attempt in range(ATTEMPTS):
            try:
                with _translated(), opened() as connection:
                    return _guarded(work, connection)
            except _AgainError as error:
                if attempt == ATTEMPTS - 1:
                    raise UnreachableError(
                        "The database gave up the transaction again and again.", hint="Try again."
                    ) from error
                time.sleep(random.uniform(0, 0.01 * 2**attempt))  # noqa: S311  # a pause, not a secret
        raise AssertionError  # pragma: no cover  # the loop returns or raises

    def _write_all(self) -> None:
        while (first := self._pieces.get()) is not None:
            group, last = [first], False
            while len(group) < GROUP:
                try:
                    piece = self._pieces.get_nowait()
                except queue.Empty:
                    break
                if piece is None:
                    last = True
                    break
                group.append(piece)
            self._commit(group)
            if last:
                return

    def _commit(self, group: list[_Piece]) -> None:
        pieces = [piece for piece in group if piece.done.set_running_or_notify_cancel()]
        error = self._tried_together(pieces)
        if error is not None and self._disk is not None and _is_disk_full(error):
            self._disk.note()
            if self._disk.give_up():
                error = self._tried_together([piece for piece in pieces if not piece.done.done()])
        if error is not None:
            for piece in pieces:
                if not piece.done.done():
                    piece.done.set_exception(_plain(error))

    def _tried_together(self, pieces: list[_Piece]) -> Exception | None:
        """Do them in one transaction. Returns why nothing was kept, of which nobody was told yet."""
        if not pieces:
            return None
        results: list[tuple[_Piece, Any]] = []
        try:
            with self.engine.begin() as connection:
                if len(pieces) == 1:  # alone it needs no savepoint: where it fails, nothing is committed
                    results.append((pieces[0], _guarded(pieces[0].work, connection)))
                else:
                    for piece in pieces:
                        _apart(piece, connection, results)
        except Exception as error:  # noqa: BLE001  # the commit itself, or the only one: nobody's work was kept
            return error
        for piece, result in results:
            piece.done.set_result(result)
        return None


def _apart(piece: _Piece, connection: Connection, results: list[tuple[_Piece, Any]]) -> None:
    """Do one piece of several: where it fails, the others are kept."""
    _say(connection, "SAVEPOINT piece")
    try:
        results.append((piece, _guarded(piece.work, connection)))
    except Exception as error:
        if _is_disk_full(error):  # SQLite has given up all of the transaction, maybe
            raise
        _say(connection, "ROLLBACK TO piece")
        piece.done.set_exception(_plain(error))
    _say(connection, "RELEASE piece")


class _AgainError(Exception):
    """The database asks to try the transaction again."""


class _translated:  # noqa: N801  # reads as a verb at its only two places
    """Turn the driver's errors into ours; a clash of transactions into a wish to try again."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DBAPIError):
            if getattr(error.orig, "sqlstate", None) in {"40001", "40P01"}:
                raise _AgainError from error
            if isinstance(error, OperationalError) or _is_disk_full(error):
                raise _plain(error) from error


def _is_disk_full(error: BaseException) -> bool:
    """Whether a database, ours or PostgreSQL, has found no room."""
    orig = error.orig if isinstance(error, DBAPIError) else error
    return getattr(orig, "sqlite_errorname", "") in NO_ROOM_NAMES or getattr(orig, "sqlstate", "") == "53100"


def _plain(error: Exception) -> Exception:
    if _is_disk_full(error):
        return disk_full("The database's disk is full.")
    if isinstance(error, OperationalError):
        return UnreachableError(
            f"The database does not answer: {str(error.orig).strip().splitlines()[0]}.",
            hint="See that it runs and that its disk is not full.",
        )
    return error


def _guarded(work: Work[T], connection: Connection) -> T:
    token = inside_transaction.set(True)
    try:
        return work(connection)
    finally:
        inside_transaction.reset(token)


def _say(connection: Connection, statement: str) -> None:
    """Tell SQLite something about transactions, past SQLAlchemy: it would make a result of it that nobody reads."""
    raw: Any = connection.connection.driver_connection
    try:
        raw.execute(statement)
    except sqlite3.OperationalError as error:
        raise OperationalError(statement, None, error) from error


def _to_json(value: object) -> str:
    # NB: letters as they are: SQLite finds a key of any script only where it is not escaped.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _sqlite(url: str) -> Engine:
    # Not parsed: a folder may have a ? or a # in its name.
    path = url.partition(":///")[2]
    address = URL.create("sqlite", database=path)
    if path and path != ":memory:":
        with contextlib.suppress(OSError):  # who cannot write there is told so when it is opened
            # For us alone, and so are the files that SQLite puts beside it, whatever the folder lets others see.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    engine = create_engine(
        address, connect_args={"timeout": 30, "check_same_thread": False}, json_serializer=_to_json
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",  # what was acknowledged survives a power cut; commits are shared, so it costs little
            "foreign_keys=ON",
            "busy_timeout=30000",
            "cache_size=-16000",
            "temp_store=MEMORY",  # else a full /tmp would refuse what the database has room for
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writing = threading.current_thread().name == "db-write"
        _say(connection, "BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _log_size(url: str) -> int:
    """How large the file is that SQLite writes first."""
    try:
        return os.stat(url.partition(":///")[2] + "-wal").st_size  # noqa: PTH116  # beside the text of an address
    except OSError:
        return WAL_BYTES  # there is none to be made larger


def _extend_log(url: str) -> None:
    """Take room for that file. In a transaction: nobody else writes to it meanwhile. SQLite knows how far it is valid."""
    handle = os.open(url.partition(":///")[2] + "-wal", os.O_WRONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(handle).st_size
        if size < WAL_BYTES:
            with telling_no_room("the database's reserve"):
                os.posix_fallocate(handle, size, WAL_BYTES - size)
    finally:
        os.close(handle)


def _postgres(url: str) -> Engine:
    if url.startswith("postgres://"):
        url = "postgresql" + url.removeprefix("postgres")
    if url.startswith("postgresql://"):
        url = "postgresql+psycopg" + url.removeprefix("postgresql")
    return create_engine(
        url, pool_size=2 * READERS, max_overflow=4, pool_pre_ping=True, json_serializer=_to_json
    )


__all__ = ["Database", "Work", "inside_transaction"]
