"""What it costs a node to look at what its tasks use: processor time of one reading, against 1 % of a core.

The tasks are real processes; the vendor's tools for devices are not among it (there are none here). What we spend around them is:
shells, answers of eight devices, and what an answer costs the server.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.measure import Row
from trainyard.engines.nodes.agent.readings.sampler import Sampler
from trainyard.engines.nodes.agent.tasks.task_list import Task
from trainyard.engines.nodes.node_link import LinkTimeouts
from trainyard.engines.nodes.readings import readings_of
from trainyard.runtime import device_metrics
from trainyard.runtime.usage import devices_script

SHARE = 0.01  # of a core
PROCESSES = 8  # of one task: one for each device
DEVICES = 8
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
        limit = SHARE * LinkTimeouts().sample
        rows.append(
            Row(
                f"a reading of {count} tasks, {count * PROCESSES} processes",
                seconds,
                "1 % of a core",
                limit,
                bar=1,
            )
        )
    with _tools():
        asking, taking = _devices()
    name = f"asking the tools of {DEVICES} devices, around the tools"
    rows.append(Row(name, asking, "1 % of a core", SHARE * LinkTimeouts().sample, bar=1))
    rows.append(
        Row(
            f"taking what {DEVICES} devices say, on the server",
            taking,
            "1 % of a core, 100 nodes",
            SHARE * LinkTimeouts().sample / 100,
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


@contextlib.contextmanager
def _tools() -> Iterator[None]:
    """An nvidia-smi and a dcgmi that cost next to nothing."""
    columns = [*device_metrics.BASIC, *device_metrics.FURTHER]
    numbers = [str(number) for group in device_metrics.GROUPS for number in group]
    before = os.environ["PATH"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "help").write_text("".join(f'"{column}"\n' for column in columns))
        (folder / "rows").write_text(
            "".join(
                f"{index}, Tesla V100, " + ", ".join(["1234"] * (len(columns) - 2)) + "\n"
                for index in range(DEVICES)
            )
        )
        rows = "".join(
            f"GPU {index}  N/A  " + "   ".join(["12345.678"] * len(numbers)) + "\n"
            for index in range(DEVICES)
        )
        (folder / "profile").write_text(rows * 3)
        for tool, body in {
            "nvidia-smi": f"case $1 in --help*) cat '{name}/help' ;; *) cat '{name}/rows' ;; esac",
            "dcgmi": f"cat '{name}/profile'",
        }.items():
            (folder / tool).write_text(f"#!/bin/sh\n{body}\n")
            (folder / tool).chmod(0o755)
        os.environ["PATH"] = f"{name}:{before}"
        try:
            yield
        finally:
            os.environ["PATH"] = before


def _devices() -> tuple[float, float]:
    """Processor time of a reading, in the agent and in what it starts; and of what the server makes of it."""
    sampler = Sampler()
    sampler.configure(0.05, devices_script(in_detail=True), device_metrics.profile_script())
    rounds = 20
    for _ in range(rounds):  # until both tools are known
        frame = _frame(sampler)
    begin = _spent()
    for _ in range(rounds):
        frame = _frame(sampler)
    asking = (_spent() - begin) / rounds
    sampler.stop()
    begin = time.process_time()
    for _ in range(100):
        readings_of(frame)
    return asking, (time.process_time() - begin) / 100


def _frame(sampler: Sampler) -> dict[str, Any]:
    while True:
        found = sampler.poll([])
        with contextlib.suppress(ChildProcessError):  # as the agent's loop does
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if found is not None:
            return found
        time.sleep(0.005)


def _spent() -> float:
    return sum(
        one.ru_utime + one.ru_stime
        for one in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
