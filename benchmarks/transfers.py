"""Uploads, as rows of the table: what `upload.py` and `uplink.py` measure, with the bars beside it."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import place
from benchmarks.measure import Row

# (again or first, rival) → ours as a multiple of the rival's, at most.
FIRST = {"tar once": 1.0, "tar | ssh": 1 / 1.3, "rsync -a, defaults": 1 / 1.5, "rsync -a": None}
AGAIN = {"rsync -a": 1.0}
UPLINK = 1.3


def measure(*, quick: bool = False) -> list[Row]:
    """5,000 small files and 100 MB to 1 and 32 sshds; 60 MB to 1 and 8 machines behind a thin uplink (root only)."""
    sys.path.insert(0, str(Path(__file__).parent))  # uplink.py finds upload.py by its plain name
    with place.own_home():
        rows = _uploads((1,) if quick else (1, 32), rounds=1 if quick else 2)
        return rows if quick else [*rows, _uplink()]


def _uploads(counts: tuple[int, ...], rounds: int) -> list[Row]:
    found = importlib.import_module("benchmarks.upload").run(counts, rounds=rounds)
    ours = {(case, count): seconds for case, tool, count, seconds in found if tool == "trainyard"}
    rows = []
    for case, tool, count, seconds in found:
        bars = FIRST if case.endswith("first") else AGAIN
        if tool in bars:
            rows.append(Row(f"{case}, x {count}", ours[case, count], tool, seconds, bar=bars[tool]))
    return rows


def _uplink() -> Row:
    case = "60 MB to 8 behind 100 Mbit/s"
    missing = "" if os.getuid() == 0 else "needs root"
    if not missing and not (shutil.which("ip") and shutil.which("tc")):
        missing = "needs ip and tc"
    if not missing:
        try:
            (_, single), (_, several) = importlib.import_module("benchmarks.uplink").run()
        except subprocess.CalledProcessError as error:
            missing = f"no network namespaces here: {error.cmd[0]} failed"
        else:
            return Row(case, several, "the same to 1", single, bar=UPLINK)
    return Row(case, 0.0, "the same to 1", bar=UPLINK, note=missing)
