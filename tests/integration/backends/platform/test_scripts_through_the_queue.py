"""Whole scripts of `make_job` through a real platform: its queue, its server between us and the tasks, its restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from platforms import Up, platform, processes_of, stop_all
from trainyard import settings
from trainyard.backends.platform.backend import PlatformBackend
from trainyard.client.client import Client
from trainyard.client.login import Login
from trainyard.lib.errors import CapacityError, ConflictError, DeniedError, InvalidError, UnsupportedError
from trainyard.spec.machine import Machine, MachineSpec, MachineState
from trainyard.spec.names import task_name

pytestmark = [pytest.mark.slow]  # a real platform, and scripts in processes of their own
PATIENCE_SECONDS = 60.0
SMALL = MachineSpec(type="0.1c0g")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with platform(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture
def up(shared: Up) -> Iterator[Up]:
    """The platform of the module, with nothing that runs from the test before."""
    yield shared
    stop_all(shared)


def jobs_of(up: Up, name: str) -> list[Any]:
    """All that have ever held machines under this name."""
    found = up.call("GET", "/api/v1/jobs?kind=machines&limit=200")["items"]
    return [job for job in found if job["name"] == name]


def environment(up: Up, home: Path) -> dict[str, str]:
    """A laptop: nothing but a home, and who it is on the platform."""
    return {
        **os.environ,
        "HOME": str(home),
        "TRAINYARD_HOME": str(home / ".trainyard"),
        "TRAINYARD_BACKEND": "platform",
        "TRAINYARD_SERVER": up.url,
        "TRAINYARD_TOKEN": up.token,
    }


def script(up: Up, folder: Path, text: str, *, laptop: str = "laptop") -> subprocess.Popen[str]:
    home = folder / laptop
    home.mkdir(exist_ok=True)
    path = home / "script.py"
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(path)], cwd=home, env=environment(up, home),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def output_of(process: subprocess.Popen[str]) -> str:
    try:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(process.communicate()) from None
    assert process.returncode == 0, (out, err)
    return "".join(line for line in out.splitlines(keepends=True) if "INFO]# " not in line)


def backend_of(up: Up, folder: Path) -> PlatformBackend:
    return PlatformBackend.from_settings(settings.load(environment(up, folder)))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


WHOLE = """
import pathlib, trainyard
trainyard.set_backend("platform")
folder = pathlib.Path("a b'c $(touch pwned) 中文")
folder.mkdir()
(folder / "train.py").write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
job = trainyard.make_job(name="whole", num_tasks=2, instance_type="0.1c0g", install_script="echo once >> installed")
job.upload(str(folder), "code")
job.run("cd code")
for line in job.run("python3 train.py"):
    print(line.strip())
print(job.tasks[0].run("echo $HOME; cat ~/installed").split())
job.tasks[1].write("note", "hello")
print(job.tasks[1].read("note"), job.tasks[0].exists("note"))
print(len(set(job.run("pwd"))))
job.tasks[0].run("sleep 1000", non_blocking=True)
job.kill()
"""


def test_a_whole_script_runs_when_the_platform_is_its_backend(up: Up, tmp_path: Path) -> None:
    printed = output_of(script(up, tmp_path, WHOLE)).splitlines()
    assert printed[:2] == ["rank 0 of 2", "rank 1 of 2"], printed
    assert "once" in printed[2]
    assert printed[3] == "hello False"
    assert printed[4] == "2"
    jobs = jobs_of(up, "whole")
    assert [job["replicas"] for job in jobs] == [2]
    up.until(jobs[0]["id"], "cancelled")
    until(lambda: not list((up.home / ".trainyard" / "places").glob("*")))
    assert not (tmp_path / "laptop" / "pwned").exists()
    until(lambda: not [pid for pid in processes_of(str(up.folder)) if b"tmux" in _words(pid)])


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


FIRST = """
import time, trainyard
job = trainyard.make_job(name="night", num_tasks=2, instance_type="0.1c0g")
job.tasks[0].run("for i in $(seq 600); do echo step $i >> steps; [ -e stop ] && break; sleep 0.1; done; echo done", non_blocking=True)
print("started", flush=True)
time.sleep(1000)
"""
ADOPT = """
import trainyard
job = trainyard.make_job(name="night", num_tasks=2, instance_type="0.1c0g")
job.tasks[0].write("stop", "now")
job.tasks[0].join()
print(job.tasks[0].read("steps").splitlines()[0], len(job.tasks))
job.kill()
"""


def test_another_laptop_goes_on_when_the_first_was_killed(up: Up, tmp_path: Path) -> None:
    first = script(up, tmp_path, FIRST)
    assert first.stdout is not None
    while (line := first.stdout.readline()) and line != "started\n":
        pass
    assert line, first.communicate()
    first.kill()
    first.communicate()
    assert output_of(script(up, tmp_path, ADOPT, laptop="other")) == "step 1 2\n"
    assert len(jobs_of(up, "night")) == 1


RESTARTED = """
import pathlib, time, trainyard
job = trainyard.make_job(name="calm", num_tasks=1, instance_type="0.1c0g")
task = job.tasks[0]
print("ready", flush=True)
print(task.run("i=0; while [ ! -e stop ]; do sleep 0.1; done; echo survived", show_realtime=False).strip(), flush=True)
print(task.run("echo again").strip())
job.kill()
"""


def test_a_command_is_found_again_when_the_server_was_killed_and_started(up: Up, tmp_path: Path) -> None:
    running = script(up, tmp_path, RESTARTED)
    assert running.stdout is not None
    while (line := running.stdout.readline()) and line != "ready\n":
        pass
    assert line, running.communicate()
    until(lambda: bool(list((up.home / ".trainyard" / "places").glob("*/home/.trainyard/*/1.cmd"))))
    port = up.port
    up.kill(signal.SIGKILL)
    up.start(port=port)
    place = next((up.home / ".trainyard" / "places").glob("*/home"))
    (place / "stop").touch()
    assert output_of(running) == "survived\nagain\n"


QUEUED = """
import trainyard
job = trainyard.make_job(name="second", num_tasks=1, instance_type="{shape}")
print(job.run("echo in")[0].strip())
job.kill()
"""


async def test_machines_wait_with_the_reason_when_the_cluster_is_full(up: Up, tmp_path: Path) -> None:
    until(lambda: up.call("GET", "/api/v1/nodes")["items"][0]["state"] == "ready")
    cores = up.call("GET", "/api/v1/nodes")["items"][0]["cpu"]
    shape = f"{cores}c0g"
    full = up.submit("sleep 1000", roles=[{"cpu": cores}])
    up.until(full, "running")
    second = script(up, tmp_path, QUEUED.format(shape=shape))
    backend = backend_of(up, tmp_path)
    try:
        until(lambda: bool(jobs_of(up, "second")))
        waiting = (await backend.machines(name="task0.second"))[0]
        assert waiting.state is MachineState.PENDING
        assert waiting.details["queue"]
        assert waiting.details["position"] == "1"
        up.call("PUT", f"/api/v1/jobs/{full}/desired", {"desired": "cancel"})
    finally:
        await backend.aclose()
    out, err = second.communicate(timeout=2 * PATIENCE_SECONDS)
    assert second.returncode == 0, err
    assert "in" in out.splitlines()
    assert "task0.second waits in the queue, number 1: " in err


async def test_a_wish_that_no_queue_can_fulfil_is_refused(up: Up, tmp_path: Path) -> None:
    until(lambda: up.call("GET", "/api/v1/nodes")["items"][0]["state"] == "ready")
    backend = backend_of(up, tmp_path)
    try:
        with pytest.raises(CapacityError):
            await backend.acquire(MachineSpec(gpus=8), ["task0.greedy"])
        assert not jobs_of(up, "greedy")
    finally:
        await backend.aclose()


async def test_a_gang_stops_together_when_asked(up: Up, tmp_path: Path) -> None:
    backend = backend_of(up, tmp_path)
    try:
        machines = await backend.acquire(SMALL, ["task0.pair", "task1.pair"])
        with pytest.raises(UnsupportedError, match=r"task1\.pair"):
            await backend.stop(machines[:1])
        await backend.release(machines)
        assert not await backend.machines()
    finally:
        await backend.aclose()


def test_a_computer_that_is_not_logged_in_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="not logged in"):
        PlatformBackend.from_settings(settings.load({"HOME": str(tmp_path)}))


async def test_everything_that_was_run_is_gone_when_the_job_is_cancelled_by_somebody_else(
    up: Up, tmp_path: Path
) -> None:
    backend = backend_of(up, tmp_path)
    try:
        machine = (await backend.acquire(SMALL, ["task0.gone"]))[0]
        job = machine.details["job"]
        up.until(job, "running")
        way = backend.transport(machine)
        pid = int((await way.run("setsid sleep 4444 </dev/null >/dev/null 2>&1 & echo $!")).stdout)
        up.call("PUT", f"/api/v1/jobs/{job}/desired", {"desired": "cancel"})
        up.until(job, "cancelled")
        assert b"4444" not in _words(pid)
        with pytest.raises(ConflictError, match="cancelled"):
            await way.run("true")
    finally:
        await backend.aclose()


async def running(backend: PlatformBackend, pattern: str, count: int) -> list[Machine]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = [one for one in await backend.machines(name=pattern) if one.state is MachineState.RUNNING]
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


async def test_every_name_has_one_machine_when_two_ask_for_some_of_the_same_at_once(
    up: Up, tmp_path: Path
) -> None:
    one, other = backend_of(up, tmp_path), backend_of(up, tmp_path)
    names = [task_name("race", number) for number in range(4)]
    try:
        for _ in range(3):
            ours, theirs = await asyncio.gather(
                one.acquire(SMALL, names[:3]), other.acquire(SMALL, names[1:])
            )
            held = {machine.name: machine.id for machine in await one.machines()}
            assert list(held) == names
            for machine in (*ours, *theirs):
                assert held[machine.name] == machine.id
            await one.release(await one.machines())
            assert not await other.machines()
    finally:
        await one.aclose()
        await other.aclose()


async def test_a_machine_that_has_left_stays_away_when_its_job_is_paused_and_comes_back(
    up: Up, tmp_path: Path
) -> None:
    backend, other = backend_of(up, tmp_path), backend_of(up, tmp_path)
    try:
        await backend.acquire(SMALL, ["task0.trio", "task1.trio", "task2.trio"])
        first, middle, last = await running(backend, "*.trio", 3)
        await backend.transport(first).run("echo kept > file")
        await backend.release([middle])
        left = await running(other, "*.trio", 2)
        assert [machine.name for machine in left] == ["task0.trio", "task2.trio"]
        await other.stop(left)
        until(lambda: up.job(first.details["job"])["state"] == "held")
        assert [(one.name, one.state) for one in await other.machines()] == [
            ("task0.trio", MachineState.STOPPED),
            ("task2.trio", MachineState.STOPPED),
        ]
        await backend.acquire(SMALL, ["task0.trio", "task2.trio"])
        again = await running(backend, "task[02].trio", 2)
        assert [machine.id for machine in again] == [first.id, last.id]
        assert (await backend.transport(again[0]).run("cat file")).stdout == b"kept\n"
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()
        await other.aclose()


async def token_of(up: Up, name: str, role: str) -> str:
    """A new person with this role in the workspace that everybody begins with."""
    async with Client(up.url, up.token) as admin:
        made = await admin.users.create(name)
        await admin.workspaces.set_member("default", name, role)
    async with Client(up.url) as person:
        first = await person.session.login(name, made.password)
    async with Client(up.url, first.token) as person:
        await person.session.set_password(made.password, "correct horse battery staple 1")
    async with Client(up.url) as person:
        return (await person.session.login(name, "correct horse battery staple 1")).token


async def test_people_have_machines_of_their_own_when_they_use_the_same_name(up: Up, tmp_path: Path) -> None:
    ours = backend_of(up, tmp_path)
    theirs = PlatformBackend(Login(up.url, await token_of(up, "bob", "member")))
    viewer = PlatformBackend(Login(up.url, await token_of(up, "eve", "viewer")))
    try:
        mine = (await ours.acquire(SMALL, ["task0.same"]))[0]
        his = (await theirs.acquire(SMALL, ["task0.same"]))[0]
        assert mine.id != his.id
        await running(ours, "*", 1)
        await running(theirs, "*", 1)
        assert (await theirs.transport(his).run("echo his")).stdout == b"his\n"
        with pytest.raises(DeniedError):
            await theirs.transport(mine).run("true")
        with pytest.raises(DeniedError):
            await theirs.release([mine])
        assert not await viewer.machines()
        with pytest.raises(DeniedError):
            await viewer.acquire(SMALL, ["task0.same"])
        with pytest.raises(DeniedError):
            await viewer.transport(his).run("true")
        assert (await running(ours, "*", 1))[0].id == mine.id
    finally:
        for backend in (ours, theirs, viewer):
            await backend.release(await backend.machines())
            await backend.aclose()
