"""What it costs to keep tasks apart: starts with and without a view, one by one and in turns, on the same node.

`python -m benchmarks isolation`. The view is bubblewrap's, as a task of somebody who shares the node gets it, with six
storages and limits of memory and cores.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Row
from trainyard.engines.api import Mount, TaskEnded, View

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration" / "engines" / "nodes"))
from engine_lab import EngineLab, launch_of  # a real agent, as the tests have it

LIMIT_SECONDS = 0.025
TARGETS = ("/mnt/user/ada", "/mnt/share/team", "/home/ada", "/work", "/job", "/data")


def measure(*, quick: bool = False) -> list[Row]:
    """Starts in turns, so that what else the machine does falls on both."""
    if shutil.which("bwrap") is None:
        return [Row("a start in a view", 0.0, "without", None, note="bubblewrap is not installed")]
    with tempfile.TemporaryDirectory(prefix="bench-isolation-") as folder:
        plain, closed = asyncio.run(_starts(Path(folder), 30 if quick else 200))
    # Of the quicker half: what waits for a processor that somebody else has says nothing of a view.
    more = statistics.median(sorted(closed)[: len(closed) // 2]) - statistics.median(
        sorted(plain)[: len(plain) // 2]
    )
    return [
        Row(
            "from launch to the program's first act, in a view",
            statistics.median(closed),
            "without",
            statistics.median(plain),
        ),
        Row("what a view adds to a start", more, "limit", LIMIT_SECONDS, bar=1),
    ]


async def _starts(folder: Path, times: int) -> tuple[list[float], list[float]]:
    lab = EngineLab(folder / "home")
    lab.home.mkdir()
    view = View(
        user="ada",
        home="/home/ada",
        mounts=tuple(
            Mount(source=str(folder / str(number)), target=target, options={"create": "1"})
            for number, target in enumerate(TARGETS)
        ),
    )
    found: tuple[list[float], list[float]] = ([], [])
    try:
        server = await lab.start()
        for number in range(-3, times):  # the first ones find out what the node can
            for place, given in enumerate((None, view)):
                attempt = f"w{number + 3}x{place}.1"
                began = time.time()
                launch = launch_of(
                    "date +%s.%N",
                    attempt,
                    view=given,
                    memory_mib=256 if given else 0,
                    cpu_milli=1000 if given else 0,
                )
                await lab.launch(server, launch)
                await server.see(TaskEnded, attempt)
                await server.until(lambda attempt=attempt: server.log(attempt).endswith(b"\n"))
                if number >= 0:
                    found[place].append(float(server.log(attempt)) - began)
    finally:
        await lab.aclose()
    return found
