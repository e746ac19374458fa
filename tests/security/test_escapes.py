"""Attempts to get out of a task: some two hundred in each kind of a task, of a node that is root's and of one that is a user's.

What is tried is escape_probes.py, which runs inside. Here is who tries it, and what would tell of a success on the host.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "engines" / "nodes"))
import container_lab
from container_lab import WITH_PYTHON, Containers
from engine_lab import EngineLab, lab_in, launch_of

from trainyard.engines.api import Mount, View
from trainyard.transport.api import Completed, read_all
from trainyard.transport.local import LocalTransport
from trainyard.transport.local_process import LocalProcess

PROBES = Path(__file__).with_name("escape_probes.py").read_text()
IS_ROOT = os.getuid() == 0
NOBODY = 65534
SECRET = "s3cret of the server"
pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.slow,  # a real agent, a view, and two hundred attempts in it
]


@pytest.fixture
async def lab(isolation: Path, tmp_path: Path) -> AsyncIterator[EngineLab]:
    async with lab_in(tmp_path / "home") as lab:
        yield lab


class OthersTransport(LocalTransport):
    """A node of this computer whose agent is an ordinary user, although we are root."""

    async def run(self, script: str, **given: Any) -> Completed:
        return await super().run(as_nobody(script), **given)

    async def spawn(self, script: str, **given: Any) -> LocalProcess:
        return await super().spawn(as_nobody(script), **given)

    async def put(self, source: Path, target: str) -> None:
        await super().put(source, target)
        os.chown(self._home / target, NOBODY, NOBODY)


def as_nobody(script: str) -> str:
    words = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "sh", "-c", script]
    return f"exec {shlex.join(words)}"


@pytest.fixture
async def others_lab(isolation: Path) -> AsyncIterator[EngineLab]:
    """A node of an ordinary user. Not below tmp_path, which is root's alone."""
    if not IS_ROOT or shutil.which("setpriv") is None:
        pytest.skip("there is no other user to be")
    home = Path(tempfile.mkdtemp(prefix="trainyard-test-"))
    os.chown(home, NOBODY, NOBODY)
    env = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    lab = EngineLab(home, lambda _: OthersTransport(home, env, inherited={"OPERATORS_SECRET": SECRET}))
    try:
        yield lab
    finally:
        await lab.aclose()
        shutil.rmtree(home, ignore_errors=True)  # the agent removes its own sockets while it goes


def probing() -> str:
    """A command that makes all attempts."""
    return f"python3 -IS - <<'PROBES'\n{PROBES}\nPROBES\n"


def held(text: str, *, least: int) -> None:
    """Every attempt was made and none succeeded."""
    lines = text.splitlines()
    escaped = [line for line in lines if not line.startswith(("held ", "tried "))]
    assert not escaped, "\n".join(escaped)
    assert lines and lines[-1].startswith("tried ") and int(lines[-1].split()[1]) >= least, lines[-1:]


def launch_facts(lab: EngineLab, listener: socket.socket) -> dict[str, str]:
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
    env = launch_facts(lab, listener)
    if not IS_ROOT:
        env["PROBE_HOST_PORT"] = "0"  # the same user's
    await lab.launch(server, launch_of(probing(), view=View(uid=2_000_007), env=env))
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 0, text
    held(text, least=200)
    assert (lab.home / "secret").read_text() == "the host's own"


async def test_nothing_gets_out_of_a_view_of_an_ordinary_users_node(
    others_lab: EngineLab, listener: socket.socket
):
    server = await others_lab.start()
    env = {**launch_facts(others_lab, listener), "PROBE_ROOTS": "0"}
    await others_lab.launch(server, launch_of(probing(), view=View(uid=2_000_007), env=env))
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 0, text[-3000:]
    held(text, least=200)


WATCH = f"""python3 -IS - <<'END'
import glob, os, time
print("on", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and not os.path.exists("/tmp/enough"):
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if b"{SECRET}" in file.read():
                    print("leaked", path, flush=True)
        except OSError:
            pass
END
"""


async def watched(lab: EngineLab) -> bytes:
    """What a task says that looks for the server's secret while people run commands beside it."""
    server = await lab.start()
    await lab.launch(server, launch_of(WATCH, view=View(uid=2_000_007)))
    await server.until(lambda: b"on" in server.log("w1.1"))
    for _ in range(10):
        process = await server.engine.exec("w1.1", "worker-0", "local", "env", None)
        assert SECRET not in (await read_all(process)).decode()
        assert await process.wait() == 0
    process = await server.engine.exec("w1.1", "worker-0", "local", "touch /tmp/enough", None)
    assert await process.wait() == 0
    await server.ended("w1.1")
    return server.log("w1.1")


async def test_a_command_beside_a_task_shows_it_nothing_of_the_servers_environment(
    lab: EngineLab, monkeypatch: pytest.MonkeyPatch
):
    """Who enters a view is seen in it before having become the command, with the memory of who started it."""
    monkeypatch.setenv("OPERATORS_SECRET", SECRET)
    assert await watched(lab) == b"on\n"


async def test_a_command_beside_a_task_shows_it_nothing_when_the_node_is_an_ordinary_users(
    others_lab: EngineLab,
):
    assert await watched(others_lab) == b"on\n"


async def test_nothing_gets_out_of_a_command_beside_a_task(lab: EngineLab, listener: socket.socket):
    server = await lab.start()
    env = launch_facts(lab, listener)
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
    env = {**launch_facts(lab, listener), "PROBE_CONTAINER": "1"}
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
