"""The database from the outside: pieces commit alone, and no transaction reaches for the network."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import subprocess
import sys
import threading

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from trainyard.lib.errors import UnreachableError
from trainyard.server.store.database import Database


@pytest.fixture
def db(tmp_path):
    found = Database(f"sqlite:///{tmp_path / 'a ?#b'}")
    found.write_now(lambda c: c.execute(text("CREATE TABLE notes (word TEXT UNIQUE)")))
    yield found
    found.close()


def add(word: str):
    return lambda c: c.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})


def words(db: Database) -> list[str]:
    return db.read_now(lambda c: list(c.execute(text("SELECT word FROM notes ORDER BY word")).scalars()))


def fail(c):
    add("lost")(c)
    raise ValueError("mine")


async def test_a_failed_piece_takes_no_other_with_it_when_they_commit_together(db):
    go_on = threading.Event()
    first = asyncio.ensure_future(db.write(lambda _c: go_on.wait(10)))  # the others gather behind it
    await asyncio.sleep(0)
    pieces = [db.write(add(str(number))) for number in range(20)]
    pieces[10:10] = [db.write(fail), db.write(add("3"))]
    others = asyncio.gather(*pieces, return_exceptions=True)
    await asyncio.sleep(0)
    go_on.set()
    assert await first
    answers = await others
    assert [type(one) for one in answers if isinstance(one, Exception)] == [ValueError, IntegrityError]
    assert words(db) == sorted(str(number) for number in range(20))


def test_nothing_of_a_failed_piece_is_kept_when_it_comes_alone(db):
    with pytest.raises(ValueError, match="mine"):
        db.write_now(fail)
    db.write_now(add("kept"))
    assert words(db) == ["kept"]


def test_a_database_that_others_hold_is_said_to_be_out_of_reach(db, tmp_path):
    db.write_now(lambda c: c.execute(text("PRAGMA busy_timeout=0")))
    other = sqlite3.connect(tmp_path / "a ?#b", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnreachableError, match="database is locked"):
        db.write_now(add("never"))
    other.execute("ROLLBACK")
    other.close()
    db.write_now(add("later"))
    assert words(db) == ["later"]


@pytest.mark.parametrize(
    "reach",
    [
        lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        lambda: subprocess.run([sys.executable, "-c", ""], check=False),
        lambda: socket.getaddrinfo("localhost", 80),
    ],
)
def test_the_network_is_refused_when_a_transaction_is_open(db, reach):
    def work(c):
        add("never")(c)
        reach()

    for run in (db.write_now, db.read_now):
        with pytest.raises(RuntimeError, match="inside a database transaction"):
            run(work)
    assert words(db) == []
    subprocess.run([sys.executable, "-c", ""], check=True)  # outside it is nobody's business
