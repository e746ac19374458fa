"""One node, and everything that can die on the way to it: the agent, a supervisor, the relay, the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from engine_lab import EngineLab, MemorySink, alive, kill, launch_of

from trainyard.engines.api import (
    NodeAddress,
    NodeLost,
    NodeSeen,
    TaskCleared,
    TaskEnded,
    TaskStarted,
    TaskUnknown,
    end_one,
    launch_one,
)
from trainyard.engines.nodes import agent_bundle as bundle_module
from trainyard.engines.nodes.agent_bundle import bundle
from trainyard.lib.errors import UnreachableError
from trainyard.spec.exit_reasons import ExitReason

COUNT = "i=0; while [ $i -lt {0} ]; do echo line $i; i=$((i+1)); sleep 0.01; done; exit 5"


def counted(lines: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(lines))


async def test_a_task_runs_on_and_is_found_again_when_the_agent_is_killed(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of(COUNT.format(60)))
    await server.until(lambda: server.log("w1.1"), "output")
    before = lab.agent_pid()
    kill(before)
    ended = await server.ended("w1.1")
    assert ended.exit_code == 5
    assert server.log("w1.1") == counted(60)
    assert lab.agent_pid() not in {0, before}


async def test_a_task_that_ended_without_an_agent_is_told_by_the_next_one(lab: EngineLab):
    server = await lab.start()
    await lab.launch(
        server, launch_of("echo up; while [ ! -e ~/go ]; do sleep 0.01; done; echo done; exit 9")
    )
    await server.until(lambda: server.log("w1.1"), "it is up")
    agent, supervisor = lab.agent_pid(), lab.supervisor_pid("w1.1")
    await lab.stop(server, leaves=False)
    kill(agent)
    (lab.home / "go").write_text("")
    async with asyncio.timeout(10):
        while alive(supervisor):
            await asyncio.sleep(0.01)
    server = await lab.start(epoch=2)
    assert (await server.ended("w1.1")).exit_code == 9
    assert server.log("w1.1") == b"up\ndone\n"


async def test_what_is_left_is_ended_when_a_supervisor_is_killed(lab: EngineLab):
    server = await lab.start()
    command = "(trap '' TERM; setsid sh -c 'echo $$ > ~/one; exec sleep 1000') & env -i sh -c 'echo $$ > two; exec sleep 1000' & echo up; wait"
    await lab.launch(server, launch_of(command))
    one, two = lab.home / "one", lab.root() / "tasks/w1.1/worker-0/work/two"
    await server.until(
        lambda: one.exists() and two.exists() and one.read_text() and two.read_text(), "both are up"
    )
    kill(lab.supervisor_pid("w1.1"))
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.signal) == (137, 9)
    assert "supervisor" in ended.message
    assert not alive(int(one.read_text()))
    assert not alive(int(two.read_text()))


async def test_what_is_left_is_ended_when_supervisor_and_agent_are_killed(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("sleep 1000 & echo $! > ~/one; echo up; wait"))
    await server.until(lambda: server.log("w1.1"), "it is up")
    kill(lab.agent_pid())
    kill(lab.supervisor_pid("w1.1"))
    assert (await server.ended("w1.1")).exit_code == 137
    assert not alive(int((lab.home / "one").read_text()))


async def test_nothing_is_lost_when_the_relay_is_killed_again_and_again(lab: EngineLab):
    server = await lab.start()
    command = (
        "i=0; while [ ! -e ~/go ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo $i > ~/count; exit 5"
    )
    await lab.launch(server, launch_of(command))
    for _ in range(4):
        at = len(server.log("w1.1"))
        await server.until(lambda at=at: len(server.log("w1.1")) > at + 50, "more output")
        for pid in lab.relay_pids():
            kill(pid)
    (lab.home / "go").write_text("")
    assert (await server.ended("w1.1")).exit_code == 5
    assert server.log("w1.1") == counted(int((lab.home / "count").read_text()))
    assert not server.find(NodeLost)


async def test_a_new_server_is_told_everything_again_until_it_forgets(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo short; exit 2"))
    await lab.launch(server, launch_of(COUNT.format(60), "w2.1"))
    await server.ended("w1.1")
    await server.until(lambda: server.log("w2.1"), "output")
    await lab.stop(server, leaves=False)
    server = await lab.start(epoch=2)
    assert (await server.ended("w1.1")).exit_code == 2
    assert (await server.ended("w2.1")).exit_code == 5
    assert server.log("w1.1") == b"short\n"
    assert server.log("w2.1") == counted(60)
    await server.engine.forget(["w1.1", "w2.1"], ["local"])
    await lab.stop(server, leaves=True)
    server = await lab.start(epoch=3)
    assert not server.find(TaskEnded)
    assert not server.find(TaskUnknown)


async def test_the_beginning_is_sent_again_when_the_sink_has_lost_it(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo one; echo two"))
    await server.ended("w1.1")
    await lab.stop(server, leaves=False)
    server = await lab.start(epoch=2, sink=MemorySink())
    await server.ended("w1.1")
    assert server.log("w1.1") == b"one\ntwo\n"


async def test_an_older_server_is_refused_by_a_node_that_knows_a_newer_one(lab: EngineLab):
    old = await lab.start(epoch=5)
    new = await lab.start(epoch=6)
    # A busy machine may be told to be lost before its first connection, too: that is another reason.
    await old.until(lambda: any(lost.is_refused for lost in old.find(NodeLost)), "the node's refusal")
    refused = next(lost for lost in old.find(NodeLost) if lost.is_refused)
    assert "newer" in refused.reason
    with pytest.raises(UnreachableError):
        await launch_one(old.engine, launch_of("touch ~/ran"))
    with pytest.raises(UnreachableError):
        await end_one(old.engine, "w1.1", ["local"], grace_seconds=0)
    await lab.launch(new, launch_of("true"))
    await new.ended("w1.1")
    assert not (lab.home / "ran").exists()


async def test_a_task_starts_once_when_the_agent_died_between_taking_and_starting_it(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo run >> ~/runs"))
    await server.ended("w1.1")
    await lab.stop(server)
    # As if the agent had been killed after it wrote the order, and before it forked.
    folder = lab.root() / "tasks" / "w1.1" / "worker-0"
    (folder / "state").write_bytes(b"")
    half = lab.root() / "tasks" / "w2.1" / "worker-0"
    half.mkdir(parents=True)
    (half / "command").write_text("touch ~/never")
    server = await lab.start(epoch=2)
    await server.ended("w1.1")
    assert (lab.home / "runs").read_text() == "run\nrun\n"
    assert not half.exists()


async def test_a_task_of_an_earlier_boot_is_unknown_and_one_that_had_ended_is_not(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo bye; exit 3"))
    await lab.launch(server, launch_of("echo cut; sleep 100", "w2.1"))
    await server.ended("w1.1")
    await server.until(lambda: server.log("w2.1"), "output")
    await end_one(server.engine, "w2.1", ["local"], grace_seconds=0)
    await server.ended("w2.1")
    await lab.stop(server)
    for attempt in ("w1.1", "w2.1"):
        folder = lab.root() / "tasks" / attempt / "worker-0"
        order = json.loads((folder / "task.json").read_text())
        (folder / "task.json").write_text(json.dumps({**order, "boot": "another"}))
    # The second one was in the middle of its life when the power went.
    state = lab.root() / "tasks" / "w2.1" / "worker-0" / "state"
    state.write_text("".join(line + "\n" for line in state.read_text().splitlines()[:2]))
    (lab.root() / "ended" / "w2.1").unlink()
    server = await lab.start(epoch=2, sink=MemorySink())
    assert (await server.ended("w1.1")).exit_code == 3
    unknown = await server.see(TaskUnknown, "w2.1")
    assert isinstance(unknown, TaskUnknown)
    assert server.log("w2.1") == b"cut\n"
    assert not server.find(TaskStarted, "w2.1")


@pytest.mark.slow  # a fence takes a second to fall
async def test_a_fenced_node_ends_its_tasks_when_no_server_is_heard(lab: EngineLab):
    server = await lab.start(NodeAddress(name="local", fence_seconds=1.0))
    await lab.launch(server, launch_of("echo $$ > ~/pid; sleep 1000", grace=0.2))
    await server.see(TaskStarted, "w1.1")
    await server.until(lambda: (lab.home / "pid").exists() and (lab.home / "pid").read_text(), "it is up")
    pid, agent = int((lab.home / "pid").read_text()), lab.agent_pid()
    # Pings keep the fence open.
    await asyncio.sleep(1.5)
    assert alive(pid)
    await lab.stop(server, leaves=False)
    kill(agent)  # the fence does not need it
    async with asyncio.timeout(20):
        while alive(pid):
            await asyncio.sleep(0.02)
    server = await lab.start(epoch=2)
    ended = await server.ended("w1.1")
    assert ended.is_fenced
    assert ended.reason is ExitReason.FENCED
    assert "heard no server" in ended.message


@pytest.mark.slow  # waits longer than the fence
async def test_tasks_run_on_when_the_server_said_that_it_leaves(lab: EngineLab):
    server = await lab.start(NodeAddress(name="local", fence_seconds=1.0))
    await lab.launch(server, launch_of("echo up; sleep 1000"))
    await server.until(lambda: server.log("w1.1"), "it is up")
    supervisor = lab.supervisor_pid("w1.1")
    await lab.stop(server, leaves=True)
    async with asyncio.timeout(10):
        while lab.agent_pid():
            await asyncio.sleep(0.01)
    await asyncio.sleep(2)
    assert alive(supervisor)
    server = await lab.start(epoch=2)
    await server.see(TaskStarted, "w1.1")
    assert not server.find(TaskEnded)


async def test_a_new_program_replaces_the_old_one_and_touches_no_task(lab: EngineLab, monkeypatch):
    server = await lab.start()
    await lab.launch(server, launch_of(COUNT.format(60)))
    await server.until(lambda: server.log("w1.1"), "output")
    old = lab.agent_pid()
    await lab.stop(server, leaves=False)
    monkeypatch.setattr(bundle_module, "_MAIN", bundle_module._MAIN + "# newer\n")
    bundle.cache_clear()
    try:
        server = await lab.start(epoch=2)
        (seen,) = server.find(NodeSeen)
        assert seen.facts.agent == bundle().version
        assert lab.agent_pid() != old
        assert (await server.ended("w1.1")).exit_code == 5
        assert server.log("w1.1") == counted(60)
        assert [path.name for path in lab.root().glob("agent-*.pyz")] == [bundle().file_name]
    finally:
        monkeypatch.undo()
        bundle.cache_clear()


async def test_a_node_is_lost_when_its_agent_is_silent_and_seen_when_it_speaks_again(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo up; while [ ! -e ~/go ]; do sleep 0.01; done; exit 6"))
    await server.until(lambda: server.log("w1.1"), "it is up")
    agent = lab.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    try:
        await server.see(NodeLost)
        with pytest.raises(UnreachableError, match="local"):
            await server.engine.forget(["w1.1"], ["local"])
    finally:
        os.kill(agent, signal.SIGCONT)
    await server.until(lambda: len(server.find(NodeSeen)) == 2, "seen again")
    assert not server.find(TaskEnded)
    (lab.home / "go").write_text("")
    assert (await server.ended("w1.1")).exit_code == 6


async def test_frames_that_make_no_sense_do_not_hurt_the_agent(lab: EngineLab):
    import socket

    server = await lab.start()
    os.chdir(lab.root())  # the path is longer than a socket's may be
    try:
        for noise in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"[]\n",
            b'{"op":"hello"}\n',
            b'{"op":"launch"}\n',
            b"\0" * 70000,
        ):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect("socket")
                stranger.sendall(noise)
                stranger.settimeout(0.2)
                with pytest.raises(OSError) if noise.startswith((b'{"op":"la', b"\0")) else _nothing():
                    assert stranger.recv(100) == b""
    finally:
        os.chdir("/")
    await lab.launch(server, launch_of("true"))
    await server.ended("w1.1")
    assert len(server.find(NodeSeen)) == 1


def _nothing():
    from contextlib import nullcontext

    return nullcontext()


@pytest.mark.slow  # three hundred processes
async def test_three_hundred_tasks_at_once_end_once_each(lab: EngineLab):
    server = await lab.start()
    launches = [launch_of(f"echo {number}; exit {number % 7}", f"w{number}.1") for number in range(300)]
    lab._attempts.update(each.attempt_id for each in launches)
    results = await server.engine.launch(launches)
    assert set(results.values()) == {None}
    await server.until(lambda: len(server.find(TaskCleared)) == 300, "all are cleared")
    codes = {each.attempt_id: each.exit_code for each in server.find(TaskEnded)}
    assert codes == {f"w{number}.1": number % 7 for number in range(300)}
    assert len(server.find(TaskEnded)) == 300
    assert all(server.log(f"w{number}.1") == b"%d\n" % number for number in range(300))


@pytest.mark.slow  # two hundred megabytes
async def test_a_log_of_two_hundred_megabytes_is_exact_and_the_nodes_disk_stays_small(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("yes 0123456789abcdef | head -c 200000000; head -c 1000 /dev/zero"))
    log = lab.root() / "tasks" / "w1.1" / "worker-0" / "log"
    most = 0
    while not server.find(TaskCleared):
        most = max(most, log.stat().st_blocks * 512 if log.exists() else 0)
        await asyncio.sleep(0.01)
    assert (await server.ended("w1.1")).exit_code == 0
    text = server.log("w1.1")
    assert len(text) == 200_001_000
    line = b"0123456789abcdef\n"
    assert text[:200_000_000] == (line * (200_000_000 // len(line) + 1))[:200_000_000]
    assert log.stat().st_blocks * 512 < 16 * 2**20


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
async def test_a_full_disk_is_said_and_loses_no_status(lab: EngineLab, tmp_path: Path):
    import subprocess

    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=True)
    home = lab.home
    try:
        lab.home = small
        server = await lab.start()
        await lab.launch(
            server,
            launch_of(
                "yes | head -c 100000; head -c 5000000 /dev/zero > fill; yes | head -c 3000000; exit 8"
            ),
        )
        ended = await server.ended("w1.1")
        assert ended.exit_code == 8
        assert "disk" in ended.message
        assert server.log("w1.1").startswith(b"y\n" * 1000)
        await lab.aclose()
    finally:
        lab.home = home
        lab._attempts.clear()
        subprocess.run(["umount", "-l", str(small)], check=True)


async def test_what_runs_is_ended_when_somebody_removed_its_files(lab: EngineLab):
    import shutil

    server = await lab.start()
    await lab.launch(server, launch_of("echo $$ > ~/one; echo up; sleep 1000"))
    await lab.launch(server, launch_of("echo $$ > ~/two; echo up; sleep 1000", "w2.1"))
    await server.until(lambda: server.log("w1.1") and server.log("w2.1"), "both are up")
    one, two = (int((lab.home / name).read_text()) for name in ("one", "two"))
    shutil.rmtree(lab.root() / "tasks" / "w1.1")
    await server.see(TaskUnknown, "w1.1")
    assert not alive(one)
    assert alive(two)
    await lab.stop(server, leaves=True)
    shutil.rmtree(lab.root() / "tasks" / "w2.1")
    server = await lab.start(epoch=2, sees=False)
    server.engine.expect("local", [("w2.1", "worker-0")])
    await server.see(TaskUnknown, "w2.1")
    assert not alive(two)


async def test_tasks_get_the_usual_mask_for_new_files(lab: EngineLab):
    before = os.umask(0o022)
    try:
        server = await lab.start()
        await lab.launch(server, launch_of("umask; touch file; stat -c %a file"))
        await server.ended("w1.1")
    finally:
        os.umask(before)
    assert server.log("w1.1") == b"0022\n644\n"
    secret = [path for path in lab.root().rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert {path.name for path in secret} <= {"file", "contact"}
