"""`trainyard admin` on a platform's folder, as its own process's main would be called."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from trainyard.cli.main import main
from trainyard.lib.clock import SystemClock
from trainyard.server.auth.passwords import Passwords
from trainyard.server.people.first_start import ensure_admin
from trainyard.server.records.users import UserRecord
from trainyard.server.store import audit, leases, upgrade
from trainyard.server.store.database import Database
from trainyard.server.store.migrations import HEAD
from trainyard.server.store.people import tokens, users


@pytest.fixture
def platform(tmp_path: Path, hostile_path: Path) -> Path:
    database = Database(f"sqlite:///{hostile_path / 'platform.db'}")
    upgrade.ensure(database)
    ensure_admin(database, SystemClock())
    database.close()
    return hostile_path


def look(platform: Path, work):
    database = Database(f"sqlite:///{platform / 'platform.db'}")
    try:
        return database.read_now(work)
    finally:
        database.close()


def answer(capsys, *words: str) -> object:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


async def matches(stored: str, password: str) -> bool:
    passwords = Passwords()
    try:
        return await passwords.verify(stored, password)
    finally:
        passwords.close()


def test_the_last_administrator_gets_in_again_when_the_password_is_reset(platform, capsys):
    import asyncio

    made = answer(capsys, "admin", "users", "reset-password", "admin", "--data", str(platform))
    stored = look(platform, lambda c: users.find_by_name(c, "admin"))
    assert asyncio.run(matches(stored.password_hash, made["password"]))
    assert stored.must_change_password
    entry = look(platform, audit.page)[0]
    assert (entry.actor, entry.action, entry.subject) == ("operator", "users.reset_password", "admin")


def test_accounts_are_made_listed_and_closed(platform, capsys, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    made = answer(
        capsys, "admin", "users", "add", "ann", "--admin", "--email", "a@example.org", "--password-stdin",
        "--data", str(platform),
    )  # fmt: skip
    assert (made["name"], made["is_admin"], made["password"]) == ("ann", True, "")
    answer(capsys, "admin", "users", "change", "ann", "--close", "--data", str(platform))
    rows = answer(capsys, "admin", "users", "ls", "--data", str(platform))
    assert [(row["name"], row["is_active"]) for row in rows] == [("admin", True), ("ann", False)]
    assert main(["admin", "users", "ls", "--data", str(platform)]) == 0
    assert "closed" in capsys.readouterr().out
    assert main(["admin", "users", "change", "admin", "--no-admin", "--data", str(platform)]) == 4
    assert "without an administrator" in capsys.readouterr().err


def test_a_token_is_shown_once_and_revoked(platform, capsys):
    made = answer(
        capsys,
        "admin",
        "tokens",
        "add",
        "admin",
        "--scope",
        "jobs:read",
        "--expires",
        "1h",
        "--data",
        str(platform),
    )
    assert made["token"].startswith("ty_")
    rows = answer(capsys, "admin", "tokens", "ls", "admin", "--data", str(platform))
    assert [row["scopes"] for row in rows if row["id"] == made["id"]] == [["jobs:read"]]
    assert main(["admin", "tokens", "revoke", made["id"], "--data", str(platform)]) == 0
    assert look(platform, lambda c: tokens.load(c, made["id"])).revoked_at is not None


def test_nothing_is_made_when_there_is_no_platform(tmp_path, capsys):
    for words in (["users", "ls"], ["backup", str(tmp_path / "b")], ["migrate"]):
        assert main(["admin", *words, "--data", str(tmp_path / "none")]) == 3
        assert "There is no" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_backup_brings_everything_back_when_it_is_restored(platform, tmp_path, capsys):
    file = tmp_path / "copy of $(x).db"
    database = Database(f"sqlite:///{platform / 'platform.db'}")  # as if a server ran
    first = database.write_now(lambda c: leases.take(c, "leader", owner="a", seconds=1))
    assert main(["admin", "backup", str(file), "--data", str(platform)]) == 0
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert main(["admin", "backup", str(file), "--data", str(platform)]) == 4
    assert main(["admin", "backup", str(file), "--force", "--data", str(platform)]) == 0
    database.write_now(lambda c: users.insert_user(c, UserRecord(id="u-late", name="late", created_at=1.0)))
    for _ in range(3):
        last = database.write_now(lambda c: leases.take(c, "leader", owner="a", seconds=1))
    database.close()
    assert main(["admin", "restore", str(file), "--data", str(platform)]) == 0
    assert look(platform, lambda c: users.find_by_name(c, "late")) is None
    assert look(platform, lambda c: users.find_by_name(c, "admin")) is not None
    assert look(platform, lambda c: leases.find(c, "leader")).epoch > last.epoch > first.epoch
    kept = platform / "platform.db.before-restore"
    with sqlite3.connect(kept) as old:
        assert old.execute("SELECT count(*) FROM users WHERE name = 'late'").fetchone() == (1,)
    old.close()
    assert [path.name for path in platform.iterdir() if path.name.startswith(".platform")] == []


def test_a_backup_is_whole_when_it_is_taken_in_the_middle_of_writes(platform, tmp_path):
    database = Database(f"sqlite:///{platform / 'platform.db'}")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            record = UserRecord(id=f"u{number}", name=f"n{number}", created_at=1.0)
            database.write_now(lambda c, record=record: users.insert_user(c, record))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        codes = [
            main(["admin", "backup", str(tmp_path / f"b{n}"), "--data", str(platform)]) for n in range(5)
        ]
    finally:
        stop.set()
        writer.join()
        database.close()
    assert codes == [0] * 5
    for number in range(5):
        copy = sqlite3.connect(tmp_path / f"b{number}")
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        copy.close()


def test_a_restore_is_refused_when_a_server_runs_or_the_file_is_another(platform, tmp_path, capsys):
    import fcntl

    good, bad, empty = tmp_path / "good", tmp_path / "bad", tmp_path / "empty.db"
    assert main(["admin", "backup", str(good), "--data", str(platform)]) == 0
    bad.write_bytes(b"no database" * 1000)
    sqlite3.connect(empty).close()
    empty.touch()
    for file, code in ((bad, 2), (empty, 2), (tmp_path / "none", 3)):
        assert main(["admin", "restore", str(file), "--data", str(platform)]) == code
    with (platform / "server.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["admin", "restore", str(good), "--data", str(platform)]) == 4
    assert "A server runs" in capsys.readouterr().err
    assert look(platform, users.count) == 1


def test_the_way_is_told_when_the_database_is_postgresql(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRAINYARD_SERVER_DATABASE", "postgresql://nobody:hush@127.0.0.1:1/x")
    assert main(["admin", "backup", str(tmp_path / "x"), "--data", str(tmp_path)]) == 6
    said = capsys.readouterr().err
    assert "pg_dump" in said
    assert "hush" not in said


def test_migrating_says_where_the_database_is(platform, capsys):
    assert answer(capsys, "admin", "migrate", "--data", str(platform)) == {"before": HEAD, "now": HEAD}
