"""How soon one can begin: instructions of `import trainyard` and `trainyard --help`, seconds of `--help` and `ls`.

Instructions are counted by valgrind's callgrind: the same in every run, whatever else the machine does. What bare Python
needs is taken off, once for `python -c pass` and once for a console script that does nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import place
from benchmarks.measure import Row, medians, take_turns, timed

MILLION = 1_000_000
IMPORT_LIMIT = 60.0
HELP_LIMIT = 250.0
LS_LIMIT = 0.2
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))


def measure(*, quick: bool = False) -> list[Row]:
    """Rows for instructions, and for seconds side by side with torchx."""
    with place.own_home() as folder:
        return [*_instructions(), *_seconds(folder, rounds=3 if quick else 11, with_rival=not quick)]


def _instructions() -> list[Row]:
    if not shutil.which("valgrind"):
        return [Row("import trainyard", 0, "limit", None, unit="M", note="valgrind is not installed")]
    pairs = [
        ("import trainyard", [sys.executable, "-c", "import trainyard"], IMPORT_LIMIT),
        ("trainyard --help", [sys.executable, TRAINYARD, "--help"], HELP_LIMIT),
        ("trainyard ls, local", [sys.executable, TRAINYARD, "ls"], None),
    ]
    bare = _count([sys.executable, "-c", "pass"])
    return [
        Row(
            f"{case}, above Python",
            _count(words) - bare,
            "limit" if limit else "",
            limit,
            unit="M",
            bar=1 if limit else None,
            note="" if limit else "millions of instructions",
        )
        for case, words, limit in pairs
    ]


def _count(words: list[str]) -> float:
    """Millions of instructions, in all processes of the command; the second run, when files are compiled."""
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    # Hash seeds change the order of sets and so the count, a little.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run(
        [*valgrind, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, text=True
    )
    return sum(int(number) for number in re.findall(r"Collected : (\d+)", done.stderr)) / MILLION


def _seconds(folder: Path, rounds: int, *, with_rival: bool) -> list[Row]:
    torchx = place.rival("torchx", "torchx") if with_rival else None

    def seconds_of(*words: str) -> float:
        return timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=folder))

    works = {
        "help": lambda: seconds_of(TRAINYARD, "--help"),
        "ls": lambda: seconds_of(TRAINYARD, "ls"),
        "python": lambda: seconds_of(sys.executable, "-c", "pass"),
    }
    if torchx is not None:
        works["torchx"] = lambda: seconds_of(str(torchx), "--help")
    for work in works.values():
        work()  # compiles what it imports
    middle = medians(take_turns(works, rounds))
    note = "" if torchx else ("torchx cannot be installed here" if with_rival else "not in a quick run")
    return [
        Row("trainyard --help", middle["help"], "torchx --help", middle.get("torchx"), bar=1, note=note),
        Row("trainyard --help", middle["help"], "python -c pass", middle["python"]),
        Row("trainyard ls, local", middle["ls"], "limit", LS_LIMIT, bar=1),
    ]
