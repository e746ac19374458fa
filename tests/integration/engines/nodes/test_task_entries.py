"""What comes before a command on a node: tasks that meet, strangers at the gate, and what is left when something dies there."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from engine_lab import EngineLab, alive, kill, launch_of

from trainyard.engines.api import Entry, Peer, end_one
from trainyard.engines.nodes.agent.barrier.barrier_keeper import MissingError
from trainyard.engines.nodes.agent.barrier.barrier_report import Reporter
from trainyard.server.launch.rendezvous import barrier_ports_of, own_address

pytestmark = pytest.mark.slow  # real agents, and tasks that wait for each other
ADDRESS, PORTS = own_address("w1.1", 7), barrier_ports_of("this module")


def entry(name: str, *, meets: tuple[str, ...] = (), reports: bool = False, seconds: float = 60.0) -> Entry:
    """One that keeps a gate of this machine, or reports there."""
    peers = tuple(
        Peer(task=one, names=(one,), address="127.0.0.1") for one in dict.fromkeys(("keeper", name))
    )
    return Entry(
        peers=peers, meets=meets, reports=reports, barrier_ports=PORTS, barrier_address=ADDRESS, token="t" * 64,
        ready_seconds=seconds, env={"MET": "%host:keeper%"},
    )  # fmt: skip


def report(name: str, key: str, seconds: float) -> object:
    """What the gate answers to one who says to be a task; what is wrong where it does not."""
    given = {
        "token": key, "attempt": "w1.1", "barrier_address": ADDRESS, "barrier_ports": PORTS, "peers": [{"task": "keeper"}],
    }  # fmt: skip
    try:
        return Reporter(given, name, {"PORT": "7"}, time.monotonic() + seconds).report()
    except MissingError as error:
        return error.missing


async def test_strangers_learn_nothing_at_the_gate_and_those_who_belong_begin(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of('echo "met at $MET"', entry=entry("worker-0", meets=("other",))))
    for name, key in (("other", "x" * 64), ("nobody", "t" * 64), ("other", "")):
        assert await asyncio.to_thread(report, name, key, 1.0) == ["keeper"]
    answer = await asyncio.to_thread(report, "other", "t" * 64, 20.0)
    assert answer == {"worker-0": {}, "other": {"PORT": "7"}}
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
    await end_one(server.engine, "w1.1", ["local"], grace_seconds=20)
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
