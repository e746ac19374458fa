"""What docker has and podman has not: a daemon that ends, comes back, hangs, is found by a name, or belongs to somebody else."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import container_lab
import pytest
from container_lab import PLAIN, Docker
from engine_lab import WAIT, EngineLab, kill, launch_of

from trainyard.engines.api import Mount, View, end_one
from trainyard.engines.nodes.agent.containers.containers import requested
from trainyard.transport.api import read_all
from trainyard.transport.local import LocalTransport

pytestmark = pytest.mark.slow  # a daemon is ended and started for each of them

USER = 12345  # of nobody
COUNTING = "trap 'echo bye; exit 5' TERM; n=0; while [ $n -lt 1000 ]; do n=$((n+1)); echo $n; [ -e stop ] && exit 7; sleep 0.1; done"


@pytest.fixture(scope="module")
def lasting() -> Iterator[Docker]:
    with container_lab.lasting("docker") as found:
        assert isinstance(found, Docker)
        found.make(PLAIN, container_lab.plain_image())
        yield found


@pytest.fixture
def docker(lasting: Docker) -> Iterator[Docker]:
    """A daemon that runs, whatever a test did to the last one."""
    lasting.set_up({})
    yield lasting
    lasting.set_up({})
    lasting.clear()


async def test_a_task_goes_on_when_a_daemon_that_leaves_containers_alone_is_started_anew(
    lab: EngineLab, docker: Docker
):
    docker.set_up({"live-restore": True})
    server = await lab.start()
    await lab.launch(server, launch_of(COUNTING, view=View(image=PLAIN)))
    await server.until(lambda: b"3\n" in server.log("w1.1"))
    docker.stop(signal.SIGKILL)
    docker.start()
    await server.until(lambda: b"may be lost]" in server.log("w1.1"))
    seen = len(server.log("w1.1"))
    await server.until(lambda: len(server.log("w1.1")) > seen, "more of its output")
    (lab.root() / "tasks" / "w1.1" / "worker-0" / "work" / "stop").touch()
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.message) == (7, "")
    assert docker.leftovers() == ""


async def test_a_task_is_asked_to_go_and_its_user_told_why_when_the_daemon_is_stopped(
    lab: EngineLab, docker: Docker
):
    server = await lab.start()
    await lab.launch(server, launch_of(COUNTING, view=View(image=PLAIN)))
    await server.until(lambda: b"3\n" in server.log("w1.1"))
    docker.stop()
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.was_told) == (5, False)
    assert "was asked to end: by docker" in ended.message
    docker.start()
    await lab.launch(server, launch_of("true", "w2.1", view=View(image=PLAIN)))
    assert (await server.ended("w2.1")).exit_code == 0
    assert docker.leftovers() == "", "the one that nobody could remove went with the next"


async def test_a_task_is_lost_and_nothing_of_it_runs_on_when_the_daemon_died_and_its_container_as_well(
    lab: EngineLab, docker: Docker
):
    server = await lab.start()
    await lab.launch(server, launch_of("echo on; exec sleep 4321.5", view=View(image=PLAIN)))
    await server.until(lambda: b"on" in server.log("w1.1"))
    (name,) = docker.leftovers().split()
    first = int(docker.ask("inspect", "--format", "{{.State.Pid}}", name).stdout)
    docker.stop(signal.SIGKILL)
    kill(first)
    ended = await server.ended("w1.1")
    assert ended.exit_code == 137
    assert ended.message == "docker went away while the task ran, and its container with it"


async def test_other_tasks_of_the_node_do_not_wait_when_the_daemon_hangs(lab: EngineLab, docker: Docker):
    server = await lab.start()
    assert docker.daemon is not None
    docker.daemon.send_signal(signal.SIGSTOP)
    try:
        await lab.launch(server, launch_of("echo in", "w1.1", view=View(image=PLAIN)))
        await lab.launch(server, launch_of("echo out", "w2.1"))
        assert (await server.ended("w2.1")).exit_code == 0
        assert server.log("w1.1") == b""
    finally:
        docker.daemon.send_signal(signal.SIGCONT)
    ended = await server.ended("w1.1")
    assert (ended.exit_code, server.log("w1.1")) == (0, b"in\n"), ended


async def test_an_image_is_fetched_with_a_sign_in_when_the_daemon_is_found_by_a_name_of_the_nodes_own(
    lab: EngineLab, docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where docker gets settings with a sign-in, it does not read those by which people named their daemon."""
    (tmp_path / "odd name").mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "odd name"))
    monkeypatch.delenv("DOCKER_HOST")
    for words in (("create", "own", "--docker", f"host=unix://{docker.socket}"), ("use", "own")):
        assert docker.ask("context", *words).returncode == 0
    with container_lab.registry(container_lab.plain_image(), "robot", "right") as name:
        server = await lab.start()
        await lab.launch(
            server, launch_of("echo on", view=View(image=name, username="robot", password="right"))
        )
        ended = await server.ended("w1.1")
    assert (ended.exit_code, server.log("w1.1")) == (0, b"on\n"), ended
    assert not (lab.root() / "tasks" / "w1.1" / "worker-0" / "registry").exists()


async def test_docker_runs_a_task_where_podman_is_too_when_the_node_is_set_so(lab: EngineLab, docker: Docker):
    (docker.folder / "tools" / "podman").write_text("#!/bin/sh\necho podman version 4\n")
    try:
        server = await lab.start()
        await lab.launch(server, launch_of("echo on", view=View(image=PLAIN, images="docker")))
        assert (await server.ended("w1.1")).exit_code == 0
    finally:
        (docker.folder / "tools" / "podman").write_text(container_lab.NO_PODMAN)
    assert server.log("w1.1") == b"on\n"


@pytest.mark.parametrize("indices", ["3", "0,1"])
def test_docker_understands_which_devices_of_nvidia_a_task_has(docker: Docker, indices: str):
    """There are none here to be seen inside."""
    made = docker.ask("create", "--network", "host", *requested(indices), PLAIN, "sh").stdout.decode().strip()
    asked = json.loads(docker.ask("inspect", "--format", "{{json .HostConfig.DeviceRequests}}", made).stdout)
    assert [(one["DeviceIDs"], one["Capabilities"]) for one in asked] == [(indices.split(","), [["gpu"]])]


class OrdinaryTransport(LocalTransport):
    """A way to this machine as a user who is not root."""

    async def run(self, script: str, **given: Any) -> Any:
        return await super().run(as_ordinary(script), **given)

    async def spawn(self, script: str, **given: Any) -> Any:
        return await super().spawn(as_ordinary(script), **given)

    async def put(self, source: Path, target: str) -> None:
        await super().put(source, target)
        os.chown(self._home / target, USER, USER)


def as_ordinary(script: str) -> str:
    return f"exec setpriv --reuid {USER} --regid {USER} --clear-groups /bin/sh -c {shlex.quote(script)}"


@pytest.fixture
async def ordinary(isolation: Path, docker: Docker) -> AsyncIterator[EngineLab]:
    """A node whose agent is no root's."""
    home = Path(tempfile.mkdtemp(prefix="tyu-'$(x) ", dir="/tmp"))
    os.chown(home, USER, USER)
    docker.folder.chmod(0o755)
    inherited = dict(os.environ)
    lab = EngineLab(home, lambda _: OrdinaryTransport(home, {"HOME": str(home)}, inherited=inherited))
    try:
        yield lab
    finally:
        await lab.aclose()
        deadline = time.monotonic() + WAIT
        while home.exists() and time.monotonic() < deadline:  # an agent that goes takes its files with it
            shutil.rmtree(home, ignore_errors=True)


async def test_a_task_is_no_root_when_its_agent_is_none_and_the_daemon_is_roots(
    ordinary: EngineLab, docker: Docker
):
    os.chmod(docker.socket, 0o666)
    own = ordinary.home / "own"
    own.mkdir()
    os.chown(own, USER, USER)
    server = await ordinary.start()
    view = View(image=PLAIN, mounts=(Mount(source=str(own), target="/data"),))
    await ordinary.launch(server, launch_of("mkdir -p a/b; echo x > /data/f; id -u; sleep 60", view=view))
    await server.until(lambda: server.log("w1.1") == f"{USER}\n".encode())
    assert (own / "f").stat().st_uid == USER
    process = await server.engine.exec("w1.1", "worker-0", "local", "id -u; ls a", None)
    assert (await read_all(process), await process.wait()) == (f"{USER}\nb\n".encode(), 0)
    await end_one(server.engine, "w1.1", ["local"], grace_seconds=20)
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.was_told) == (143, True)
    assert docker.leftovers() == ""


async def test_it_is_said_why_when_the_agent_may_not_ask_the_daemon(ordinary: EngineLab, docker: Docker):
    os.chmod(docker.socket, 0o600)
    server = await ordinary.start()
    await ordinary.launch(server, launch_of("true", view=View(image=PLAIN)))
    ended = await server.ended("w1.1")
    assert ended.exit_code == 126
    assert "docker says: permission denied" in ended.message.replace("Got permission", "permission"), (
        ended.message
    )
