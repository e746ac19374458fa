"""A task that prints without end: the server gets every byte, the node keeps what is not taken yet, and its agent does not grow.

That what is kept counts against the task's part of the disk is in test_disk_limits.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node_lab import EngineLab, OpenSink, launch_of, node_in

from trainyard.engines.api import TaskCleared
from trainyard.lib.errors import ConflictError

MIB = 1 << 20
NODE_MIB = 16  # of a log, when the server has it all: what is freed in one step, and a little behind it
AGENT_MIB = 40  # that the agent may grow by: frames on the way to the server


class CountingSink(OpenSink):
    """Takes logs as strictly as the real one, and keeps none."""

    def __init__(self) -> None:
        self.sizes: dict[tuple[str, int, str], int] = {}
        self.logs: dict[tuple[str, int, str], bytes] = {}

    def append(
        self, workload_id: str, attempt: int, task: str, offset: int, data: bytes, time: float
    ) -> None:
        key = (workload_id, attempt, task)
        known = self.sizes.get(key, 0)
        if offset > known:
            raise ConflictError("a gap")
        assert not data.strip(b"y\n"), "what was printed, and nothing else"
        self.sizes[key] = max(known, offset + len(data))

    def size(self, workload_id: str, attempt: int, task: str) -> int:
        return self.sizes.get((workload_id, attempt, task), 0)

    def skip(self, workload_id: str, attempt: int, task: str, offset: int, time: float) -> None:
        self.sizes[workload_id, attempt, task] = offset


def memory_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) >> 10


async def print_much(lab: EngineLab, amount: int) -> tuple[int, int]:
    """The most that the log took on the node at a time, and that the agent grew by, in MiB."""
    sink = CountingSink()
    server = await lab.start(sink=sink)  # type: ignore[arg-type]  # as the others are
    before, most_disk, most_memory = memory_mib(lab.agent_pid()), 0, 0
    await lab.launch(server, launch_of(f"yes | head -c {amount}; exit 5"))
    log = lab.root() / "tasks/w1.1/worker-0/log"
    async with asyncio.timeout(300):
        while not server.find(TaskCleared, "w1.1"):
            if log.exists():
                most_disk = max(most_disk, log.stat().st_blocks * 512 // MIB)
            most_memory = max(most_memory, memory_mib(lab.agent_pid()) - before)
            await asyncio.sleep(0.02)
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.message) == (5, "")
    assert sink.sizes["w1", 1, "worker-0"] == amount
    assert log.stat().st_blocks * 512 <= NODE_MIB * MIB
    return most_disk, most_memory


async def test_the_agent_and_its_disk_stay_small_when_a_task_prints_150_megabytes(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        _, memory = await print_much(lab, 150_000_000)
        assert memory < AGENT_MIB


@pytest.mark.deep  # a gigabyte passes through pipes, a file and a socket
async def test_the_agent_and_its_disk_stay_small_when_a_task_prints_a_gigabyte(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        disk, memory = await print_much(lab, 1_000_000_000)
        print(f"at most {disk} MiB of log on the node, {memory} MiB more of the agent's memory")
        assert memory < AGENT_MIB
