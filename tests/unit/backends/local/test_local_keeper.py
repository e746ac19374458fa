"""The keeper of a local machine: runs what it is handed, collects the dead, needs nobody."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from trainyard import settings
from trainyard.backends.local import LocalBackend
from trainyard.backends.local import keeper_start as keepers_module
from trainyard.lib.process_tree import find_process
from trainyard.spec.machine import Machine, MachineSpec

PATIENCE_SECONDS = 10.0
KEEPER = Path(keepers_module.__file__).with_name("keeper.sh")


@pytest.fixture
async def backend(isolation: Path, hostile_path: Path) -> AsyncIterator[LocalBackend]:
    environ = {**os.environ, "TRAINYARD_HOME": str(hostile_path), "TRAINYARD_STOP_GRACE": "0.3"}
    backend = LocalBackend.from_settings(settings.load(environ))
    yield backend
    await backend.release(await backend.machines())
    await backend.aclose()


@pytest.fixture
async def machine(backend: LocalBackend) -> Machine:
    return (await backend.acquire(MachineSpec(), ["task0.kept"]))[0]


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def test_a_script_runs_in_the_machine_when_its_path_is_sent(
    backend: LocalBackend, machine: Machine
) -> None:
    """The folder's path holds a newline, quotes and `$()`."""
    transport = backend.transport(machine)
    await transport.run(
        "mkdir sub; cat > sub/start.sh", stdin=b'pwd; echo "$TRAINYARD_MACHINE"; cat; echo finished >&2\n'
    )
    sent = await transport.run('printf "%s\\n" "$PWD/sub/start.sh" 1<> "$TRAINYARD_KEEPER"')
    assert sent.status == 0
    log = Path(machine.home) / "sub" / "start.log"
    await eventually(lambda: log.exists() and log.read_text().endswith("finished\n"))
    assert log.read_text() == f"{machine.home}\ntask0.kept:{machine.id}\nfinished\n"


async def test_scripts_are_children_of_the_keeper_and_so_are_their_orphans(
    backend: LocalBackend, machine: Machine
) -> None:
    script = Path(machine.home) / "orphan.sh"
    script.write_text("(env -i setsid sh -c 'echo $$ > pid; exec sleep 3600' &)\n")
    with open(Path(machine.home).parent / "requests", "r+b", buffering=0) as fifo:
        fifo.write(os.fsencode(script) + b"\n")
    pid = Path(machine.home) / "pid"
    await eventually(lambda: pid.exists() and pid.read_text().endswith("\n"))
    orphan = find_process(int(pid.read_text()))
    assert orphan is not None
    await eventually(lambda: find_process(orphan.id.pid).parent == int(machine.details["keeper"]))


async def test_the_keeper_holds_nothing_of_the_client_when_it_runs(machine: Machine) -> None:
    keeper = machine.details["keeper"]
    targets = {os.readlink(entry) for entry in os.scandir(f"/proc/{keeper}/fd")}
    folder = Path(machine.home).parent
    assert targets <= {"/dev/null", str(folder / "requests"), str(folder / "keeper.sh")}
    assert os.readlink(f"/proc/{keeper}/cwd") == "/"
    status = Path(f"/proc/{keeper}/status").read_text()
    # 32 and 33 are the C library's own: whoever started us with them ignored, nobody can change it.
    own = 0b11 << 31
    assert int(status.split("SigIgn:")[1].split()[0], 16) & ~own == 0


@pytest.mark.parametrize("shell", ["dash", "bash --posix", "busybox sh"])
def test_all_scripts_run_and_no_zombie_stays_when_orphans_end_meanwhile(shell: str, tmp_path: Path) -> None:
    words = shell.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = tmp_path / "script.sh"
    script.write_text("echo ran >> ran; for i in 1 2 3; do (setsid sleep 0.01 &); done\n")
    program = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0);"
        "os.dup2(os.open(sys.argv[1], os.O_RDWR), 3); os.set_inheritable(3, True); os.execvp(sys.argv[2], sys.argv[2:])"
    )
    keeper = subprocess.Popen(
        ["python3", "-c", program, fifo, *words, "-c", KEEPER.read_text()],
        env={**os.environ, "HOME": str(tmp_path)},
    )
    try:
        descriptor = os.open(fifo, os.O_RDWR)
        os.write(descriptor, b"/nonexistent\ngarbage\n")
        for _ in range(20):
            os.write(descriptor, os.fsencode(script) + b"\n")
        ran = tmp_path / "ran"

        def done() -> bool:
            children = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text()
            return ran.exists() and ran.read_text().count("ran") == 20 and not children

        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            assert time.monotonic() < deadline, "a script did not run, or a zombie stayed"
            time.sleep(0.005)
        os.close(descriptor)
    finally:
        keeper.kill()
        keeper.wait()
