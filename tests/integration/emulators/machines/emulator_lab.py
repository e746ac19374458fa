"""A yard: emulated machines below a folder of the test, and how a test talks to them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import sshd as sshd_module
from trainyard.emulators.aliyun.api.call import MachineWish
from trainyard.emulators.aliyun.machines import Isolation, Machines
from trainyard.emulators.aliyun.machines.fleet import find_port
from trainyard.emulators.aliyun.machines.folder import MachineFolder
from trainyard.emulators.aliyun.machines.isolation import why_not
from trainyard.emulators.aliyun.machines.processes import find_below
from trainyard.emulators.aliyun.machines.template import ensure_template
from trainyard.lib.process_tree import all_pids
from trainyard.lib.remove_tree import remove_tree

STRONG = Isolation.ROOT if os.getuid() == 0 else Isolation.USER
USER_DATA = b"#!/bin/sh\necho booted as $(id -un) in $HOME\necho x >>$HOME/boots\n"


class Lab:
    """Machines with what a test needs to talk to them."""

    def __init__(self, folder: Path, isolation: Isolation, keys: Path) -> None:
        self.state = folder / "state"
        self.isolation = isolation
        self.client_key = keys / "client_key"
        self.known_hosts = keys / "known_hosts"
        self.public_key = sshd_module.write_key(self.client_key)
        self.net = (
            f"127.{100 + secrets.randbelow(100)}.{secrets.randbelow(256)}"  # other tests run beside this one
        )
        self.opened: list[Machines] = []
        self.machines = self.open()

    def open(self, **options: object) -> Machines:
        """Another emulator on the same folder."""
        machines = Machines(self.state, isolation=self.isolation, **options)  # type: ignore[arg-type]
        self.opened.append(machines)
        return machines

    def wish(self, number: int = 0, **changes: object) -> MachineWish:
        wish = MachineWish(
            instance_id=f"i-test{number}",
            address=f"{self.net}.{2 * number + 1}",
            public_address=f"{self.net}.{2 * number + 2}",
            hostname=f"task{number}",
            running=True,
            authorized_keys=(self.public_key,),
            password="",
            user_data=USER_DATA,
            boot=1,
        )
        return replace(wish, **changes)  # type: ignore[arg-type]

    def wishes(self, count: int, **changes: object) -> list[MachineWish]:
        return [self.wish(number, **changes) for number in range(count)]

    def path(self, number: int = 0) -> Path:
        return self.state / "machines" / f"i-test{number}"

    def root(self, number: int = 0) -> str:
        """What stands in front of paths inside the machine."""
        return (self.path(number) / "link").read_text() if self.isolation is Isolation.HOME else ""

    def ssh_argv(self, target: MachineWish | str, *words: str, strict: bool = False) -> list[str]:
        address = target if isinstance(target, str) else target.address
        options = [
            *(
                "-F",
                "none",
                "-p",
                str(self.machines.ssh_port),
                "-i",
                str(self.client_key),
                "-o",
                "BatchMode=yes",
            ),
            *("-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "GlobalKnownHostsFile=none"),
            *("-o", f"StrictHostKeyChecking={'yes' if strict else 'no'}", "-o", "IdentitiesOnly=yes"),
            *("-o", "IdentityAgent=none", "-o", "LogLevel=ERROR"),
        ]
        return ["ssh", *options, f"{self.machines.login}@{address}", *words]

    def ssh(
        self, target: MachineWish | str, command: str, *, strict: bool = False, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        argv = self.ssh_argv(target, command, strict=strict)
        return subprocess.run(argv, capture_output=True, text=True, input=text, timeout=60)

    def out(self, target: MachineWish | str, command: str) -> str:
        done = self.ssh(target, command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    async def user_data_log(self, number: int = 0) -> str:
        """What UserData has printed, once it has run."""
        done = await self.machines.execute(f"i-test{number}", b"cloud-init status --wait", timeout=30)
        assert done.problem == "", done
        return self.machines.log_of(f"i-test{number}").read_text()

    def init(self, number: int = 0) -> int:
        return int((self.path(number) / "init").read_text().split()[0])

    def pids(self, number: int | None = None) -> set[int]:
        """Every process of a machine, or of all: in a space of its own, below its first process, or marked."""
        if number is None:
            names = [path.parent.name for path in self.state.glob("machines/*/init")]
            return set().union(*(self.pids(int(name.removeprefix("i-test"))) for name in names))
        init = self.init(number)
        folder = MachineFolder(self.path(number), self.isolation)
        found = {one.pid for one in find_below([init], marks=folder.marks)} | {init}
        if self.isolation is not Isolation.HOME:
            with contextlib.suppress(OSError):
                space = os.readlink(f"/proc/{init}/ns/pid")
                found |= {pid for pid in all_pids() if _space(pid) == space}
        return {pid for pid in found if sshd_module.command_name(pid)}


def _space(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def living(pids: set[int]) -> set[int]:
    """Those who have not ended."""
    return {pid for pid in pids if sshd_module.command_name(pid)}


@functools.cache
def reason_against(isolation: Isolation) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return why_not(isolation, Path(folder))


@functools.cache
def template_folder() -> Path:
    """Copied once for all tests: machines never change it."""
    folder = Path(tempfile.mkdtemp(prefix="tyt-template-"))
    atexit.register(remove_tree, folder)
    ensure_template(folder / "template", STRONG, port=find_port())
    return folder / "template"


async def make_lab(folder: Path, isolation: Isolation, keys: Path | None = None) -> Lab:
    if reason := reason_against(isolation):
        pytest.skip(f"machines cannot be kept apart here: {reason}")
    lab = Lab(folder, isolation, keys or folder)
    if isolation is not Isolation.HOME:
        lab.state.mkdir(parents=True)
        (lab.state / "template").symlink_to(template_folder())
    await lab.machines.open()
    return lab


async def close_lab(lab: Lab) -> None:
    seen = lab.pids()
    marks = [MachineFolder(path, lab.isolation).marks for path in lab.state.glob("machines/*")]
    for machines in lab.opened:
        await machines.close()
    left = living(seen) | {one.pid for each in marks for one in find_below([], marks=each)}
    last = Machines(lab.state, isolation=lab.isolation)
    await last.reconcile([])
    await last.close()
    assert not left, f"closing left processes: {left}"
    assert not list((lab.state / "machines").iterdir())
