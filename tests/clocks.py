"""Clocks that a test sets, forth and back, under real processes: stepped_clock.c, built when it is first needed.

    clock = clocks.make()                        (a fixture) and start processes with `**clock.env` in their environment
    clock.set(7200)                              from now on their time of day is two hours ahead; other clocks go on as ever

Where there is no C compiler, `env` is empty and nothing steps.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("stepped_clock.c")


class Clock:
    """One machine's time of day."""

    def __init__(self, path: Path, library: Path | None) -> None:
        self._path = path
        path.write_bytes(bytes(8))
        path.chmod(0o644)
        # What a process needs in its environment to live by it.
        self.env = {"LD_PRELOAD": str(library), "STEPPED_CLOCK_FILE": str(path)} if library else {}

    def set(self, seconds: float) -> None:
        """So far ahead of the real time it is from now on; less than 0: behind."""
        with self._path.open("r+b") as file:
            file.write(struct.pack("=q", round(seconds * 10**9)))


class Clocks:
    """The clocks of one run of tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        compiler = shutil.which("cc") or shutil.which("gcc")
        self._library = _build(compiler, folder / "stepped_clock.so") if compiler else None

    def make(self) -> Clock:
        """A clock that agrees with the real one until it is set."""
        self._made += 1
        return Clock(self._folder / f"clock-{self._made}", self._library)


def _build(compiler: str, target: Path) -> Path:
    words = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-nostdlib",
        "-Wall",
        "-Werror",
        "-o",
        str(target),
        str(SOURCE),
    ]
    subprocess.run(words, check=True, capture_output=True)
    target.chmod(0o755)
    return target


@pytest.fixture(scope="session")
def clocks() -> Iterator[Clocks]:
    """Not below the test's own folder: PostgreSQL runs as another account, which must be able to read them."""
    folder = Path(tempfile.mkdtemp(prefix="ty-clock-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield Clocks(folder)
    finally:
        shutil.rmtree(folder)
