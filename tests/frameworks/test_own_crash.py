"""What counts as a crash of a framework's own, after its work is done."""

from __future__ import annotations

import subprocess
import sys

import pytest
from framework_lab import PROGRAMS


def run(command: str) -> tuple[int, str]:
    done = subprocess.run(
        ["sh", str(PROGRAMS / "own_crash.sh"), "sh", "-c", command], capture_output=True, text=True
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(("signal", "status"), [("ABRT", 134), ("SEGV", 139)])
def test_a_crash_is_the_programs_own_when_its_work_was_done(signal, status):
    said = f"the program had done its work when it crashed by itself with status {status}\n"
    assert run(f"touch $DONE; kill -{signal} $$") == (0, said)


@pytest.mark.parametrize(("signal", "status"), [("ABRT", 134), ("SEGV", 139)])
def test_a_crash_is_a_failure_when_its_work_was_not_done(signal, status):
    assert run(f"kill -{signal} $$") == (status, "")


def test_a_failure_stays_one_when_its_work_was_done_and_it_says_so():
    assert run("touch $DONE; exit 3") == (3, "")


def test_nothing_is_said_when_all_is_well():
    assert run("touch $DONE") == (0, "")
    assert run("true") == (0, "")


def test_no_file_is_left(tmp_path, monkeypatch):
    folder = tmp_path / "its own"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    assert run('touch "$DONE"')[0] == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("ending", "crashes_at_exit", "status"),
    [
        ("pass", False, 0),
        ("pass", True, 0),
        ("sys.exit(0)", True, 0),
        ("sys.exit(3)", False, 3),
        ("os.abort()", False, 134),
        ("raise RuntimeError", False, 1),
        ("raise RuntimeError", True, 134),
    ],
)
def test_a_program_says_by_itself_whether_its_work_was_done(ending, crashes_at_exit, status):
    """Its library aborts when the interpreter goes, as MindSpore does on a busy machine."""
    library = "import atexit, os, sys; " + ("atexit.register(os.abort); " if crashes_at_exit else "")
    program = f"{library}sys.path.insert(0, {str(PROGRAMS)!r}); import work_done; {ending}"
    words = ["sh", str(PROGRAMS / "own_crash.sh"), sys.executable, "-c", program]
    assert subprocess.run(words, capture_output=True).returncode == status
