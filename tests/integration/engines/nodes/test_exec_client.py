"""Commands beside tasks by somebody who does not lead: whether a task is there, its node's files say."""

from __future__ import annotations

import asyncio

import pytest
from engine_lab import EngineLab, launch_of

from trainyard.engines.api import NodeAddress, TaskCleared, TaskStarted, end_one
from trainyard.engines.nodes import exec_client as module
from trainyard.engines.nodes.exec_client import NodeExecClient
from trainyard.lib.errors import NotFoundError, UnreachableError
from trainyard.transport.api import TerminalSize, read_all

pytestmark = pytest.mark.slow  # a real agent and real tasks

LOCAL = NodeAddress(name="local")


@pytest.fixture
async def exec_client(lab: EngineLab):
    made = NodeExecClient("p1", transport_of=lab.local)
    yield made
    await made.aclose()


async def said(exec_client: NodeExecClient, command: str, attempt: str = "w1.1") -> tuple[bytes, int]:
    async with exec_client.exec(LOCAL, attempt, "worker-0", command, None) as process:
        return await read_all(process), await process.wait()


async def test_a_task_is_entered_when_somebody_else_leads_and_when_nobody_does(lab: EngineLab, exec_client):
    server = await lab.start()
    await lab.launch(server, launch_of("echo data > file; echo up; sleep 100", env={"WORD": "o'neil $(x)"}))
    await server.until(lambda: server.log("w1.1"), "it is up")
    assert await said(exec_client, 'cat file; printf %s "$WORD"; exit 7') == (b"data\no'neil $(x)", 7)
    async with exec_client.exec(LOCAL, "w1.1", "worker-0", "stty size", TerminalSize(91, 33)) as process:
        assert b"33 91" in await read_all(process)
    await lab.stop(server, leaves=False)
    assert await said(exec_client, "echo still") == (b"still\n", 0)


async def test_the_program_is_put_there_when_the_node_has_another_version(lab: EngineLab, exec_client):
    server = await lab.start()
    await lab.launch(server, launch_of("echo up; sleep 100"))
    await server.until(lambda: server.log("w1.1"), "it is up")
    for file in lab.root().glob("agent-*.pyz"):
        file.rename(file.with_name("agent-older.pyz"))
    assert await said(exec_client, "echo in") == (b"in\n", 0)


async def test_what_does_not_run_is_not_entered(lab: EngineLab, exec_client):
    server = await lab.start()
    await lab.launch(server, launch_of("sleep 100"))
    await server.see(TaskStarted, "w1.1")
    with pytest.raises(NotFoundError, match="does not run"):
        await said(exec_client, "true", attempt="w2.1")
    with pytest.raises(UnreachableError, match="cannot be the name"):
        await said(exec_client, "true", attempt="../../w1.1")
    await end_one(server.engine, "w1.1", ["local"], grace_seconds=0)
    await server.see(TaskCleared, "w1.1")
    with pytest.raises(NotFoundError, match="does not run"):
        await said(exec_client, "true")


async def test_a_command_ends_when_its_visitor_has_gone(lab: EngineLab, exec_client):
    server = await lab.start()
    await lab.launch(server, launch_of("echo up; sleep 100"))
    await server.until(lambda: server.log("w1.1"), "it is up")
    mark = lab.root() / "tasks" / "w1.1" / "worker-0" / "work" / "alive"
    async with exec_client.exec(
        LOCAL, "w1.1", "worker-0",
        "trap 'rm -f alive; exit' TERM HUP; touch alive; echo on; while :; do sleep 0.05; done", None,
    ) as process:  # fmt: skip
        async for piece in process.output():
            if b"on" in piece:
                break
        assert mark.exists()
    async with asyncio.timeout(20):
        while mark.exists():
            await asyncio.sleep(0.02)


async def test_ways_that_nobody_uses_are_closed(lab: EngineLab, monkeypatch):
    monkeypatch.setattr(module, "KEEP_SECONDS", 0.05)
    exec_client = NodeExecClient("p1", transport_of=lab.local)
    server = await lab.start()
    await lab.launch(server, launch_of("echo up; sleep 100"))
    await server.until(lambda: server.log("w1.1"), "it is up")
    assert await said(exec_client, ":") == (b"", 0)
    async with asyncio.timeout(20):
        while exec_client._ways:
            await asyncio.sleep(0.02)
    assert await said(exec_client, "echo again") == (b"again\n", 0)
    await exec_client.aclose()


async def test_a_node_that_cannot_be_reached_is_said_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    (tmp_path / "hosts.toml").write_text(
        '[hosts.away]\naddress = "127.0.0.1"\nport = 1\nuser = "x"\nssh_config = "/dev/null"\n'
    )
    exec_client = NodeExecClient("p1")
    with pytest.raises(UnreachableError):
        async with exec_client.exec(NodeAddress(name="away", backend="ssh"), "w1.1", "worker-0", ":", None):
            pass
    await exec_client.aclose()
