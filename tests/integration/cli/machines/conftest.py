"""A yard of one's own: local machines that end with the test, the program as a subprocess, golden screens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from terminal import BIN, Terminal

import screens


class Lab:
    """The program under its three names, and the machines that a test makes with it."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(
        self, *words: str, program: str = "trainyard", stdin: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it without a terminal."""
        return subprocess.run(
            [str(BIN / program), *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, **env},
        )

    def json(self, *words: str) -> object:
        """What it says with --json; it must succeed."""
        done = self(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def create(self, name: str, machines: int = 1, *words: str) -> None:
        """Make a job."""
        done = self("create", "--name", name, "-np", str(machines), *words)
        assert done.returncode == 0, done.stderr

    def names(self) -> list[str]:
        """All machines."""
        return [machine["name"] for machine in self.json("ls", "--stop")]  # type: ignore[attr-defined]  # a list

    def pin(self, name: str, *, address: str, hours: float = 0.0, owner: str = "ada@laptop") -> None:
        """Make what `ls` shows of a machine the same in every run. Only for looking at."""
        path = self.home / ".trainyard" / "local" / name / "machine.json"
        record = json.loads(path.read_text())
        record |= {"address": address, "owner": owner}
        record["created"] = (datetime.now(UTC) - timedelta(hours=hours)).isoformat()
        path.write_text(json.dumps(record))


@pytest.fixture
def lab(isolation: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The program, and no machine left when the test ends."""
    monkeypatch.setenv("TRAINYARD_STOP_GRACE", "0.3")
    monkeypatch.setenv("USER", "ada")
    lab = Lab(isolation)
    yield lab
    names = [path.name for path in (isolation / ".trainyard" / "local").glob("[!.]*")]
    if names:
        done = lab("kill", "--force", "--backend", "local", *names)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def terminals() -> Iterator[Callable[..., Terminal]]:
    """A factory of terminals; all are closed with the test."""
    opened: list[Terminal] = []

    def make(*words: str, **options: object) -> Terminal:
        opened.append(Terminal(*words, **options))  # type: ignore[arg-type]  # passed through
        return opened[-1]

    yield make
    for terminal in opened:
        terminal.child.close(force=True)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a screen with the committed one."""
    return lambda name, text: screens.check(request.config, name, text)
