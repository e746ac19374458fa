"""Jobs of several tasks: from the request to the first and to the last task's first line, beside tasks that do not meet.

    python -m benchmarks gangs

Plain jobs and jobs that meet (PyTorchJob, MPIJob with an sshd for every task) take turns on one platform on this machine;
what meeting costs is the difference. Every task says when it began, by the machine's own clock.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Row

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from platforms import Up, platform  # the same way to start one as the tests have

SIZES = (2, 8, 32)
SSH_SIZES = (2, 8)
ROUNDS = 9
COMMAND = "date +began:%s.%N"
# Of tasks that begin on two processors: a Python that starts, reads its order and waits takes 30 ms of one.
MEETING_SECONDS_A_TASK = 0.1


def measure(*, quick: bool = False) -> list[Row]:
    """Every size, the kinds in turn."""
    rows = []
    rounds = 2 if quick else ROUNDS
    with (
        tempfile.TemporaryDirectory(prefix="bench-gangs-") as folder,
        platform(Path(folder), "--cpu", "64") as up,
    ):
        _starts(up, "job", 1)  # the first start of all brings the program to the node
        for size in SIZES[:2] if quick else SIZES:
            rows += _rows(up, size, rounds)
    return rows


def _rows(up: Up, size: int, rounds: int) -> list[Row]:
    kinds = ("job", "PyTorchJob", "MPIJob") if size in SSH_SIZES else ("job", "PyTorchJob")
    first: dict[str, list[float]] = {kind: [] for kind in kinds}
    last: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds if number % 2 else reversed(kinds):
            times = _starts(up, kind, size)
            first[kind].append(min(times))
            last[kind].append(max(times))
    begin = {kind: statistics.median(values) for kind, values in first.items()}
    end = {kind: statistics.median(values) for kind, values in last.items()}
    rows = [
        Row(
            f"{size} tasks: submit to the first line",
            begin["PyTorchJob"],
            "tasks that do not meet",
            begin["job"],
        ),
        Row(
            f"{size} tasks: submit to the last task's",
            end["PyTorchJob"],
            "tasks that do not meet",
            end["job"],
        ),
        Row(
            f"{size} tasks: meeting, a task",
            max(0.0, end["PyTorchJob"] - end["job"]) / size,
            "limit",
            MEETING_SECONDS_A_TASK,
            bar=1,
        ),
    ]
    if "MPIJob" in begin:
        rows.append(Row(f"{size} tasks: with ssh, submit to mpirun's turn", begin["MPIJob"], "", None))
    return rows


def _starts(up: Up, kind: str, size: int) -> list[float]:
    """Seconds from the request until each task that runs the command began."""
    began = time.time()
    job = up.submit(COMMAND, kind=kind, roles=[{"name": "worker", "replicas": size, "cpu": 0.1}])
    up.until(job, "succeeded", seconds=120)
    return [float(line.partition(":")[2]) - began for line in up.lines(job) if line.startswith("began:")]
