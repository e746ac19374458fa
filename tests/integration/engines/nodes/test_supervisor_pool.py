"""Supervisors that see to one task after another: nothing of the last one is in the next, and none outlives its agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from pathlib import Path

from engine_lab import EngineLab, Watched, alive, kill, launch_of

from trainyard.engines.api import end_one
from trainyard.engines.nodes.agent.tasks import supervisor_pool
from trainyard.engines.nodes.agent.tasks.folder import TaskFolder

ROUNDS = 20  # one that is done may need a moment to say so; the task that comes meanwhile gets another one

HANDLES = 6  # the usual three, a pipe for signals, and a connection to the agent


def states(lab: EngineLab, attempt: str) -> list[dict[str, object]]:
    text = (lab.root() / "tasks" / attempt / "worker-0" / "state").read_text()
    return [json.loads(line) for line in text.splitlines()]


async def stand_by(lab: EngineLab, server: Watched, first: int = 0) -> int:
    """Run tasks until one of them has had the supervisor of an earlier one; its process, which stands by now."""
    known: set[int] = set()
    for number in range(first, first + ROUNDS):
        attempt = f"s{number}.1"
        await lab.launch(server, launch_of("true", attempt))
        await server.ended(attempt)
        pid = lab.supervisor_pid(attempt)
        if pid in known:
            return pid
        known.add(pid)
    raise AssertionError(f"nobody saw to a second task: {known}")


async def gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while alive(pid):
            await asyncio.sleep(0.01)


def handles(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_a_supervisor_sees_to_the_next_task_and_holds_nothing_of_the_last(lab: EngineLab):
    server = await lab.start()
    commands = {
        "w1.1": 'echo "one $X"; pwd > ~/place; exit 3',
        "w2.1": "kill -9 $$",
        "w3.1": "sleep 1000 & echo $$; exit 5",
    }
    for attempt, command in commands.items():
        await lab.launch(server, launch_of(command, attempt, env={"X": attempt}, grace=0.1))
        await server.ended(attempt)
    pid = await stand_by(lab, server)
    work = os.path.realpath(lab.root() / "tasks/w1.1/worker-0/work")
    assert server.log("w1.1") == b"one w1.1\n"
    assert (lab.home / "place").read_text() == f"{work}\n"
    assert (await server.ended("w1.1")).exit_code == 3
    assert (await server.ended("w2.1")).signal == 9
    assert (await server.ended("w3.1")).exit_code == 5
    await server.until(lambda: handles(pid) <= HANDLES, "it has let go of its last task")
    assert os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(lab.root())


async def test_what_a_supervisor_used_for_others_is_told_with_its_next_task(lab: EngineLab):
    server = await lab.start()
    for number in range(ROUNDS):
        attempt = f"u{number}.1"
        await lab.launch(server, launch_of("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done", attempt))
        await server.ended(attempt)
        first = states(lab, attempt)[0]
        if "before" in first:
            seconds, read, written = first["before"]  # type: ignore[misc]
            assert min(seconds, read, written) >= 0
            if seconds > 0.02:  # what the tasks above have used
                return
    raise AssertionError("nothing was used")


async def test_a_signal_for_the_last_task_does_not_end_the_next_one(lab: EngineLab):
    server = await lab.start()
    pid = await stand_by(lab, server)
    os.kill(pid, signal.SIGTERM)  # as one that comes when it is over already
    os.kill(pid, signal.SIGUSR1)
    await lab.launch(server, launch_of("sleep 0.05; exit 4"))
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.is_fenced) == (4, False)


async def test_a_task_ends_when_it_is_told_so_while_it_is_handed_over(lab: EngineLab):
    server = await lab.start()
    for number in range(5):
        attempt = f"w{number}.1"
        await stand_by(lab, server, number * ROUNDS)
        await lab.launch(server, launch_of("sleep 1000", attempt))
        await end_one(server.engine, attempt, ["local"], grace_seconds=5)
        await server.ended(attempt)


async def test_a_task_is_seen_to_when_those_who_stood_by_were_killed(lab: EngineLab):
    server = await lab.start()
    pid = await stand_by(lab, server)
    os.kill(pid, signal.SIGSTOP)  # it has the next task, and never looks at it
    await lab.launch(server, launch_of("exit 4"))
    kill(pid)
    assert (await server.ended("w1.1")).exit_code == 4
    pid = await stand_by(lab, server, ROUNDS)
    kill(pid)
    await lab.launch(server, launch_of("exit 5", "w2.1"))
    assert (await server.ended("w2.1")).exit_code == 5


async def test_nobody_stands_by_when_the_agent_was_killed(lab: EngineLab):
    server = await lab.start()
    pid = await stand_by(lab, server)
    await lab.launch(server, launch_of("echo up; while [ ! -e ~/go ]; do sleep 0.01; done; exit 6"))
    await server.until(lambda: server.log("w1.1"), "it is up")
    busy = lab.supervisor_pid("w1.1")
    kill(lab.agent_pid())
    if pid != busy:
        await gone(pid)
    await server.until(lambda: lab.agent_pid(), "another agent")
    (Path(lab.home) / "go").write_text("")
    assert (await server.ended("w1.1")).exit_code == 6
    await gone(busy)  # it is not of those that the new agent has forked
    await stand_by(lab, server, ROUNDS)


def test_who_stood_by_for_long_is_let_go_and_so_are_those_who_are_too_many(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor_pool, "MOST", 2)
    with contextlib.ExitStack() as stack:
        agent = supervisor_pool.SupervisorPool()
        stack.callback(agent.close)
        waiting = [stack.enter_context(_connection()) for _ in range(3)]
        for one in waiting:
            one.connect(supervisor_pool.SOCKET)
        assert agent.accept(lambda pid: pid == os.getpid()) == [os.getpid()] * 3
        assert waiting[2].recv(1) == b""  # there were enough
        agent.dismiss()
        assert agent.hand(TaskFolder("w1.1", "worker-0"), 0) == os.getpid()
        assert waiting[1].recv(100) == b"w1.1 worker-0"
        monkeypatch.setattr(supervisor_pool, "IDLE_SECONDS", -1.0)
        agent.dismiss()
        assert waiting[0].recv(1) == b""
        assert agent.hand(TaskFolder("w1.1", "worker-0"), 0) == 0


def _connection() -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.settimeout(20)
    return found


async def test_a_stranger_who_says_that_it_stands_by_gets_no_task(lab: EngineLab):
    server = await lab.start()
    os.chdir(lab.root())  # the path is longer than a socket's may be
    try:
        with _connection() as stranger:
            stranger.connect(supervisor_pool.SOCKET)
            await lab.launch(server, launch_of("exit 4"))
            assert (await server.ended("w1.1")).exit_code == 4
            assert stranger.recv(100) == b""
    finally:
        os.chdir("/")
