"""What comes before a command on a node: tasks that meet, strangers at the gate, and what is left when something dies there."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest
from engine_lab import EngineLab, alive, kill, launch_of

from trainyard.engines.api import Entry, Peer
from trainyard.engines.nodes.agent.gate import mark_of
from trainyard.server.meeting import own_address, port_of

pytestmark = pytest.mark.slow  # real agents, and tasks that wait for each other
ADDRESS, PORT = own_address("w1.1", 7), port_of("gate of this module")


def entry(name: str, *, meets: tuple[str, ...] = (), reports: bool = False, seconds: float = 60.0) -> Entry:
    """One that keeps a gate of this machine, or reports there."""
    peers = tuple(
        Peer(task=one, names=(one,), address="127.0.0.1") for one in dict.fromkeys(("keeper", name))
    )
    return Entry(
        peers=peers, meets=meets, reports=reports, gate_port=PORT, gate_address=ADDRESS, token="t" * 64,
        ready_seconds=seconds, env={"MET": "%host:keeper%"},
    )  # fmt: skip


def say(hello: dict[str, object]) -> bytes:
    """What the gate answers to somebody."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with socket.create_connection((ADDRESS, PORT), timeout=10) as connection:
                with connection.makefile("rb") as said:
                    assert said.readline().decode().strip() == mark_of("t" * 64)
                    connection.sendall(json.dumps(hello).encode() + b"\n")
                    return said.readline()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


async def test_strangers_learn_nothing_at_the_gate_and_those_who_belong_begin(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of('echo "met at $MET"', entry=entry("worker-0", meets=("other",))))
    wrong = {"token": "x" * 64, "task": "other", "ports": {}}
    for hello in (wrong, {**wrong, "token": "t" * 64, "task": "nobody"}, {"token": ["t"]}, {}):
        assert await asyncio.to_thread(say, hello) == b""
    right = {"token": "t" * 64, "task": "other", "ports": {"PORT": "7"}}
    answer = json.loads(await asyncio.to_thread(say, right))
    assert answer["other"] == {"PORT": "7"}
    assert (await server.ended("w1.1")).exit_code == 0
    assert server.log("w1.1").decode().endswith("successfully initialized.\nmet at 127.0.0.1\n")


async def test_nothing_begins_and_nothing_is_left_when_a_supervisor_is_killed_at_the_gate(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo began", entry=entry("worker-0", reports=True)))
    await server.until(lambda: server.log("w1.1"), "it waits")
    supervisor = lab.supervisor_pid("w1.1")
    state = (lab.root() / "tasks/w1.1/worker-0/state").read_text()
    child = next(json.loads(line)["child"] for line in state.splitlines() if '"child"' in line)
    kill(supervisor)
    assert (await server.ended("w1.1")).exit_code == 137
    assert not alive(child)
    assert b"began" not in server.log("w1.1")


async def test_a_task_that_waits_ends_at_once_when_it_is_asked_to(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo began", entry=entry("worker-0", reports=True)))
    await server.until(lambda: server.log("w1.1"), "it waits")
    began = time.monotonic()
    await server.engine.end("w1.1", ["local"], grace_seconds=20)
    ended = await server.ended("w1.1")
    assert ended.was_told
    assert time.monotonic() - began < 15
    assert b"began" not in server.log("w1.1")


async def test_the_missing_are_named_when_they_do_not_come_in_time(lab: EngineLab):
    server = await lab.start()
    await lab.launch(
        server, launch_of("echo began", entry=entry("worker-0", meets=("other-1", "other-2"), seconds=0.3))
    )
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.message) == (204, "not reached within 0.3 s: other-1, other-2")
