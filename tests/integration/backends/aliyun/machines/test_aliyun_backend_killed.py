"""A client that is killed in the midst of making machines: the next run finds everything, and makes nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulation import Emulation
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.spec.machine import MachineSpec

# Programs are started and killed: about a second each.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NAMES = ["task0.victim", "task1.victim", "task2.victim"]
PROGRAM = """
import asyncio, sys
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.spec.machine import MachineSpec

async def main():
    backend = AliyunBackend.from_settings(settings.load())
    await backend.acquire(MachineSpec(type="ecs.g7.large"), sys.argv[1:])
    await backend.aclose()

asyncio.run(main())
"""


def run_and_kill(env: dict[str, str], names: list[str], is_time: Callable[[], object]) -> None:
    """Start making machines, and end it without a word at that moment."""
    client = subprocess.Popen([sys.executable, "-c", PROGRAM, *names], env=env)
    try:
        while client.poll() is None and not is_time():
            time.sleep(0.005)
        client.send_signal(signal.SIGKILL)
    finally:
        client.wait()


@pytest.mark.parametrize("moment", ["asked for", "made", "answered"])
async def test_the_next_run_has_each_machine_once_when_a_client_was_killed(
    lab: Emulation, tmp_path: Path, moment: str
) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "USER": "alice", **lab.environ()}
    environ["TRAINYARD_HOME"] = str(tmp_path / "home")
    journal = tmp_path / "home" / "aliyun" / "journal"
    lab.control(
        "POST", "options", {"timing": {"starting": 3600, "visible": 2 if moment == "answered" else 0}}
    )
    lab.control("POST", "faults", {"action": "RunInstances", "kind": "slow", "seconds": 0.5, "times": 2})

    def asked_for() -> bool:
        return any("RunInstances" in path.read_text() for path in journal.glob("ty-*.json"))

    def made() -> bool:
        return bool(lab.control("GET", "state")["instances"])

    try:
        run_and_kill(environ, NAMES, asked_for if moment == "asked for" else made)
        backend = AliyunBackend.from_settings(settings.load(environ))
        wanted = NAMES if moment != "made" else NAMES[:2]
        machines = await backend.acquire(MachineSpec(type="ecs.g7.large"), wanted)
        assert [machine.name for machine in machines] == wanted
        there = [instance["name"] for instance in lab.control("GET", "state")["instances"].values()]
        assert len(there) == len(set(there))
        assert set(wanted) <= set(there) <= set(NAMES)
        # Whatever is there, the list tells.
        assert sorted(machine.name for machine in await backend.machines()) == sorted(there)
        assert not list(journal.glob("*"))
        await backend.aclose()
    finally:
        lab.control("POST", "options", {"timing": {"starting": 0, "visible": 0}})
        lab.control("POST", "clock", {"advance_seconds": 7200})


async def test_nothing_is_made_twice_when_clients_are_killed_again_and_again(
    lab: Emulation, tmp_path: Path
) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "USER": "alice", **lab.environ()}
    environ["TRAINYARD_HOME"] = str(tmp_path / "home")
    lab.control("POST", "options", {"timing": {"starting": 3600}})
    lab.control("POST", "faults", {"action": "*", "kind": "slow", "seconds": 0.05})
    try:
        for calls in (3, 6, 8, 10, 11, 12, 13):
            lab.control("DELETE", "calls")
            run_and_kill(
                environ, NAMES, lambda least=calls: len(lab.control("GET", "calls")["calls"]) >= least
            )
        backend = AliyunBackend.from_settings(settings.load(environ))
        machines = await backend.acquire(MachineSpec(type="ecs.g7.large"), NAMES)
        state = lab.control("GET", "state")
        assert {instance["id"] for instance in state["instances"].values()} == {each.id for each in machines}
        assert len(machines) == 3
        assert len([vpc for vpc in state["vpcs"].values() if vpc["name"] == "ncluster-vpc"]) == 1
        assert not list((tmp_path / "home" / "aliyun" / "journal").glob("*"))
        await backend.aclose()
    finally:
        lab.control("POST", "options", {"timing": {"starting": 0}})
        lab.control("POST", "clock", {"advance_seconds": 7200})
