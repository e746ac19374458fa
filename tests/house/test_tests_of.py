"""`scripts/tests-of`: the tests that a change touches, in a small project of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tree import ROOT

MODULES = {
    "lib/units.py": "",
    "lib/clock.py": "from trainyard.lib import units\n",
    "lib/wait.sh": "sleep 1\n",
    "cli/main.py": "def main():\n    from trainyard.cli.terminal.interrupts import two_stage\n",
    "cli/machines/run.py": "from ..terminal import interrupts\n",
    "cli/terminal/interrupts.py": "",
    "server/jobs/ended/cost.py": "",
    "alone/unused.py": "",
}
TESTS = {
    "unit/lib/test_clock.py": "",
    "unit/cli/test_help.py": "",
    "integration/cli/machines/test_run.py": "",
    "integration/server/jobs/test_jobs.py": "",
    "integration/server/test_up.py": "import lab\n",
    "integration/server/conftest.py": "import people\n",
    "contract/test_units.py": "from trainyard.lib.units import size\n",
    "house/test_docs.py": 'PAGES = ROOT / "docs"\nSCRIPT = ROOT / "scripts" / "make-demo"\n',
    "lab.py": "import trainyard.lib.clock\n",
    "people.py": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder, files in {"src/trainyard": MODULES, "tests": TESTS, "docs": {"a.md": ""}}.items():
        for name, text in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for folder in [tmp_path / "src/trainyard", *(tmp_path / "src/trainyard").iterdir()]:
        (folder / "__init__.py").touch()
    script = tmp_path / "scripts" / "tests-of"
    script.parent.mkdir()
    script.write_text((ROOT / "scripts" / "tests-of").read_text())
    (script.parent / "make-demo").touch()
    (tmp_path / "LICENSE").touch()
    return tmp_path


def ask(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/tests-of", *words], cwd=project, capture_output=True, text=True
    )


def named(project: Path, *words: str) -> set[str]:
    done = ask(project, *words)
    assert done.returncode == 0, done.stderr
    return {line.removeprefix("tests/") for line in done.stdout.splitlines()}


MIRROR = "unit/lib/test_clock.py"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("src/trainyard/lib/units.py", {MIRROR, "contract/test_units.py"}, id="imported"),
        pytest.param(
            "src/trainyard/lib/clock.py", {MIRROR, "integration/server/test_up.py"}, id="by a helper"
        ),
        pytest.param(
            "src/trainyard/lib/wait.sh",
            {MIRROR, "contract/test_units.py", "integration/server/test_up.py"},
            id="a script beside modules",
        ),
        pytest.param(
            "src/trainyard/cli/terminal/interrupts.py",
            {"unit/cli/test_help.py", "integration/cli/machines/test_run.py"},
            id="no folder of tests mirrors it",
        ),
        pytest.param(
            "src/trainyard/server/jobs/ended", {"integration/server/jobs/test_jobs.py"}, id="a folder"
        ),
        pytest.param("tests/unit/lib/test_clock.py", {MIRROR}, id="a test"),
        pytest.param("tests/lab.py", {"integration/server/test_up.py"}, id="a helper of tests"),
        pytest.param(
            "tests/people.py",
            {"integration/server/test_up.py", "integration/server/jobs/test_jobs.py"},
            id="a helper of a conftest",
        ),
        pytest.param("docs/a.md", {"house/test_docs.py"}, id="a page"),
        pytest.param("scripts/make-demo", {"house/test_docs.py"}, id="a file that a test names"),
    ],
)
def test_the_tests_that_a_change_touches_are_named(project, path, expected):
    assert named(project, path) == expected


def test_tests_of_importers_are_named_when_they_are_asked_for(project):
    assert "integration/server/test_up.py" in named(project, "--wide", "src/trainyard/lib/units.py")


def test_several_paths_are_taken_together(project):
    both = named(project, "src/trainyard/lib/units.py", "tests/lab.py")
    assert both == {MIRROR, "contract/test_units.py", "integration/server/test_up.py"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "error: no path was given\nhint: "),
        (["src/absent.py"], "/src/absent.py in this project\nhint: "),
        (["/"], "error: there is no / in this project"),
        (["LICENSE"], "error: no test has to do with LICENSE\nhint: `make test`"),
        (["src/trainyard/alone/unused.py"], "error: no test has to do with src/trainyard/alone/unused.py"),
    ],
)
def test_nothing_is_named_and_the_reason_is_told_when_there_is_nothing_to_run(project, words, said):
    done = ask(project, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_make_gives_the_path_to_the_tests_and_leaves_programs_where_they_are():
    """What people type as PATH is what the shell looks for programs in: make must not mix them up."""
    words = ["make", "--no-print-directory", "-n", "test-of", "PATH=src/trainyard/lib/units.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "scripts/tests-of src/trainyard/lib/units.py" in done.stdout
