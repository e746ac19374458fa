"""One node, nothing broken: tasks run once, are told of, end whole, and leave nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from engine_lab import EngineLab, alive, launch_of

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
from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError, UnreachableError
from trainyard.transport.api import TerminalSize, read_all


async def test_a_task_is_told_from_its_start_to_its_last_byte(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo hello; echo world >&2; exit 3"))
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.signal, ended.message) == (3, 0, "")
    mine = [each for each in server.seen if not isinstance(each, NodeSeen | NodeLost)]  # a busy node is late
    assert [type(each) for each in mine] == [TaskStarted, TaskEnded, TaskCleared]
    assert server.log("w1.1") == b"hello\nworld\n"
    assert mine[-1] == TaskCleared("w1.1", "worker-0", 12)


async def test_a_task_has_its_environment_folder_and_devices_only(lab: EngineLab):
    server = await lab.start()
    hostile = "a b'c\"d\n$(touch pwned)`e`\\f;&*中文"
    command = 'printf "%s|" "$X" "$CUDA_VISIBLE_DEVICES" "$ASCEND_RT_VISIBLE_DEVICES" "$TRAINYARD_TASK" "$TRAINYARD_USER"; pwd'
    await lab.launch(server, launch_of(command, env={"X": hostile}, devices=(1, 3), device_type="A100"))
    assert (await server.ended("w1.1")).exit_code == 0
    folder = os.path.realpath(lab.root() / "tasks" / "w1.1" / "worker-0" / "work")
    assert server.log("w1.1").decode() == f"{hostile}|1,3||worker-0|o'neil|{folder}\n"
    await lab.launch(server, launch_of(command, "w2.1", devices=(0,), device_type="Ascend 910B"))
    await server.ended("w2.1")
    assert server.log("w2.1").startswith(b"||0|worker-0|")
    await lab.launch(
        server, launch_of("echo [$CUDA_VISIBLE_DEVICES]; cat; pwd", "w3.1", working_dir=f"sub {hostile}/deep")
    )
    await server.ended("w3.1")
    assert server.log("w3.1").decode() == f"[]\n{os.path.realpath(lab.home / f'sub {hostile}' / 'deep')}\n"


async def test_a_command_of_a_megabyte_and_binary_output_are_exact(lab: EngineLab):
    server = await lab.start()
    long = "x=" + "y" * 1_000_000 + "\necho ${#x}"
    await lab.launch(server, launch_of(long))
    await server.ended("w1.1")
    assert server.log("w1.1") == b"1000000\n"
    await lab.launch(
        server, launch_of(r"for i in 0 1 2 3 377; do printf '\'$i'\r\n\000'; done; printf no-newline", "w2.1")
    )
    await server.ended("w2.1")
    want = b"".join(bytes([number]) + b"\r\n\0" for number in (0, 1, 2, 3, 255)) + b"no-newline"
    assert server.log("w2.1") == want


async def test_output_stays_when_a_script_opens_its_standard_error_anew(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo one; echo two > /dev/stderr; echo three > /dev/stdout"))
    await server.ended("w1.1")
    assert server.log("w1.1") == b"one\ntwo\nthree\n"


async def test_a_task_runs_once_when_it_is_launched_twice(lab: EngineLab):
    server = await lab.start()
    launch = launch_of("echo $$ >> ~/runs; sleep 0.1")
    await lab.launch(server, launch)
    await lab.launch(server, launch)
    await server.ended("w1.1")
    await lab.launch(server, launch)
    assert len((lab.home / "runs").read_text().split()) == 1
    assert len(server.find(TaskEnded)) == 1


async def test_a_launch_is_refused_when_its_attempt_was_ended_before(lab: EngineLab):
    server = await lab.start()
    assert await end_one(server.engine, "w1.1", ["local"], grace_seconds=1) == {"local": frozenset()}
    with pytest.raises(ConflictError):
        await lab.launch(server, launch_of("touch ~/ran"))
    assert not (lab.home / "ran").exists()
    await server.engine.forget(["w1.1"], ["local"])
    with pytest.raises(ConflictError):  # an order that comes late
        await lab.launch(server, launch_of("touch ~/ran"))
    await lab.launch(server, launch_of("true", "w1.2"))
    await server.ended("w1.2")


async def test_names_and_texts_that_no_node_can_take_are_refused(lab: EngineLab):
    server = await lab.start()
    for launch in (
        launch_of("true", "../../x.1"),
        launch_of("a\0b"),
        launch_of("true", env={"A=B": "c"}),
        launch_of("true", env={"A": "b\0c"}),
    ):
        with pytest.raises(InvalidError):
            await launch_one(server.engine, launch)
    with pytest.raises(UnreachableError, match="nowhere"):
        await launch_one(server.engine, launch_of("true", nodes=("nowhere",)))


async def test_a_task_is_asked_first_and_killed_when_its_grace_is_over(lab: EngineLab):
    server = await lab.start()
    await lab.launch(
        server, launch_of("trap 'echo saved; exit 7' TERM; echo up; while :; do sleep 0.05; done")
    )
    await lab.launch(server, launch_of("trap '' TERM; echo up; while :; do sleep 0.05; done", "w2.1"))
    await server.until(lambda: server.log("w1.1") and server.log("w2.1"), "both are up")
    assert await end_one(server.engine, "w1.1", ["local"], grace_seconds=20) == {
        "local": frozenset({"worker-0"})
    }
    await end_one(server.engine, "w2.1", ["local"], grace_seconds=100)
    ended = await server.ended("w1.1")
    assert ended.exit_code == 7
    assert server.log("w1.1").endswith(b"saved\n")
    assert not server.find(TaskEnded, "w2.1")
    await end_one(server.engine, "w2.1", ["local"], grace_seconds=0.2)  # the shorter grace wins
    ended = await server.ended("w2.1")
    assert (ended.exit_code, ended.signal) == (137, 9)


DAEMON = r"""
python3 - <<'PYTHON' &
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for number in range(3, 64):
    try: os.close(number)
    except OSError: pass
null = os.open('/dev/null', os.O_RDWR)
for number in (0, 1, 2): os.dup2(null, number)
os.environ.clear()
with open('daemon.new', 'w') as file: file.write(str(os.getpid()))
os.rename('daemon.new', 'daemon.pid')
time.sleep(1000)
PYTHON
while [ ! -e daemon.pid ]; do sleep 0.02; done
"""


@pytest.mark.slow  # the daemon refuses to go until the grace is over
async def test_daemons_that_forked_twice_end_with_the_task(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of(DAEMON + "exit 4", grace=0.5))
    ended = await server.ended("w1.1")
    assert ended.exit_code == 4
    pid = int((lab.root() / "tasks/w1.1/worker-0/work/daemon.pid").read_text())
    assert not alive(pid)
    await lab.launch(server, launch_of(DAEMON + "sleep 1000", "w2.1"))
    file = lab.root() / "tasks/w2.1/worker-0/work/daemon.pid"
    await server.until(file.exists, "the daemon is up")
    pid = int(file.read_text())
    assert alive(pid)
    await end_one(server.engine, "w2.1", ["local"], grace_seconds=0.3)
    await server.ended("w2.1")
    assert not alive(pid)


async def test_a_working_folder_that_cannot_be_is_said_in_the_log(lab: EngineLab):
    (lab.home / "file").write_text("")
    server = await lab.start()
    await lab.launch(server, launch_of("true", working_dir="file/sub"))
    assert (await server.ended("w1.1")).exit_code == 126
    assert b"Not a directory" in server.log("w1.1")


async def test_nothing_is_kept_when_an_attempt_is_forgotten(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo kept > file"))
    await server.ended("w1.1")
    await server.engine.forget(["w1.1"], ["local"])
    await server.engine.forget(["w1.1"], ["local"])
    assert not (lab.root() / "tasks" / "w1.1").exists()
    await server.until(lambda: not os.listdir(lab.root() / "trash"), "the trash is empty")
    # What runs is not forgotten.
    await lab.launch(server, launch_of("sleep 100", "w2.1"))
    await server.see(TaskStarted, "w2.1")
    await server.engine.forget(["w2.1"], ["local"])
    assert (lab.root() / "tasks" / "w2.1").exists()


async def test_a_command_runs_beside_a_task_and_ends_with_it(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo data > file; echo up; sleep 100", env={"SECRET": "s'3\n"}))
    await server.until(lambda: server.log("w1.1"), "it is up")
    process = await server.engine.exec("w1.1", "worker-0", "local", 'cat file; printf %s "$SECRET"', None)
    assert await read_all(process) == b"data\ns'3\n"
    assert await process.wait() == 0
    shell = await server.engine.exec("w1.1", "worker-0", "local", "", TerminalSize(80, 24))
    await shell.write(b"echo $((6*7))-$TRAINYARD_TASK\n")
    seen = b""
    async for piece in shell.output():
        seen += piece
        if b"42-worker-0" in seen:
            break
    await end_one(server.engine, "w1.1", ["local"], grace_seconds=0)
    await server.ended("w1.1")
    assert await shell.wait() != 0
    with pytest.raises(NotFoundError):
        await server.engine.exec("w1.1", "worker-0", "local", "true", None)


async def test_a_task_that_has_ended_is_entered_until_it_is_forgotten(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo data > file; exit 3", env={"WORD": "it is"}))
    await server.see(TaskCleared, "w1.1")
    process = await server.engine.exec("w1.1", "worker-0", "local", 'cat file; printf %s "$WORD"', None)
    assert (await read_all(process), await process.wait()) == (b"data\nit is", 0)
    shell = await server.engine.exec(
        "w1.1", "worker-0", "local", "echo in; trap '' TERM HUP; sleep 100; :", None
    )
    async for piece in shell.output():
        if b"in" in piece:
            break
    await server.engine.forget(["w1.1"], ["local"])
    assert await shell.wait() != 0, "nothing stays when its places are free"
    with pytest.raises(NotFoundError):
        await server.engine.exec("w1.1", "worker-0", "local", "true", None)


async def test_a_task_that_the_node_does_not_have_is_unknown(lab: EngineLab):
    server = await lab.start()
    await server.engine.remove_node("local")
    server.seen.clear()
    server.engine.expect("local", [("gone.1", "worker-0"), ("gone.1", "worker-1")])
    await server.engine.add_node(NodeAddress(name="local"))
    await server.see(NodeSeen)
    assert {each.task for each in server.find(TaskUnknown, "gone.1")} == {"worker-0", "worker-1"}


async def test_facts_of_the_node_are_found_out(lab: EngineLab):
    server = await lab.start()
    (seen,) = server.find(NodeSeen)
    facts = seen.facts
    assert facts.cpu_milli >= 1000
    assert facts.memory_mib > 100
    assert 0 < facts.disk_free_mib <= facts.disk_total_mib
    assert abs(facts.clock_skew_seconds) < 5
    assert facts.python.startswith("3.")
    assert seen.incarnation == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert oct(lab.root().stat().st_mode & 0o777) == "0o700"


async def test_disk_and_clock_of_a_node_are_looked_at_again_and_again(lab: EngineLab, monkeypatch):
    from dataclasses import replace

    import engine_lab

    monkeypatch.setattr(engine_lab, "QUICK", replace(engine_lab.QUICK, refresh=0.1))
    server = await lab.start()
    await server.until(lambda: len(server.find(NodeSeen)) >= 3, "seen three times")
    assert len({each.incarnation for each in server.find(NodeSeen)}) == 1
