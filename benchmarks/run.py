"""`task.run("true")`: the blocking call, against a bare asyncssh command and the scheme of typing into tmux and polling.

That scheme is ncluster's and FastGPU's: `tmux send-keys` of the command with `; echo $? > N.status` behind it, then
looking for the file until it is there.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Self

import asyncssh

from benchmarks import place
from benchmarks.measure import Row, medians, middle_of, take_turns, timed
from trainyard.lib.portal import Portal
from trainyard.sync import Runtime

LOCAL_POLL = 0.02
SSH_POLL = 0.02  # between two looks for the status file
SSH_EMPTY_POLL = 0.2  # where the file is there and nothing in it yet


def measure(*, quick: bool = False) -> list[Row]:
    """Rows for local machines and for a real sshd."""
    return [*_local(rounds=3 if quick else 15), *_ssh(rounds=3 if quick else 10)]


def _local(rounds: int) -> list[Row]:
    with place.own_home() as folder:
        lab = Runtime()
        task = lab.make_task("bench")
        typing = _Typing(folder)
        try:
            samples = take_turns(
                {
                    "ours": lambda: middle_of(lambda: timed(lambda: task.run("true", quiet=True)), 20),
                    "output": lambda: middle_of(lambda: timed(lambda: task.run("echo hi", quiet=True)), 20),
                    "typing": lambda: middle_of(lambda: timed(lambda: typing.run("true")), 10),
                },
                rounds,
            )
        finally:
            task.kill()
            lab.close()
    middle = medians(samples)
    case = 'task.run("true"), local'
    return [
        Row(case, middle["ours"], "limit", 0.005, bar=1),
        Row(case, middle["ours"], "tmux, 0.02 s poll", middle["typing"], bar=1 / 3),
        Row('task.run("echo hi"), local', middle["output"], "limit", 0.005),
    ]


def _ssh(rounds: int) -> list[Row]:
    with place.own_home() as folder, place.real_hosts(1, folder) as hosts:
        lab = Runtime(backend="ssh")
        task = lab.make_task("bench")
        portal = Portal()
        connection = portal.call(connect(hosts[0]))
        typing = portal.call(_RemoteTyping.start(connection, folder))
        try:
            samples = take_turns(
                {
                    "ours": lambda: middle_of(lambda: timed(lambda: task.run("true", quiet=True)), 20),
                    "bare": lambda: middle_of(lambda: portal.call(_timed(connection.run("true"))), 20),
                    "typing": lambda: portal.call(_timed(typing.run("true"))),
                },
                rounds,
            )
        finally:
            task.kill()
            lab.close()
            portal.call(_close(connection))
            portal.close()
    middle = medians(samples)
    case = 'task.run("true"), ssh'
    return [
        Row(case, middle["ours"], "asyncssh conn.run, open connection", middle["bare"], bar=2),
        Row(case, middle["ours"], "tmux over ssh, polled", middle["typing"], bar=1 / 20),
    ]


class _Typing:
    """ncluster's scheme on this computer: type into tmux, look for the status file every 0.02 s. No output is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "typing"
        self._folder.mkdir()
        self._number = 0
        subprocess.run(["tmux", "new-session", "-d", "-s", "typing", "bash"], check=True)

    def run(self, text: str) -> int:
        """Type it; wait for its status; read that."""
        self._number += 1
        status = self._folder / f"{self._number}.status"
        (self._folder / f"{self._number}.cmd").write_text(text)
        typed = f"{text}; echo $? > {shlex.quote(str(status))}"
        subprocess.run(["tmux", "send-keys", "-t", "typing", typed, "Enter"], check=True)
        while not status.exists():
            time.sleep(LOCAL_POLL)
        return int(status.read_text().strip() or 0)


class _RemoteTyping:
    """The same over ssh, step by step as ncluster and FastGPU do it, over one open connection and one of SFTP.

    Files go by SFTP through a local copy; before one is written, `stat` looks for its folder and for itself; everything
    else is a command of its own with a pty. Looking comes before sleeping, and once more after the file was seen. Only
    asyncssh is not theirs: they have paramiko.
    """

    def __init__(
        self, connection: asyncssh.SSHClientConnection, files: asyncssh.SFTPClient, folder: str, scratch: Path
    ) -> None:
        self._connection = connection
        self._files = files
        self._folder = folder
        self._scratch = scratch
        self._number = 0

    @classmethod
    async def start(cls, connection: asyncssh.SSHClientConnection, scratch: Path) -> Self:
        """Make the folder and the tmux session."""
        made = await connection.run("mktemp -d && tmux new-session -d -s typing bash", check=True)
        return cls(connection, await connection.start_sftp_client(), str(made.stdout).strip(), scratch)

    async def run(self, text: str) -> str:
        """Save it; type it; wait for its status; read that and the output."""
        self._number += 1
        stem = f"{self._folder}/{self._number}"
        await self._write(f"{stem}.cmd", f"{{ {text}; }}\n")
        typed = f"{{ {text}; }} > >(tee -a {stem}.out) 2> >(tee -a {stem}.out >&2); echo $? > {stem}.status"
        await self._raw(shlex.join(["tmux", "send-keys", "-t", "typing:0", typed, "Enter"]))
        for _ in range(2):
            while not await self._exists(f"{stem}.status"):
                await asyncio.sleep(SSH_POLL)
        if not await self._read(f"{stem}.status"):
            await asyncio.sleep(SSH_EMPTY_POLL)
            await self._read(f"{stem}.status")
        return await self._read(f"{stem}.out")

    async def _raw(self, command: str) -> str:
        done = await self._connection.run(command, request_pty="force", term_type="vt100")
        return str(done.stdout)

    async def _exists(self, path: str) -> bool:
        return "No such file" not in await self._raw(f"stat {path}")

    async def _write(self, path: str, text: str) -> None:
        copy = self._scratch / "written"
        copy.write_text(text)
        if not await self._exists(self._folder) or await self._exists(path):
            raise RuntimeError("the folder is not as it should be")
        await self._files.put(str(copy), path)

    async def _read(self, path: str) -> str:
        copy = self._scratch / "read"
        await self._files.get(path, str(copy))
        return copy.read_text()


async def connect(host: place.Sshd) -> asyncssh.SSHClientConnection:
    """A bare connection, as somebody who knows asyncssh would open it."""
    return await asyncssh.connect(
        host.address,
        host.port,
        username=host.user,
        client_keys=[str(host.client_key)],
        known_hosts=str(host.known_hosts),
        config=None,
        agent_path=None,
    )


async def _timed(work: Awaitable[object]) -> float:
    # Timed inside the loop: rivals do not pay for our portal.
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def _close(connection: asyncssh.SSHClientConnection) -> None:
    connection.close()
    await connection.wait_closed()
