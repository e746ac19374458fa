"""What the local transport promises beyond the contract of all transports."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.lib.errors import InvalidError, UnreachableError
from trainyard.transport.api import TerminalSize, read_all
from trainyard.transport.local import LocalTransport

ADDRESS = "127.77.200.1"


@pytest.fixture
async def transport(hostile_path: Path) -> AsyncIterator[LocalTransport]:
    transport = LocalTransport(
        hostile_path, {"HOME": str(hostile_path), "OWN": "own"}, inherited=dict(os.environ), address=ADDRESS
    )
    yield transport
    await transport.aclose()


def listen(address: str, port: int = 0) -> socket.socket:
    server = socket.socket()
    server.bind((address, port))
    server.listen()
    return server


async def answer(transport: LocalTransport, port: int, *servers: socket.socket) -> str:
    """The address of the server that gets the connection."""
    stream = await transport.connect(port)
    loop = asyncio.get_running_loop()
    for server in servers:
        server.setblocking(False)
    accepting = [asyncio.ensure_future(loop.sock_accept(server)) for server in servers]
    done, waiting = await asyncio.wait(accepting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    connection, _ = done.pop().result()
    address: str = connection.getsockname()[0]
    connection.close()
    await stream.aclose()
    return address


async def test_the_machines_own_address_goes_first_when_both_listen(transport: LocalTransport) -> None:
    with listen(ADDRESS) as own:
        port = own.getsockname()[1]
        with listen("127.0.0.1", port) as common:
            assert await answer(transport, port, own, common) == ADDRESS
    with listen("127.0.0.1") as common:
        assert await answer(transport, common.getsockname()[1], common) == "127.0.0.1"
    with pytest.raises(UnreachableError, match=f"nothing listens on port {port} of {ADDRESS}"):
        await transport.connect(port)


async def test_a_reader_is_released_when_the_transport_closes_and_the_output_stays_open(
    transport: LocalTransport,
) -> None:
    process = await transport.spawn("setsid sleep 3600 & echo $!")
    pieces = process.output()
    background = int(await anext(pieces))
    waiting = asyncio.ensure_future(anext(pieces, b"end"))
    try:
        assert await process.wait() == 0
        await transport.aclose()
        async with asyncio.timeout(5):
            assert await waiting == b"end"
    finally:
        os.kill(background, 9)


async def test_a_writer_is_released_when_the_command_ends_and_its_input_stays_open(
    transport: LocalTransport,
) -> None:
    process = await transport.spawn("exec 3<&0; sleep 3600 & echo $!; read -r go; exit 7")
    background = int(await anext(process.output()))
    try:
        with pytest.raises(UnreachableError, match="closed"):
            async with asyncio.timeout(5):
                await process.write(b"go\n" + b"x" * 10_000_000)
        assert await process.wait() == 7
    finally:
        os.kill(background, 9)


async def test_a_writer_is_released_when_the_command_ends_just_before_it_waits(
    transport: LocalTransport, hostile_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the loop hears of the end first, and of the pipe after that."""
    process = await transport.spawn("until [ -e go ]; do sleep 0.01; done; exit 7")
    loop = asyncio.get_running_loop()
    watch = loop.add_writer

    def late(*words: Any) -> None:
        (hostile_path / "go").touch()
        os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOWAIT)
        watch(*words)

    monkeypatch.setattr(loop, "add_writer", late)
    with pytest.raises(UnreachableError, match="closed"):
        async with asyncio.timeout(5):
            await process.write(b"x" * 10_000_000)
    assert await process.wait() == 7


async def test_no_descriptor_stays_open_when_many_commands_ran(transport: LocalTransport) -> None:
    async def use() -> None:
        await transport.run("cat; echo x >&2", stdin=b"x")
        for size in (None, TerminalSize()):
            process = await transport.spawn("echo x; echo y >&2", terminal=size)
            await read_all(process)
            await process.wait()
        unread = await transport.spawn("echo x")
        await unread.wait()
        with pytest.raises(TimeoutError):
            await transport.run("exec sleep 3600", timeout=0.001)

    await use()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await use()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


async def test_others_get_their_turn_when_a_command_floods_both_streams(transport: LocalTransport) -> None:
    flood = await transport.spawn("cat /dev/zero & cat /dev/zero >&2")
    taken = 0
    turns = 0

    async def take() -> None:
        nonlocal taken
        async for piece in flood.output():
            taken += len(piece)

    taking = asyncio.ensure_future(take())
    while taken < 50_000_000:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 50
    assert len(flood.errors) == 64 * 1024
    await flood.terminate()
    await taking


async def test_the_command_controls_its_terminal_when_it_has_one(transport: LocalTransport) -> None:
    process = await transport.spawn(
        "test -t 0 && test -t 1 && test -t 2 && echo $TERM; trap 'echo hit; exit 9' INT; echo go; while :; do sleep 0.05; done",
        terminal=TerminalSize(),
        env={"TERM": "vt100"},
    )
    seen = b""
    async for piece in process.output():
        seen += piece
        if seen.endswith(b"go\r\n"):
            await process.write(b"\x03")
    assert seen.startswith(b"vt100\r\n")
    assert b"hit" in seen
    assert await process.wait() == 9


async def test_a_terminal_reads_end_of_file_when_input_is_closed(transport: LocalTransport) -> None:
    process = await transport.spawn("stty -echo; echo go; cat; echo end", terminal=TerminalSize())
    pieces = process.output()
    assert b"go" in await anext(pieces)
    await process.write(b"line\n")
    await process.write_eof()
    assert b"".join([piece async for piece in pieces]).split() == [b"line", b"end"]


async def test_background_programs_are_hung_up_when_their_terminal_closes(transport: LocalTransport) -> None:
    process = await transport.spawn("sleep 3600 & echo $!; cat", terminal=TerminalSize())
    background = int(await anext(process.output()))
    await process.terminate()
    deadline = time.monotonic() + 5
    while (
        Path(f"/proc/{background}").exists() and b") Z" not in Path(f"/proc/{background}/stat").read_bytes()
    ):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_arguments_hold_the_machines_own_variables_only(
    transport: LocalTransport, hostile_path: Path
) -> None:
    words = list(transport.argv())
    assert words[:3] == ["env", "-C", str(hostile_path)]
    assert words[-2:] == ["bash", "-l"]
    assert "OWN=own" in words
    assert not any(word.startswith("PATH=") for word in words)
    done = subprocess.run(transport.argv('pwd; echo "$OWN"'), capture_output=True, text=True)
    assert done.stdout == f"{hostile_path}\nown\n"


async def test_scripts_that_cannot_be_are_refused(transport: LocalTransport) -> None:
    with pytest.raises(InvalidError, match="NUL"):
        await transport.run("echo \0")
    with pytest.raises(InvalidError, match="environment is too large"):
        await transport.run("true", env={"X": "x" * 200_000})


async def test_the_machine_is_gone_when_its_home_is(transport: LocalTransport, hostile_path: Path) -> None:
    hostile_path.rename(hostile_path.with_name("moved"))
    with pytest.raises(UnreachableError, match="is gone"):
        await transport.run("true")


async def test_the_environment_is_asked_for_anew_when_the_machine_may_have_changed(tmp_path: Path) -> None:
    values = iter("123")
    transport = LocalTransport(
        tmp_path, {}, inherited={"PATH": os.defpath}, refresh=lambda: {"X": next(values)}
    )
    assert [(await transport.run('echo "$X"')).stdout for _ in "ab"] == [b"1\n", b"2\n"]
    assert "X=3" in transport.argv()


# Slow: a Python process of its own is started and killed.
@pytest.mark.slow
def test_children_end_or_read_end_of_file_when_the_client_is_killed(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from trainyard.transport.local import LocalTransport
async def main():
    transport = LocalTransport(Path(sys.argv[1]), {"PATH": "/usr/bin:/bin"})
    process = await transport.spawn("cat; echo over > over")
    print("ready", flush=True)
    await process.wait()
asyncio.run(main())
"""
    client = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert client.stdout.readline() == b"ready\n"
    client.kill()
    client.wait()
    client.stdout.close()
    deadline = time.monotonic() + 5
    while not (tmp_path / "over").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
