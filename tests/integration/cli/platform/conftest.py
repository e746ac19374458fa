"""A real platform (`trainyard up`) for the tests of this folder, and the program that talks to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from platforms import Up, platform

BIN = Path(sys.executable).parent


class Program:
    """`trainyard`, logged in by the environment."""

    def __init__(self, up: Up) -> None:
        self.up = up

    @property
    def env(self) -> dict[str, str]:
        return {"TRAINYARD_SERVER": self.up.url, "TRAINYARD_TOKEN": self.up.token}

    def __call__(
        self, *words: str, stdin: str | None = None, logged_in: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "trainyard"), *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, **(self.env if logged_in else {}), **env},
        )

    def json(self, *words: str) -> object:
        done = self(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with platform(tmp_path_factory.mktemp("platform")) as running:
        yield running


@pytest.fixture
def program(up: Up) -> Program:
    return Program(up)
