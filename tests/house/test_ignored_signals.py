"""Tests run wherever they are started: in the background, under nohup, by a runner that ignores Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def ignored_by_programs() -> set[int]:
    """What a program that a test starts ignores."""
    status = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return {number for number in range(1, signal.NSIG) if int(mask, 16) >> (number - 1) & 1}


def test_programs_of_tests_hear_the_signals_that_people_send():
    assert ignored_by_programs().isdisjoint(IGNORED)


@pytest.mark.slow  # pytest starts in a process of its own, twice
@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=["in one process", "in a worker"])
def test_programs_of_tests_hear_them_when_the_parent_of_pytest_ignores_them(options):
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    test = f"{__file__}::{test_programs_of_tests_hear_the_signals_that_people_send.__name__}"
    done = subprocess.run(
        ["sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "-", *words, test], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
