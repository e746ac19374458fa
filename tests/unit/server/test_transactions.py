"""The database from the outside: pieces commit alone, and no transaction reaches for the network."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from sqlalchemy import text

from trainyard.server.db import Database


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


async def test_a_failed_piece_takes_no_other_with_it_when_they_commit_together(db):
    import asyncio

    def fail(c):
        add("lost")(c)
        raise ValueError("mine")

    pieces = [db.write(add(str(number))) for number in range(20)] + [db.write(fail)]
    answers = await asyncio.gather(*pieces, return_exceptions=True)
    assert [type(one) for one in answers if isinstance(one, Exception)] == [ValueError]
    assert words(db) == sorted(str(number) for number in range(20))


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
