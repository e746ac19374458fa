"""Spot machines that are taken back: the notice is seen, the checkpoint command runs, another machine carries on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from emulation import Emulation
from trainyard.runtime.context import Context
from trainyard.runtime.job import make_job
from trainyard.runtime.watch import Watch, WatchOptions
from trainyard.spec.machine import MachineSpec, MachineState

pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(120)]  # machines that boot real sshds

SPOT = MachineSpec(type="ecs.g7.large", spot=True, shared_storage=True)


class Told:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, name: str, message: str, level: str = "INFO") -> None:
        self.lines.append(f"{name} {level} {message}")

    def output(self, name: str, piece: bytes) -> None:
        pass

    def transfer(self, machine: str, done: int, total: int) -> None:
        pass


async def until(is_so, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not await is_so():
            await asyncio.sleep(0.05)


async def test_the_command_runs_on_another_machine_when_a_spot_machine_was_taken_back(
    lab: Emulation, open_client
):
    backend, told = open_client(), Told()
    context = Context(backend, told, logdir_root="/fastgpu/runs")
    try:
        job = await make_job(
            context, name="spot", run_name="spot-1", spec=SPOT, install_script="touch installed"
        )
        (task,) = job.tasks
        logdir = await job.logdir()
        await task.run(f"echo $(date +%s%N) >> {logdir}/starts; sleep 1000", non_blocking=True)
        care = WatchOptions(checkpoint=f"echo saved > {logdir}/checkpoint", recover=True)
        watch = Watch(job=job, spec=SPOT, care=care, install_script="touch installed")
        first = task.machine.id
        await watch.look()
        assert not await task.exists(f"{logdir}/checkpoint")

        lab.control("POST", "interrupt", {"instance": first})
        await watch.look()
        assert await task.read(f"{logdir}/checkpoint") == "saved\n"
        await watch.look()
        assert sum("checkpoint command has run" in line for line in told.lines) == 1

        lab.control("POST", "clock", {"advance_seconds": 400})
        assert first not in [row["InstanceId"] for row in lab.instances()]
        await watch.look()
        assert task.machine.id != first
        assert await task.exists("installed")
        assert await job.logdir() == logdir

        async def started_twice() -> bool:
            return len((await task.read(f"{logdir}/starts")).splitlines()) == 2

        await until(started_twice)
        await job.kill()
        assert lab.instances() == []
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_no_machine_is_made_when_somebody_has_killed_the_job(lab: Emulation, open_client):
    backend, told = open_client(), Told()
    spec = MachineSpec(type="ecs.g7.large", spot=True)
    try:
        job = await make_job(Context(backend, told), name="killed", spec=spec)
        lab.ecs("DeleteInstances", InstanceId=[job.tasks[0].machine.id], Force=True)
        await Watch(job=job, spec=spec, care=WatchOptions(recover=True)).look()
        assert lab.instances() == []
        assert job.tasks == []
        assert any("the machine is gone" in line for line in told.lines)
    finally:
        await backend.aclose()


async def test_machines_are_stopped_when_nothing_has_run_for_long(open_client, tmp_path: Path):
    backend, told = open_client(), Told()
    spec = MachineSpec(type="ecs.g7.large")
    try:
        job = await make_job(Context(backend, told), name="idle", spec=spec)
        await job.run("true")
        watch = Watch(job=job, spec=spec, care=WatchOptions(idle_minutes=0.001), look_seconds=0.05)
        await watch.run()
        assert job.tasks[0].machine.state is MachineState.STOPPED
        assert (await backend.machines())[0].state is MachineState.STOPPED
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()
