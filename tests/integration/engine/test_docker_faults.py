"""A daemon of docker's that ends, comes back or hangs while tasks run in its containers; and users who may not ask it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import container_lab
import pytest
from container_lab import PLAIN, Docker
from engine_lab import EngineLab, kill, launch_of

from trainyard.engines.api import View

pytestmark = pytest.mark.slow  # a daemon is ended and started for each of them

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
