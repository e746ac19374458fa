"""Every column with secrets in it: what an older version has left open is sealed, and all is sealed anew for another key.

Both go through the tables in small transactions, beside servers that run, and can be broken off and begun again at any
time: what is done already is passed over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Column, Connection, Table, select, update

from trainyard.lib.files import lock
from trainyard.lib.log import change_secrets
from trainyard.lib.secret_names import SEALED
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store import settings as stored
from trainyard.server.store import tables
from trainyard.server.store.database import Database

DONE = "sealed_columns"  # of the settings in the database: up to which version of this list all is sealed
VERSION = 1
SETTLE_SECONDS = 3.0  # in which what a server is sealing with the old key this moment is written
ROWS = 200  # of one transaction: servers write in between
_NONCE = 12

Change = Callable[[str, str], str]  # text, owner → text


@dataclass(frozen=True, slots=True)
class _Texts:
    """A JSON column with secrets among its texts, and the column that says whose they are."""

    column: Column[Any]
    owner: Column[Any]
    is_spec: bool  # only variables are secrets there; else whatever is named like one


_TEXTS = (
    _Texts(tables.workloads.c.spec, tables.workloads.c.user_id, is_spec=True),
    _Texts(tables.workloads.c.dlc, tables.workloads.c.user_id, is_spec=False),
    _Texts(tables.schedules.c.spec, tables.schedules.c.user_id, is_spec=True),
    _Texts(tables.templates.c.body, tables.templates.c.user_id, is_spec=True),
)
# Sealed as a whole; the owner is the row's id.
_WHOLES = (
    tables.tokens.c.sealed,
    tables.registries.c.sealed,
    tables.code_sources.c.sealed,
    tables.secrets.c.sealed,
)


def ensure_sealed(db: Database, seal: Seal) -> int:
    """Seal what an older version has stored openly; returns how many rows had such. Once: later starts find it done."""
    if db.read_now(lambda c: stored.find(c, DONE)) == VERSION:
        return 0
    old = seal.derive("launches")

    def close(text: str, owner: str) -> str:
        return text if seal.try_open_text(text, owner) is not None else seal.close_text(text, owner)

    def adopt(sealed: bytes, owner: str) -> bytes:
        """Tokens of code sources were sealed with a key of their own."""
        if seal.try_open(sealed, owner) is not None:
            return sealed
        try:
            return seal.close_up(AESGCM(old).decrypt(sealed[:_NONCE], sealed[_NONCE:], owner.encode()), owner)
        except InvalidTag:
            return sealed  # with a key that is gone; whoever uses it is told

    changed = sum(_walk_texts(db, one, close) for one in _TEXTS)
    _walk_wholes(db, tables.code_sources.c.sealed, adopt)
    if changed:
        _wipe(db)
    db.write_now(lambda c: stored.save(c, DONE, VERSION))
    return changed


def rotate(db: Database, seal: Seal, *, settle_seconds: float = SETTLE_SECONDS) -> int:
    """Give the platform a new key, while servers run; returns how many rows were sealed anew. The old key opens nothing then.

    Broken off, it leaves both keys, and what is sealed with either is opened; begun again, it goes on.
    """
    with lock(seal.path.with_name(f"{seal.path.name}.lock")):
        seal.begin_rotation()
        time.sleep(settle_seconds)
        total = reseal(db, seal)
        while more := reseal(db, seal):  # what was written meanwhile
            total += more
        seal.end_rotation()
    return total


def reseal(db: Database, seal: Seal) -> int:
    """Seal everything anew that can be opened; returns how many rows were written. What the newest key opens stays."""

    def again(text: str, owner: str) -> str:
        if not text.startswith(SEALED) or seal.is_newest_text(text, owner):
            return text
        found = seal.try_open_text(text, owner)
        return text if found is None else seal.close_text(found, owner)

    def whole(sealed: bytes, owner: str) -> bytes:
        if seal.is_newest(sealed, owner):
            return sealed
        found = seal.try_open(sealed, owner)
        return sealed if found is None else seal.close_up(found, owner)

    changed = sum(_walk_texts(db, one, again) for one in _TEXTS)
    return changed + sum(_walk_wholes(db, one, whole) for one in _WHOLES)


def _walk_texts(db: Database, place: _Texts, change: Change) -> int:
    def row(value: Any, owner: str) -> Any:
        data = json.loads(value) if isinstance(value, str) else value
        if not isinstance(data, Mapping):
            return value
        changed = _changed_spec(data, change, owner) if place.is_spec else _changed_data(data, change, owner)
        return value if changed == data else changed

    return _walk(db, place.column, place.owner, row)


def _walk_wholes(db: Database, column: Column[Any], change: Callable[[bytes, str], bytes]) -> int:
    return _walk(db, column, _key(column), lambda value, owner: change(bytes(value), owner))


def _walk(db: Database, column: Column[Any], owner: Column[Any], change: Callable[[Any, str], Any]) -> int:
    """Change a column row by row, in the order of ids; a row that somebody writes meanwhile is locked for us first."""
    after, total = "", 0
    while True:

        def work(connection: Connection, begin: str = after) -> tuple[str, int]:
            return _some(connection, column, owner, change, begin)

        after, changed = db.write_now(work)
        total += changed
        if not after:
            return total


def _some(
    connection: Connection,
    column: Column[Any],
    owner: Column[Any],
    change: Callable[[Any, str], Any],
    after: str,
) -> tuple[str, int]:
    key = _key(column)
    query = select(key, owner.label("owner"), column.label("value")).where(key > after, column.is_not(None))
    rows = connection.execute(query.order_by(key).limit(ROWS).with_for_update()).all()
    changed = 0
    for row_id, who, value in rows:
        fresh = change(value, who)
        if fresh is not value and fresh != value:
            connection.execute(update(_table(column)).where(key == row_id).values({column.name: fresh}))
            changed += 1
    return (str(rows[-1][0]) if len(rows) == ROWS else ""), changed


def _changed_spec(data: Mapping[str, Any], change: Change, owner: str) -> dict[str, Any]:
    """A stored job with its variables changed."""
    found = dict(data)
    if "env" in data:
        found["env"] = _changed_data(data["env"], change, owner)
    if "roles" in data:
        found["roles"] = [
            {**role, "env": _changed_data(role["env"], change, owner)} if "env" in role else role
            for role in data["roles"]
        ]
    return found


def _changed_data(data: Mapping[str, Any], change: Change, owner: str) -> dict[str, Any]:
    return change_secrets(data, lambda text: change(text, owner))


def _wipe(db: Database) -> None:
    """Let SQLite write its file anew: what was open would stay in pages that nobody uses."""
    if not db.is_sqlite:
        return
    raw = db.engine.raw_connection()
    try:
        driver: Any = raw.driver_connection
        driver.execute("VACUUM")
        driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        raw.close()


def _key(column: Column[Any]) -> Column[Any]:
    found: Column[Any] = _table(column).c.id
    return found


def _table(column: Column[Any]) -> Table:
    return column.table
