"""A private PostgreSQL for tests: its own folder, a Unix socket's worth of trust, a free port on loopback, no durability.

PostgreSQL refuses to run as root: then it runs as the account `postgres` of Debian's package, or as nobody.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

BIN_DIRS = "/usr/lib/postgresql"
START_SECONDS = 60.0


@dataclass
class Postgres:
    """One running server; `database()` makes a fresh database in it."""

    folder: Path
    port: int
    password: str
    env: Mapping[str, str] = field(default_factory=dict)  # above what it gets anyway
    process: subprocess.Popen[bytes] | None = None
    _shared: str = ""

    def url(self, name: str = "postgres") -> str:
        """How a client reaches one of its databases."""
        return f"postgresql://trainyard:{self.password}@127.0.0.1:{self.port}/{name}"

    def database(self) -> str:
        """Make an empty database; returns its URL."""
        import psycopg

        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def emptied(self) -> str:
        """One database that is used again and again, without tables: making and dropping one takes a second."""
        import psycopg

        if not self._shared:
            self._shared = self.database()
        with psycopg.connect(self._shared, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return self._shared

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [
                str(binary("postgres")), "-D", str(self.folder / "data"), "-p", str(self.port),
                "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}",
                "-c", "fsync=off", "-c", "max_connections=200", "-c", "shared_buffers=32MB",
            ],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, start_new_session=True,
            env={"PATH": os.defpath, "HOME": str(self.folder), "LC_ALL": "C", **self.env}, **_account(),
        )  # fmt: skip
        log.close()
        self._wait()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it; SIGINT cuts everybody off in good order, SIGQUIT is a crash."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(how)
            self.process.wait(START_SECONDS)
            self.process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it and start it again on the same port, with the same data."""
        self.stop(how)
        self.start()

    def _wait(self) -> None:
        import psycopg

        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
            except psycopg.OperationalError:
                ended = self.process is None or self.process.poll() is not None
                if ended or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text(errors="replace")) from None
                time.sleep(0.02)
            else:
                return


def binary(name: str) -> Path:
    """A program of PostgreSQL: from the newest of Debian's folders, or from PATH."""
    folders = sorted(Path(BIN_DIRS).glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    found = shutil.which(name)
    if found is None:
        pytest.skip("PostgreSQL is not installed: `make test` says which packages the tests need")
    return Path(found)


def _account() -> dict[str, object]:
    """Whom to run it as: ourselves, or a harmless account where we are root."""
    if os.geteuid() != 0:
        return {}
    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(env: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """A server for as long as the block lasts; nothing is left of it."""
    # Not under the test's own folder: a socket's path may have 107 bytes, and the account must be able to reach it.
    folder = Path(tempfile.mkdtemp(prefix="ty-pg-", dir="/tmp"))
    try:
        account = _account()
        if account:
            os.chown(folder, int(str(account["user"])), int(str(account["group"])))
        password = secrets.token_hex(16)
        secret = folder / "password"
        secret.write_text(password)
        if account:
            os.chown(secret, int(str(account["user"])), int(str(account["group"])))
        made = subprocess.run(
            [
                str(binary("initdb")), "-D", str(folder / "data"), "-U", "trainyard", "-A", "scram-sha-256",
                f"--pwfile={secret}", "-E", "UTF8", "--locale=C", "--no-sync",
            ],
            capture_output=True, check=False, cwd=folder, env={"PATH": os.defpath, "HOME": str(folder)}, **account,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(made.stderr.decode(errors="replace"))
        server = Postgres(folder, _free_port(), password, dict(env or {}))
        server.start()
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)  # its files go anyway: no need to write them out in good order
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the whole run; tests take databases of their own from it."""
    with running() as server:
        yield server
