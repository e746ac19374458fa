"""What it costs a node to look at what its tasks use: processor time of one reading, against 1 % of a core.

The tasks are real processes; a vendor's tool for devices is not among it (there is none here): it is asked once a reading.
"""

from __future__ import annotations

import subprocess
import time
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.measure import Row
from trainyard.engines.nodes.agent.sampling import Sampler
from trainyard.engines.nodes.agent.tasks import Task
from trainyard.engines.nodes.link import Patience

SHARE = 0.01  # of a core
PROCESSES = 8  # of one task: one for each device
COMMAND = "for n in $(seq 8); do sleep 1000 & done; wait"


def measure(*, quick: bool = False) -> list[Row]:
    """One reading of a node with 1, 16 and 64 tasks of eight processes each."""
    rows = []
    for count in (1, 16) if quick else (1, 16, 64):
        shells = [subprocess.Popen(["sh", "-c", COMMAND], start_new_session=True) for _ in range(count)]
        try:
            time.sleep(0.5)
            seconds = _reading([_task(number, shell.pid) for number, shell in enumerate(shells)])
        finally:
            for shell in shells:
                subprocess.run(["kill", "-9", "--", f"-{shell.pid}"], check=False)
                shell.wait()
        limit = SHARE * Patience().sample
        rows.append(
            Row(
                f"a reading of {count} tasks, {count * PROCESSES} processes",
                seconds,
                "1 % of a core",
                limit,
                bar=1,
            )
        )
    return rows


def _task(number: int, pid: int) -> Task:
    folder = SimpleNamespace(attempt=f"dlc{number}.1", name="worker-0")
    history = {"at": "running", "pid": pid, "started": time.time()}
    return cast(Task, SimpleNamespace(folder=folder, history=history, order={"env": {}}))


def _reading(tasks: list[Task]) -> float:
    sampler: Any = Sampler()
    sampler._read(tasks, "")
    rounds = 10
    begin = time.process_time()
    for _ in range(rounds):
        found = sampler._read(tasks, "")
    assert len(found["tasks"]) == len(tasks)
    return (time.process_time() - begin) / rounds
