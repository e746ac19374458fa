"""Machines to copy to and from: a local one, one with nothing but BusyBox, and real sshds."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sshd import Sshd
from trainyard.transport.api import Transport
from trainyard.transport.copy import receive, send
from trainyard.transport.copy.manifest import TICK_NS
from trainyard.transport.local import LocalTransport
from trainyard.transport.ssh import SshAddress, SshTransport


@dataclass
class Box:
    """A machine: its name, the way to it, and its home as we see it."""

    name: str
    transport: Transport
    home: Path
    flavour: str
    sshd: Sshd | None = None

    @property
    def pair(self) -> tuple[str, Transport]:
        return self.name, self.transport


def ssh_box(name: str, server: Sshd) -> Box:
    address = SshAddress(
        server.address,
        server.port,
        server.user,
        identity_files=(server.client_key,),
        known_hosts=server.known_hosts,
    )
    return Box(name, SshTransport(address, name=name), server.home, "ssh", server)


def local_box(name: str, home: Path, **env: str) -> Box:
    home.mkdir(parents=True, exist_ok=True)
    full = {"HOME": str(home), "PATH": os.environ["PATH"], **env}
    full |= {key: value for key, value in os.environ.items() if key.startswith("TRAINYARD_TEST")}
    return Box(name, LocalTransport(home, full), home, "local")


@pytest.fixture
def program_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything goes through the system's ssh, as bulk does."""
    monkeypatch.setattr(receive, "BULK", -1)
    monkeypatch.setattr(send, "BULK", -1)
    monkeypatch.setattr(send, "BULK_IN_ALL", -1)


SSH = [pytest.param(name, marks=pytest.mark.ssh) for name in ("ssh", "program")]


@pytest.fixture(params=["local", "busybox", *SSH])
async def box(request: pytest.FixtureRequest, tmp_path: Path, hostile_path: Path) -> AsyncIterator[Box]:
    """One machine of each kind; the local one lives at a hostile path."""
    if request.param in ("ssh", "program"):
        if request.param == "program":
            request.getfixturevalue("program_only")
        made = ssh_box("alpha", request.getfixturevalue("sshd"))
    elif request.param == "busybox":
        tools = tmp_path / "tools"
        tools.mkdir()
        subprocess.run(["busybox", "--install", "-s", tools], check=True)
        made = local_box("small", tmp_path / "small", PATH=str(tools))
        made.flavour = "busybox"
    else:
        made = local_box("here", hostile_path / "machine")
    yield made
    await made.transport.aclose()


@pytest.fixture
async def boxes(sshds: Callable[..., list[Sshd]]) -> AsyncIterator[Callable[[int], list[Box]]]:
    """A factory of machines behind real sshds."""
    made: list[Box] = []

    def start(count: int) -> list[Box]:
        new = [ssh_box(f"task{number}.x", server) for number, server in enumerate(sshds(count))]
        made.extend(new)
        return new

    yield start
    for one in made:
        await one.transport.aclose()


@dataclass
class Recorder:
    """A progress that remembers, and insists on never going back."""

    last: dict[str, tuple[int, int]] = field(default_factory=dict)
    calls: int = 0

    def update(self, machine: str, done: int, total: int) -> None:
        before = self.last.get(machine)
        assert 0 <= done <= total
        if before is not None and before[1] == total:
            assert done >= before[0]
        self.last[machine] = (done, total)
        self.calls += 1


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def make_tree(folder: Path) -> Path:
    """A small tree with everything that is hard; all of it older than the rule about fresh files."""
    raw = os.fsencode(folder)
    for name in (
        b"train.py",
        b"-rf",
        b"$(touch pwned)",
        b"new\nline",
        b"caf\xe9\xff",
        b"quote'\"`\\ *",
        b".hidden/.git/HEAD",
        "中文/深/文件".encode(),
        b"n" * 255,
        b"/".join([b"deep" * 20] * 4) + b"/leaf",
    ):
        path = raw + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(name * 7)
    os.chmod(raw + b"/train.py", 0o751)
    (folder / "empty").mkdir()
    (folder / "private").mkdir(mode=0o700)
    (folder / "link").symlink_to("train.py")
    (folder / "absolute").symlink_to("/etc/passwd")
    (folder / "dangling").symlink_to("no where")
    age(folder)
    return folder


def age(folder: Path, seconds: int = 1_600_000_000) -> None:
    """Set all times to long ago, and wait until the change itself is older than the clock's step."""
    for root, folders, files in os.walk(os.fsencode(folder)):
        for name in (*folders, *files):
            os.utime(root + b"/" + name, (seconds, seconds), follow_symlinks=False)
    changed = time.time_ns()
    while time.time_ns() < changed + 2 * TICK_NS:
        time.sleep(0.001)


def differences(left: Path, right: Path, *, is_busybox: bool = False) -> list[bytes]:
    """What rsync finds different: names, contents, modes, times, links. Owners and times of folders are left out."""
    words = ["rsync", "-aicn", "--delete", "--omit-dir-times", "--no-owner", "--no-group"]
    if is_busybox:  # its tar does not set the times of links
        words.append("--omit-link-times")
    result = subprocess.run([*words, f"{left}/", f"{right}/"], check=True, capture_output=True)
    return result.stdout.splitlines()


def leftovers(home: Path) -> list[str]:
    """Temporary files of ours."""
    return sorted(str(path) for path in home.rglob("*trainyard-part*"))


def has_rsync() -> bool:
    return shutil.which("rsync") is not None
