"""Machines that stop themselves by their RAM role: their client is dead, and nobody pays for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from emulation import Emulation, until
from trainyard.runtime.context import Context
from trainyard.runtime.job import make_job
from trainyard.runtime.self_stop import SelfStop, StopTerms
from trainyard.runtime.task import Task
from trainyard.runtime.watch import Watch, WatchOptions, stop_when_done
from trainyard.spec.machine import MachineSpec, MachineState

# Machines that boot real sshds, and wait for seconds to pass.
pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(120)]

ROLE = "TrainyardStop"
SPEC = MachineSpec(type="ecs.g7.large", role=ROLE)
KILLED = """
import asyncio
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.runtime.context import Context
from trainyard.runtime.self_stop import SelfStop, StopTerms
from trainyard.runtime.job import make_job
from trainyard.spec.machine import MachineSpec

async def main():
    context = Context(AliyunBackend.from_settings(settings.load()))
    spec = MachineSpec(type="ecs.g7.large", role="TrainyardStop", max_hours=8)
    job = await make_job(context, name="orphan", num_tasks=2, spec=spec)
    self_stop = SelfStop(job=job, terms=StopTerms(when_done=True, beat_seconds=0.2))
    assert await self_stop.arrange()
    beats = asyncio.create_task(self_stop.beat())
    await asyncio.sleep(3)  # longer than the grace of two
    # The second machine has no command of its own, and works for the first.
    await job.tasks[0].run("sleep 4; echo trained > result", non_blocking=True)
    print("started", flush=True)
    await beats

asyncio.run(main())
"""
SCRIPT = """
import trainyard
import trainyard.runtime.self_stop
trainyard.runtime.self_stop.LONGEST_LOOK_SECONDS = 1
trainyard.set_backend("aliyun")
job = trainyard.make_job(
    name="left", instance_type="ecs.g7.large", confirm_cost=True, ram_role="TrainyardStop", stop_when_done=True
)
job.run("sleep 3; echo trained > result", non_blocking=True)
"""


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


def statuses(lab: Emulation) -> list[str]:
    return [row["Status"] for row in lab.instances()]


async def held(task: Task, line: str) -> None:
    """Send a command, and wait until it has done so much; it goes on until `let_go`."""
    await task.run(f"{line}; echo > outlived; until [ -e go ]; do sleep 0.1; done", non_blocking=True)
    await task.wait_for_file("outlived", check_interval=0.1)


async def let_go(task: Task) -> None:
    await task.write("go", "")


async def test_machines_stop_themselves_when_the_client_was_killed_and_the_command_has_ended(
    lab: Emulation, open_client, tmp_path: Path
):
    env = {**os.environ, "HOME": str(tmp_path / "laptop"), "USER": "alice", **lab.environ()}
    env["TRAINYARD_HOME"] = str(tmp_path / "laptop" / ".trainyard")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        lines = iter(client.stdout.readline, "")
        assert any(line.startswith("started") for line in lines), client.communicate()[1]
        client.send_signal(signal.SIGKILL)
        client.communicate()
    assert statuses(lab) == ["Running", "Running"]
    until(lambda: statuses(lab) == ["Stopped", "Stopped"], 40)
    assert {row["StoppedMode"] for row in lab.instances()} == {"StopCharging"}
    assert {row["AutoReleaseTime"] for row in lab.instances()} == {""}  # the files are kept
    backend = open_client()
    try:
        await backend.start(await backend.machines())
        for machine in await backend.machines():
            if machine.name == "task0.orphan":
                done = await backend.transport(machine).run("cat result .trainyard/self-stop/log")
                assert done.stdout.startswith(b"trained\n")
                assert b"the commands have ended and the client is gone" in done.stdout
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


def test_the_script_does_not_wait_for_its_commands_when_the_machine_stops_itself(
    lab: Emulation, tmp_path: Path
):
    env = {**os.environ, "HOME": str(tmp_path / "laptop"), "USER": "alice", **lab.environ()}
    env["TRAINYARD_HOME"] = str(tmp_path / "laptop" / ".trainyard")
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the machines stop themselves when their commands have ended" in done.stdout
    assert statuses(lab) == ["Running"]
    until(lambda: statuses(lab) == ["Stopped"], 60)


async def test_a_machine_stops_itself_again_when_idle_after_each_start(lab: Emulation, open_client):
    backend, told = open_client(), Told()
    try:
        job = await make_job(Context(backend, told), name="idle", spec=SPEC)
        await job.run("true")
        assert await SelfStop(job=job, terms=StopTerms(idle_minutes=0.05)).arrange(), told.lines
        await held(job.tasks[0], "sleep 4")
        assert statuses(lab) == ["Running"]
        await let_go(job.tasks[0])
        until(lambda: statuses(lab) == ["Stopped"], 40)
        assert lab.instances()[0]["StoppedMode"] == "StopCharging"
        if lab.ready["isolation"] != "home":  # elsewhere nothing of the machine's own runs at its boot
            await job.aclose()
            await backend.start(await backend.machines())
            until(lambda: statuses(lab) == ["Stopped"], 40)
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_machines_go_on_when_a_client_lives_or_somebody_else_runs_a_command(
    lab: Emulation, open_client
):
    backend = open_client()
    try:
        job = await make_job(Context(backend, Told()), name="busy", num_tasks=2, spec=SPEC)
        terms = StopTerms(when_done=True, beat_seconds=0.1)
        one, other = SelfStop(job=job, terms=terms), SelfStop(job=job, terms=terms)
        assert await one.arrange()
        assert await other.arrange()
        await one.leave()
        await held(
            job.tasks[1],
            f"for i in 1 2 3; do echo > ~/.trainyard/self-stop/clients/{other.client}; sleep 1; done",
        )
        assert statuses(lab) == ["Running", "Running"]
        await let_go(job.tasks[1])
        until(lambda: statuses(lab) == ["Stopped", "Stopped"], 40)
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_a_machine_waits_for_the_grace_when_somebody_else_has_sent_the_last_command(
    lab: Emulation, open_client
):
    backend = open_client()
    try:
        job = await make_job(Context(backend, Told()), name="visit", spec=SPEC)
        self_stop = SelfStop(job=job, terms=StopTerms(when_done=True, beat_seconds=0.4))
        assert await self_stop.arrange()
        (task,) = job.tasks
        await held(task, "true")  # the client's own: it keeps the machine until the visitor has come
        await self_stop.leave()
        await task.require("sleep 2", "cannot wait")  # so that the next is not the client's, by whole seconds
        await task.run("date +%s > visited", non_blocking=True)
        assert statuses(lab) == ["Running"]
        await let_go(task)
        until(lambda: statuses(lab) == ["Stopped"], 40)
        await job.aclose()
        await backend.start(await backend.machines())
        (machine,) = await backend.machines()
        looked = 'cd .trainyard/self-stop; date -u -d "$(sed -n "s/ stopping .*//p" log)" +%s; cat ~/visited'
        done = await backend.transport(machine).run(looked)
        stopped, visited = map(int, done.stdout.split())
        assert stopped - visited >= 4  # ten beats
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_the_client_stops_quiet_machines_at_once_and_leaves_busy_ones(lab: Emulation, open_client):
    backend, told = open_client(), Told()
    try:
        job = await make_job(Context(backend, told), name="end", spec=SPEC)
        self_stop = SelfStop(job=job, terms=StopTerms(when_done=True))
        assert await self_stop.arrange()
        await job.tasks[0].run("sleep 1000", non_blocking=True)
        await stop_when_done(job, self_stop)
        assert statuses(lab) == ["Running"]
        assert any("stop themselves" in line for line in told.lines)
        await job.tasks[0].interrupt()
        await job.tasks[0].join(ignore_errors=True)  # a busy machine takes its time
        await stop_when_done(job, self_stop)
        assert statuses(lab) == ["Stopped"]
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


@pytest.mark.parametrize("lack", ["role", "right"])
async def test_the_reason_is_told_in_a_sentence_when_a_machine_cannot_stop_itself(
    lab: Emulation, open_client, lack: str
):
    backend, told = open_client(), Told()
    spec = SPEC if lack == "right" else MachineSpec(type="ecs.g7.large")
    try:
        job = await make_job(Context(backend, told), name="denied", spec=spec)
        if lack == "right":
            lab.control("POST", "options", {"account": {"denied": ["ecs:Stop*"]}})
        assert not await SelfStop(job=job, terms=StopTerms(when_done=True)).arrange()
        (line,) = told.lines
        assert line.startswith("task0.denied WARN the machine cannot stop itself: ")
        assert (
            "it has no RAM role" if lack == "role" else "its RAM role may not stop it: Forbidden.RAM"
        ) in line
        assert not await job.tasks[0].exists(".trainyard/self-stop/terms")
    finally:
        lab.control("POST", "options", {"account": {"denied": []}})
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_the_reason_is_in_the_log_when_the_right_was_taken_away_later(lab: Emulation, open_client):
    backend = open_client()
    try:
        job = await make_job(Context(backend, Told()), name="later", spec=SPEC)
        assert await SelfStop(job=job, terms=StopTerms(idle_minutes=0.02)).arrange()
        lab.control("POST", "options", {"account": {"denied": ["ecs:Stop*"]}})

        async def said() -> str:
            done = await job.tasks[0].transport.run("cat ~/.trainyard/self-stop/log")
            return done.stdout.decode()

        while "cannot stop: its RAM role may not stop it: Forbidden.RAM" not in await said():
            pass
        lab.control("POST", "options", {"account": {"denied": []}})
        until(lambda: statuses(lab) == ["Stopped"], 40)  # it has tried again
    finally:
        lab.control("POST", "options", {"account": {"denied": []}})
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_a_machine_that_takes_anothers_place_is_told_of_the_self_stop(lab: Emulation, open_client):
    backend = open_client()
    spec = MachineSpec(type="ecs.g7.large", role=ROLE, spot=True)
    try:
        job = await make_job(Context(backend, Told()), name="again", spec=spec)
        self_stop = SelfStop(job=job, terms=StopTerms(when_done=True))
        assert await self_stop.arrange()
        watch = Watch(job=job, spec=spec, care=WatchOptions(recover=True), self_stop=self_stop)
        first = job.tasks[0].machine.id
        lab.control("POST", "interrupt", {"instance": first})
        await watch.look()
        lab.control("POST", "clock", {"advance_seconds": 400})
        await watch.look()
        (task,) = job.tasks
        assert task.machine.id != first
        assert f"ids={task.machine.id}\n" in await task.read(".trainyard/self-stop/terms")
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_the_watch_ends_when_somebody_else_has_stopped_the_machines(lab: Emulation, open_client):
    backend, told = open_client(), Told()
    try:
        job = await make_job(Context(backend, told), name="quiet", spec=SPEC)
        lab.ecs("StopInstances", InstanceId=[job.tasks[0].machine.id])
        await Watch(job=job, spec=SPEC, care=WatchOptions(idle_minutes=60), look_seconds=0.05).run()
        assert job.tasks[0].machine.state is MachineState.STOPPED
        assert told.lines == ["task0.quiet WARN the machine has been stopped"]
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


def test_a_single_task_is_stopped_at_the_end_of_the_script_too(lab: Emulation, tmp_path: Path):
    env = {**os.environ, "HOME": str(tmp_path / "laptop"), "USER": "alice", **lab.environ()}
    env["TRAINYARD_HOME"] = str(tmp_path / "laptop" / ".trainyard")
    script = (
        "import trainyard\ntrainyard.set_backend('aliyun')\n"
        "trainyard.make_task('solo', instance_type='ecs.g7.large', confirm_cost=True, stop_when_done=True).run('true')"
    )
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert statuses(lab) == ["Stopped"]
