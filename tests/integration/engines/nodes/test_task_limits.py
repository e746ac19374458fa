"""Limits of memory and processor time, kept by real groups of the kernel."""

from __future__ import annotations

import binascii
import os
import shutil
from pathlib import Path

import pytest
from engine_lab import EngineLab, launch_of

from trainyard.engines.api import TaskNoted, View, end_one
from trainyard.engines.nodes.agent.sandbox.cgroups import CPU, MEMORY, PIDS, Trees
from trainyard.spec.exit_reasons import ExitReason

TREES = Trees()
pytestmark = [
    pytest.mark.skipif(not {CPU, MEMORY} <= TREES.folders.keys(), reason="no groups can be made here"),
    pytest.mark.slow,  # real agents, and a program that fills memory
]

EATER = "python3 -c \"import time; print('eats', flush=True); x = bytearray({} << 20); print('full', flush=True); time.sleep({})\""


def groups(lab: EngineLab) -> list[str]:
    """Those of the test's own node: another run, also one that was killed, may have some beside."""
    mark = f"p1.local@{binascii.crc32(os.fsencode(lab.root())):08x}."
    return [name for folder in TREES.folders.values() for name in os.listdir(folder) if name.startswith(mark)]


@pytest.mark.parametrize("view", [View(), None] if shutil.which("bwrap") else [None])
async def test_only_the_task_that_uses_more_memory_than_its_own_is_killed(lab: EngineLab, view: View | None):
    server = await lab.start()
    await lab.launch(server, launch_of(EATER.format(40, 60), "w2.1", memory_mib=128, view=view))
    await server.until(lambda: b"full" in server.log("w2.1"))
    await lab.launch(server, launch_of(f"exec {EATER.format(300, 0)}", memory_mib=128, view=view))
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.signal) == (137, 9)
    assert ended.message == "out of memory: it used more than its 128 MiB"
    assert ended.reason is ExitReason.OUT_OF_MEMORY
    assert b"full" not in server.log("w1.1")
    assert not server.find(type(ended), "w2.1")
    await end_one(server.engine, "w2.1", ["local"], grace_seconds=0)
    await server.ended("w2.1")
    assert not groups(lab)


async def test_a_child_that_was_killed_for_memory_is_told_of_when_its_task_fails_by_it(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of(f"{EATER.format(300, 0)} || exit 3", memory_mib=64))
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.message) == (3, "out of memory: it used more than its 64 MiB")
    await lab.launch(server, launch_of(f"{EATER.format(300, 0)} || true", "w2.1", memory_mib=64))
    forgiven = await server.ended("w2.1")
    assert (forgiven.exit_code, forgiven.message, forgiven.reason) == (0, "", ExitReason.EXITED)


async def test_a_task_gets_no_more_of_the_processor_than_its_own(lab: EngineLab):
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    server = await lab.start()
    burn = (
        'python3 -c "import time; spent = time.process_time(); end = time.monotonic() + 1.5\n'
        'while time.monotonic() < end: pass\nprint(time.process_time() - spent)"'
    )
    await lab.launch(server, launch_of(burn, cpu_milli=200, view=View()))
    assert (await server.ended("w1.1")).exit_code == 0
    assert float(server.log("w1.1")) < 0.75  # 0.3, and the slice in which its time ran out


FORKER = """python3 -c "
import os, time
made = []
try:
    while len(made) < {}:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        made.append(pid)
except OSError as error:
    print(error.strerror, len(made) < {})
for pid in made:
    os.kill(pid, 9)
raise SystemExit({})
"
"""


@pytest.mark.skipif(PIDS not in TREES.folders, reason="no groups count processes here")
async def test_a_task_starts_no_more_processes_than_it_may_and_is_told_so(lab: EngineLab):
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    server = await lab.start()
    for attempt, status in (("w1.1", 0), ("w2.1", 3)):
        command = FORKER.format(100, 40, status)
        await lab.launch(server, launch_of(command, attempt, view=View(processes=40)))
        ended = await server.ended(attempt)
        message = "it wanted more than its 40 processes and threads" if status else ""
        assert (ended.exit_code, ended.message) == (status, message), server.log(attempt)
        assert ended.reason is (ExitReason.TOO_MANY_PROCESSES if status else ExitReason.EXITED)
        assert server.log(attempt) == b"Resource temporarily unavailable True\n"
        assert [one.code for one in server.find(TaskNoted, attempt)] == ["processes_limited"]  # type: ignore[attr-defined]
    await lab.launch(server, launch_of(FORKER.format(100, 40, 0), "w3.1", view=View()))
    assert (await server.ended("w3.1")).exit_code == 0
    assert (server.log("w3.1"), server.find(TaskNoted, "w3.1")) == (b"", [])
    assert not groups(lab)


async def test_a_command_beside_a_task_counts_with_it(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo on; sleep 60", memory_mib=64, view=View()))
    await server.until(lambda: b"on" in server.log("w1.1"))
    process = await server.engine.exec("w1.1", "worker-0", "local", EATER.format(300, 0), None)
    assert await process.wait() == 137


async def test_groups_of_the_dead_are_removed_when_the_agent_comes_back(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo on; sleep 60", memory_mib=64))
    await server.until(lambda: b"on" in server.log("w1.1"))
    assert groups(lab)
    os.kill(lab.agent_pid(), 9)
    os.kill(lab.supervisor_pid("w1.1"), 9)
    await server.ended("w1.1")
    assert not groups(lab)


def test_one_tree_for_all_is_used_where_there_is_one(tmp_path: Path):
    """The files of version 2, as far as a folder can have them; test_other_kernel.py has a kernel with them."""
    own = tmp_path / "own"
    own.write_text("0::/user.slice\n")
    for folder in (tmp_path, tmp_path / "user.slice", tmp_path / "trainyard"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text("cpu memory pids")
    (tmp_path / "user.slice" / "cgroup.procs").write_text("1\n")
    trees = Trees(str(tmp_path), str(own))
    assert trees.version == 2
    assert trees.folders[MEMORY] == str(tmp_path / "trainyard")
    group = trees.group("a")
    folder = tmp_path / "trainyard" / "a"
    folder.mkdir()
    for name in ("memory.max", "memory.swap.max", "cpu.max", "pids.max", "cgroup.procs"):
        (folder / name).touch()
    group.limit(64, 1500, 40)
    group.enter(os.getpid())
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n")
    assert (folder / "memory.max").read_text() == str(64 << 20)
    assert (folder / "cpu.max").read_text() == "150000 100000"
    assert (folder / "cgroup.procs").read_text() == str(os.getpid())
    assert group.kills() == 2
    (folder / "pids.events").write_text("max 5\n")
    assert (folder / "pids.max").read_text() == "40"
    assert group.refusals() == 5
