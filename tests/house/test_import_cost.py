"""What starting costs, in instructions: the same number in every run on the same Python, so a limit may be tight.

Counted by callgrind above `python -c pass` in the same environment. The demand is `import trainyard` <= 60 M and
`trainyard --help` <= 250 M; the limits below are nearer to what it is, so that a step backwards is seen at once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

IMPORT_LIMIT = 30_000_000  # measured 15 M
HELP_LIMIT = 250_000_000  # measured 200 M, of which click is 131 M

pytestmark = [
    pytest.mark.slow,  # callgrind runs a program fifty times slower
    pytest.mark.skipif(
        not shutil.which("valgrind"), reason="valgrind is not installed (apt-get install valgrind)"
    ),
]

BIN = Path(sys.executable).parent


def instructions(*words: str) -> int:
    """Run Python under callgrind and count. The first run of a program also writes its .pyc files, so it runs twice."""
    environ = {**os.environ, "PYTHONHASHSEED": "0", "COLUMNS": "80"}
    subprocess.run([sys.executable, *words], env=environ, capture_output=True, check=True)
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, *words],
        env=environ,
        capture_output=True,
        text=True,
    )
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if found is None:
        pytest.skip(f"callgrind does not count here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return int(found.group(1).replace(",", ""))


@pytest.fixture(scope="module")
def bare() -> int:
    return instructions("-c", "pass")


def test_importing_is_cheap(bare):
    assert instructions("-c", "import trainyard") - bare <= IMPORT_LIMIT


def test_help_is_cheap(bare):
    assert instructions(str(BIN / "trainyard"), "--help") - bare <= HELP_LIMIT
