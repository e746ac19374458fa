"""A terminal into a task over WebSocket, with a real shell at its end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from trainyard.client import Client
from trainyard.client.terminal import open_terminal
from trainyard.lib.errors import ConflictError, DeniedError, Error, NotFoundError
from trainyard.spec.workload import WorkloadSpec
from trainyard.transport.local import LocalTransport

pytestmark = pytest.mark.slow  # a real server and a real shell


class ShellEngine:
    """An engine whose only verb is `exec`: a real process on this machine."""

    def __init__(self, folder: Path) -> None:
        self.transport = LocalTransport(folder, {"HOME": str(folder)}, inherited=dict(os.environ))
        self.asked: list[tuple[str, str, str]] = []

    def is_reachable(self, _node: str) -> bool:
        return True

    async def exec(self, attempt_id, task, node, command, terminal):
        self.asked.append((attempt_id, task, node))
        return await self.transport.spawn(command or "exec sh", terminal=terminal)


@pytest.fixture
async def running(rig, client, serve, tmp_path):
    rig.engine = ShellEngine(tmp_path)
    job = await client.jobs.submit(WorkloadSpec(name="j", command="true"))
    rig.start(job.id)
    return serve(rig.app), job.id


async def read_all(terminal) -> bytes:
    return b"".join([piece async for piece in terminal.output()])


async def test_a_command_runs_beside_the_task_and_gives_its_status(rig, running):
    url, job = running
    async with Client(url, rig.admin.token) as client:
        async with open_terminal(client.connection, job, "worker-0", command="echo 中文; exit 7") as terminal:
            said = await asyncio.wait_for(read_all(terminal), 20)
    assert "中文" in said.decode() and terminal.status == 7
    assert rig.engine.asked == [(f"{job}.1", "worker-0", "local")]


async def test_a_shell_has_a_terminal_of_the_right_size_and_takes_keys(rig, running):
    url, job = running
    async with Client(url, rig.admin.token) as client:
        async with open_terminal(client.connection, job, "worker-0", columns=91, rows=33) as terminal:
            await terminal.write(b"stty size\n")
            seen = b""
            async for piece in terminal.output():
                seen += piece
                if b"33 91" in seen:
                    break
            await terminal.resize(100, 40)
            await terminal.write(b"stty size; exit 3\n")
            seen += await asyncio.wait_for(read_all(terminal), 20)
    assert b"40 100" in seen and terminal.status == 3


async def test_input_ends_when_it_is_said_to_without_a_terminal(rig, running):
    url, job = running
    async with Client(url, rig.admin.token) as client:
        async with open_terminal(
            client.connection, job, "worker-0", command="cat", has_terminal=False
        ) as terminal:
            await terminal.write(b"\x00\xffbytes")
            await terminal.end_input()
            assert await asyncio.wait_for(read_all(terminal), 20) == b"\x00\xffbytes"
    assert terminal.status == 0


async def test_the_command_ends_when_the_reader_has_gone(rig, running, tmp_path):
    url, job = running
    mark = tmp_path / "alive"
    async with Client(url, rig.admin.token) as client:
        command = f"trap 'rm -f {mark}; exit' TERM HUP; touch {mark}; echo on; while :; do sleep 0.05; done"
        async with open_terminal(client.connection, job, "worker-0", command=command) as terminal:
            async for piece in terminal.output():
                if b"on" in piece:
                    break
            assert mark.exists()
        async with asyncio.timeout(20):
            while mark.exists():
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("token", "job", "task", "kind"),
    [
        ("ty_" + "A" * 43, "", "worker-0", DeniedError),
        (None, "dlc000000000000000", "worker-0", NotFoundError),
        (None, "", "worker-9", NotFoundError),
    ],
)
async def test_a_terminal_is_refused_with_a_reason(rig, running, token, job, task, kind):
    url, real = running
    async with Client(url, token or rig.admin.token) as client:
        with pytest.raises(kind) as refused:
            async with open_terminal(client.connection, job or real, task):
                pass
    assert refused.value.message.endswith(".")


async def test_a_terminal_is_refused_when_nothing_runs(rig, running):
    url, job = running
    async with Client(url, rig.admin.token) as client:
        rig.finish(job)
        with pytest.raises((ConflictError, Error), match="nothing runs"):
            async with open_terminal(client.connection, job, "worker-0"):
                pass


async def test_a_foreign_page_opens_no_terminal_with_somebodys_cookie(rig, client, running):
    url, job = running
    address = "ws" + url.removeprefix("http") + f"/api/v1/jobs/{job}/tasks/worker-0/terminal"
    await client.session.set_password(rig.admin.password, "a quite long one")
    cookie = {"Cookie": f"trainyard_session={rig.admin.token}"}
    with pytest.raises(Exception, match="403"):
        await connect(address, additional_headers=cookie, origin="https://evil.example")
    async with connect(address, additional_headers=cookie, origin=url) as own:
        await own.send('{"command": "exit"}')
        async for _ in own:
            pass
