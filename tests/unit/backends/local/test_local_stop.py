"""Stopping a local machine ends every process of it, however it was started, and nobody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from trainyard import settings
from trainyard.backends.local import LocalBackend
from trainyard.lib.errors import UnreachableError
from trainyard.lib.process_tree import ProcessId, find_process, is_alive, send
from trainyard.lib.shell import quote
from trainyard.spec.machine import Machine, MachineSpec, MachineState

PATIENCE_SECONDS = 10.0


@pytest.fixture
async def backend(isolation: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalBackend]:
    monkeypatch.setenv("TRAINYARD_STOP_GRACE", "0.3")
    backend = LocalBackend.from_settings(settings.load())
    yield backend
    await backend.release(await backend.machines())
    await backend.aclose()


@pytest.fixture
async def machine(backend: LocalBackend) -> Machine:
    return (await backend.acquire(MachineSpec(), ["task0.stop"]))[0]


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def under_keeper(machine: Machine, script: str, name: str = "script.sh") -> Path:
    """Hand a script to the machine's keeper, as the session does."""
    path = Path(machine.home) / name
    path.write_text(script)
    with open(Path(machine.home).parent / "requests", "r+b", buffering=0) as fifo:
        fifo.write(os.fsencode(path) + b"\n")
    return path


async def noted(path: Path, count: int = 1) -> list[ProcessId]:
    """The processes whose numbers a script has written, one per line."""
    await eventually(lambda: path.exists() and path.read_text().count("\n") >= count)
    rows = [find_process(int(line)) for line in path.read_text().split()]
    return [row.id for row in rows if row]


DAEMON = "setsid sh -c 'sh -c \"echo \\$\\$ >> pids; exec sleep 3600\" & ' </dev/null >/dev/null 2>&1 &"


async def test_a_daemon_ends_when_its_machine_stops(backend: LocalBackend, machine: Machine) -> None:
    await backend.transport(machine).run(DAEMON)
    (daemon,) = await noted(Path(machine.home) / "pids")
    await backend.stop([machine])
    assert not is_alive(daemon)


async def test_a_daemon_without_environment_ends_when_it_was_started_under_the_keeper(
    backend: LocalBackend, machine: Machine
) -> None:
    await under_keeper(machine, DAEMON.replace("sh -c", "env -i sh -c"))
    (daemon,) = await noted(Path(machine.home) / "pids")
    await backend.stop([machine])
    assert not is_alive(daemon)


async def test_a_daemon_of_an_interactive_shell_in_tmux_ends_at_once_when_its_machine_stops(
    backend: LocalBackend, machine: Machine
) -> None:
    await under_keeper(machine, "tmux -f /dev/null new-session -d 'bash --norc -i'\n")
    transport = backend.transport(machine)

    async def typed(text: str) -> bool:
        return (await transport.run(f"tmux send-keys -l {quote(text)} && tmux send-keys Enter")).status == 0

    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await typed("(env -i setsid sh -c 'echo $$ > pids; exec sleep 3600' &)"):
        assert time.monotonic() < deadline
    (daemon,) = await noted(Path(machine.home) / "pids")
    server = int((await transport.run("tmux display-message -p '#{pid}'")).stdout)
    assert find_process(server)
    await backend.stop([machine])
    assert not is_alive(daemon)
    assert find_process(server) is None


async def test_a_program_may_save_its_work_when_it_listens_to_sigterm(
    backend: LocalBackend, machine: Machine
) -> None:
    script = (
        "trap 'sleep 0.1; echo saved > checkpoint; exit 0' TERM; echo $$ > pids; while :; do sleep 0.01; done"
    )
    process = await backend.transport(machine).spawn(script)
    await noted(Path(machine.home) / "pids")
    await backend.stop([machine])
    assert await process.wait() == 0
    assert (Path(machine.home) / "checkpoint").read_text() == "saved\n"


async def test_a_program_is_killed_after_the_grace_when_it_ignores_sigterm(
    backend: LocalBackend, machine: Machine
) -> None:
    process = await backend.transport(machine).spawn(
        "trap '' TERM HUP; echo $$ > pids; while :; do sleep 0.01; done"
    )
    await noted(Path(machine.home) / "pids")
    started = time.monotonic()
    await backend.stop([machine])
    assert await process.wait() == 128 + 9
    assert time.monotonic() - started >= 0.3


async def test_a_stopped_program_hears_sigterm_when_its_machine_stops(
    backend: LocalBackend, machine: Machine
) -> None:
    script = (
        "trap 'echo heard > heard; exit 0' TERM; echo $$ > pids; kill -STOP $$; while :; do sleep 0.01; done"
    )
    await backend.transport(machine).spawn(script)
    await noted(Path(machine.home) / "pids")
    await backend.stop([machine])
    assert (Path(machine.home) / "heard").exists()


async def test_a_process_that_forks_and_ends_all_the_time_is_caught_when_its_machine_stops(
    backend: LocalBackend, machine: Machine
) -> None:
    hop = "trap '' TERM HUP; echo $$ > last; env -i sh \"$0\" &\n"
    await under_keeper(machine, hop, "hop.sh")
    last = Path(machine.home) / "last"
    await eventually(last.exists)
    await backend.stop([machine])
    seen = last.read_text()
    await asyncio.sleep(0.05)  # a survivor would write a new number every millisecond
    assert last.read_text() == seen


async def test_a_tree_that_grows_is_ended_when_its_machine_stops(
    backend: LocalBackend, machine: Machine
) -> None:
    grow = "trap '' TERM HUP; echo $$ >> pids; while :; do sh -c \"trap '' TERM; exec sleep 0.05\" & sleep 0.002; done"
    await backend.transport(machine).spawn(grow)
    (root,) = await noted(Path(machine.home) / "pids")
    await backend.stop([machine])
    assert not is_alive(root)
    marked = [pid for pid in os.listdir("/proc") if pid.isdigit() and carries(pid, machine)]
    assert marked == []


def carries(pid: str, machine: Machine) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        return (
            f"TRAINYARD_MACHINE={machine.name}:{machine.id}".encode() in environ
            and b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
        )
    except OSError:
        return False


async def test_nobody_else_ends_when_a_machine_stops(backend: LocalBackend, machine: Machine) -> None:
    neighbour = (await backend.acquire(MachineSpec(), ["task0.stop2"]))[0]
    bystander = subprocess.Popen(["sleep", "3600"])
    try:
        running = await backend.transport(neighbour).spawn("exec sleep 3600")
        await backend.stop([machine])
        assert bystander.poll() is None
        assert (await backend.transport(neighbour).run("true")).status == 0
        await running.terminate()
        states = {one.name: one.state for one in await backend.machines()}
        assert states == {"task0.stop": MachineState.STOPPED, "task0.stop2": MachineState.RUNNING}
    finally:
        bystander.kill()
        bystander.wait()


async def test_a_client_survives_when_it_stops_the_machine_it_runs_on(
    backend: LocalBackend, machine: Machine, isolation: Path
) -> None:
    script = f"""
import asyncio, os
from trainyard import settings
from trainyard.backends.local import LocalBackend
async def main():
    backend = LocalBackend.from_settings(settings.load({{**os.environ, "TRAINYARD_HOME": {str(isolation / ".trainyard")!r},
                                                        "TRAINYARD_STOP_GRACE": "0.1"}}))
    await backend.stop(await backend.machines(name="task0.stop"))
    print("survived", (await backend.machines())[0].state)
asyncio.run(main())
"""
    (Path(machine.home) / "client.py").write_text(script)
    done = await backend.transport(machine).run(f"sleep 3600 & exec {sys.executable} client.py")
    assert done.stdout.decode() == "survived stopped\n", done.stderr.decode()


async def test_what_runs_is_ended_when_the_keeper_was_killed_before(
    backend: LocalBackend, machine: Machine
) -> None:
    await under_keeper(machine, DAEMON)
    (daemon,) = await noted(Path(machine.home) / "pids")
    os.kill(int(machine.details["keeper"]), 9)
    await eventually(lambda: find_process(int(machine.details["keeper"])) is None)
    (found,) = await backend.machines()
    assert found.state is MachineState.STOPPED
    await backend.stop([found])
    assert not is_alive(daemon)


async def test_commands_are_refused_with_a_hint_when_the_machine_is_stopped(
    backend: LocalBackend, machine: Machine
) -> None:
    transport = backend.transport(machine)
    await backend.stop([machine])
    with pytest.raises(UnreachableError, match=r"task0.stop.*is stopped.*trainyard start task0.stop"):
        await transport.run("true")
    await backend.start([machine])
    assert (await transport.run("true")).status == 0


async def test_the_stop_is_finished_when_its_client_died_in_the_middle(
    backend: LocalBackend, machine: Machine
) -> None:
    script = "trap '' TERM HUP; echo $$ > pids; while :; do sleep 0.01; done"
    await backend.transport(machine).spawn(script)
    (stubborn,) = await noted(Path(machine.home) / "pids")
    stopping = asyncio.ensure_future(backend.stop([machine]))
    while (await backend.machines())[0].state is MachineState.RUNNING:
        await asyncio.sleep(0)
    assert (await backend.machines())[0].state is MachineState.STOPPING
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert is_alive(stubborn)
    (again,) = await backend.acquire(MachineSpec(), [machine.name])
    assert again.state is MachineState.RUNNING
    assert not is_alive(stubborn)


def test_a_stranger_is_spared_when_it_got_the_number_of_a_dead_process() -> None:
    bystander = subprocess.Popen(["sleep", "3600"])
    try:
        row = find_process(bystander.pid)
        assert row
        assert send(ProcessId(row.id.pid, row.id.start - 1), 9)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
