"""One cold client: a fresh process that runs a command on all hosts and prints how long it took after its imports.

`client.py bare|connect|make_job TARGETS JOB`. Run by fanout.py, never imported.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

COMMAND = "echo hi"


def bare(targets: list[list[str]], _job: str) -> float:
    """asyncssh alone: connect to all at once, run, close."""
    import asyncssh

    async def one(address: str, port: int, user: str, key: str, known_hosts: str) -> str:
        async with asyncssh.connect(
            address,
            port,
            username=user,
            client_keys=[key],
            known_hosts=known_hosts,
            config=None,
            agent_path=None,
        ) as connection:
            return str((await connection.run(COMMAND)).stdout)

    async def all_of_them() -> list[str]:
        return list(await asyncio.gather(*(one(*target) for target in targets)))  # type: ignore[arg-type]  # JSON

    start = time.perf_counter()
    check(asyncio.run(all_of_them()), len(targets))
    return time.perf_counter() - start


def connect(targets: list[list[str]], job: str) -> float:
    """Ours, with the machines at hand: connect, find the sessions, run, let go."""
    from trainyard import settings
    from trainyard.backends.registry import open_backend
    from trainyard.runtime.context import Context
    from trainyard.runtime.job import Job
    from trainyard.runtime.task import Task
    from trainyard.spec.machine import Machine, MachineState

    machines = [
        Machine(
            name=f"task{index}.{job}",
            id="",
            backend="ssh",
            state=MachineState.RUNNING,
            address=str(target[0]),
            details={"host": f"h{index}"},
        )
        for index, target in enumerate(targets)
    ]

    async def all_of_them() -> list[str]:
        context = Context(backend=backend)
        made = Job(context, job, [Task(context, machine) for machine in machines])
        try:
            return await made.run(COMMAND, quiet=True)
        finally:
            await made.aclose()
            await backend.aclose()

    backend = open_backend("ssh", settings.load())
    start = time.perf_counter()
    check(asyncio.run(all_of_them()), len(targets))
    return time.perf_counter() - start


def make_job(targets: list[list[str]], job: str) -> float:
    """Ours, as a person's script does it."""
    import trainyard

    trainyard.set_backend("ssh")
    import trainyard.backends.ssh.backend  # asyncssh; the rival's imports are not timed either

    start = time.perf_counter()
    made = trainyard.make_job(job, num_tasks=len(targets))
    check(made.run(COMMAND, quiet=True), len(targets))
    return time.perf_counter() - start


def check(outputs: list[str], count: int) -> None:
    """What is timed must be right."""
    if outputs != ["hi\n"] * count:
        raise SystemExit(f"wrong answers: {outputs}")


if __name__ == "__main__":
    kind, targets_file, job_name = sys.argv[1:]
    work = {"bare": bare, "connect": connect, "make_job": make_job}[kind]
    print(work(json.loads(Path(targets_file).read_text()), job_name))
