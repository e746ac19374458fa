"""Attempts to get out of a task: some two hundred in each kind of a task, of a node that is root's and of one that is a user's.

What is tried is escape_probes.py, which runs inside. Here is who tries it, and what would tell of a success on the host.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "engine"))
import container_lab
from container_lab import WITH_PYTHON, Containers
from engine_lab import EngineLab, lab_in, launch_of

from trainyard.engines.api import Mount, View
from trainyard.transport.api import read_all

PROBES = Path(__file__).with_name("escape_probes.py").read_text()
IS_ROOT = os.getuid() == 0
pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.slow,  # a real agent, a view, and two hundred attempts in it
]


@pytest.fixture
async def lab(isolation: Path, tmp_path: Path) -> AsyncIterator[EngineLab]:
    async with lab_in(tmp_path / "home") as lab:
        yield lab


def probing() -> str:
    """A command that makes all attempts."""
    return f"python3 -IS - <<'PROBES'\n{PROBES}\nPROBES\n"


def held(text: str, *, least: int) -> None:
    """Every attempt was made and none succeeded."""
    lines = text.splitlines()
    escaped = [line for line in lines if not line.startswith(("held ", "tried "))]
    assert not escaped, "\n".join(escaped)
    assert lines and lines[-1].startswith("tried ") and int(lines[-1].split()[1]) >= least, lines[-1:]


def surroundings(lab: EngineLab, listener: socket.socket) -> dict[str, str]:
    """What of the host the attempts are aimed at."""
    secret = lab.home / "secret"
    secret.write_text("the host's own")
    files = [
        secret,
        lab.root() / "agent.lock",
        lab.root() / "tasks" / "w1.1" / "worker-0" / "state",
        Path("/root/.bashrc"),
    ]
    return {
        "PROBE_HOST_PID": str(os.getpid()),
        "PROBE_HOST_FILES": ":".join(map(str, files)),
        "PROBE_HOST_PORT": str(listener.getsockname()[1]),
        "PROBE_ROOTS": "1" if IS_ROOT else "0",
    }


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody else's port, which allows to be shared with the same user."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


async def test_nothing_gets_out_of_a_view(lab: EngineLab, listener: socket.socket):
    server = await lab.start()
    env = surroundings(lab, listener)
    if not IS_ROOT:
        env["PROBE_HOST_PORT"] = "0"  # the same user's
    await lab.launch(server, launch_of(probing(), view=View(uid=2_000_007), env=env))
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 0, text
    held(text, least=200)
    assert (lab.home / "secret").read_text() == "the host's own"


async def test_nothing_gets_out_of_a_command_beside_a_task(lab: EngineLab, listener: socket.socket):
    server = await lab.start()
    env = surroundings(lab, listener)
    if not IS_ROOT:
        env["PROBE_HOST_PORT"] = "0"
    await lab.launch(server, launch_of("echo on; sleep 60", view=View(uid=2_000_007), env=env))
    await server.until(lambda: b"on" in server.log("w1.1"))
    process = await server.engine.exec("w1.1", "worker-0", "local", probing(), None)
    text = (await read_all(process)).decode()
    assert await process.wait() == 0, text
    held(text, least=200)


@pytest.fixture(scope="module", params=["podman", "docker"])
def containers(request: pytest.FixtureRequest) -> Iterator[Containers]:
    """What runs containers on the node."""
    with container_lab.lasting(request.param) as found:
        found.make(WITH_PYTHON, container_lab.python_image())
        yield found


@pytest.mark.skipif(not IS_ROOT, reason="root in a container of an ordinary user's is that user")
@pytest.mark.usefixtures("containers")
async def test_nothing_gets_out_of_a_container(lab: EngineLab, listener: socket.socket, tmp_path: Path):
    server = await lab.start()
    (tmp_path / "scratch").mkdir()
    view = View(
        uid=2_000_007, image=WITH_PYTHON, mounts=(Mount(source=str(tmp_path / "scratch"), target="/scratch"),)
    )
    env = {**surroundings(lab, listener), "PROBE_CONTAINER": "1"}
    plant = "cat /bin/sh > /scratch/b; chmod 4755 /scratch/b 2>/dev/null"
    await lab.launch(server, launch_of(f"{plant}\n{probing()}", view=view, env=env))
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 0, text[-3000:]
    held(text, least=200)
    found = (tmp_path / "scratch" / "b").stat()
    assert (found.st_uid, found.st_mode & stat.S_ISUID) == (2_000_007, 0)


@pytest.mark.skipif(not IS_ROOT, reason="only root's bubblewrap is worth it")
async def test_the_program_that_makes_views_cannot_be_exchanged_by_who_is_in_one(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first process of a view is a program of the host's: held open and written to later, it would be the next task's."""
    tools = tmp_path / "bin"
    tools.mkdir()
    real = shutil.which("bwrap")
    assert real is not None
    shutil.copy(real, tools / "bwrap")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    before = (tools / "bwrap").read_bytes()
    attack = textwrap.dedent(
        """\
        python3 - <<'END'
        import ctypes, os
        for flags in (os.O_RDONLY, os.O_PATH, os.O_RDWR):
            try:
                print("opened", os.open("/proc/1/exe", flags))
            except OSError as error:
                print(error.strerror)
        libc = ctypes.CDLL(None, use_errno=True)
        print("traced" if libc.ptrace(16, 1, None, None) == 0 else "not traced")
        END
        """
    )
    server = await lab.start()
    await lab.launch(server, launch_of(attack, view=View(uid=2_000_007)))
    assert (await server.ended("w1.1")).exit_code == 0
    assert server.log("w1.1").decode().splitlines() == [*["Permission denied"] * 3, "not traced"]
    assert (tools / "bwrap").read_bytes() == before
