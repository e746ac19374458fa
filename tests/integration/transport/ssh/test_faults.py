"""Links that break: a clear error, never a silent end, and the next use works again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import socket
import time

import pytest

from sshd import Sshd, free_port
from trainyard.lib.errors import DeniedError, UnreachableError
from trainyard.transport.api import TerminalSize, read_all

pytestmark = pytest.mark.ssh
needs_bash = pytest.mark.skipif(
    not pwd.getpwuid(os.getuid()).pw_shell.endswith("/bash"), reason="puts its trap into ~/.bashrc"
)


async def until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def test_run_is_unreachable_when_the_link_is_cut_in_the_middle(sshd: Sshd, reach):
    transport = reach(sshd)
    task = asyncio.ensure_future(transport.run("echo started > mark; sleep 1000"))
    await until((sshd.home / "mark").exists)

    sshd.cut()

    with pytest.raises(UnreachableError, match="alpha"):
        await task
    sshd.kill_all()


async def test_spawn_never_ends_silently_when_the_link_is_cut(sshd: Sshd, reach):
    transport = reach(sshd)
    process = await transport.spawn("echo one; cat")
    output = process.output()
    assert await anext(output) == b"one\n"

    sshd.cut()

    with pytest.raises(UnreachableError, match="alpha"):
        await anext(output)
    with pytest.raises(UnreachableError, match="alpha"):
        await process.wait()
    with pytest.raises(UnreachableError):
        await process.write(b"x")
    await process.terminate()


async def test_many_waiters_all_hear_when_the_link_is_cut(sshd: Sshd, reach, ssh_terminals):
    transport = reach(sshd)
    processes = [await transport.spawn("cat") for _ in range(12)]
    terminal = await transport.spawn("cat", terminal=TerminalSize())
    waits = [asyncio.ensure_future(each.wait()) for each in (*processes, terminal)]
    reads = [asyncio.ensure_future(read_all(each)) for each in (*processes, terminal)]

    sshd.cut()

    for result in await asyncio.gather(*waits, *reads, return_exceptions=True):
        assert isinstance(result, UnreachableError)
    assert (await transport.run("echo back")).stdout == b"back\n"


async def test_next_use_works_when_the_link_was_cut_while_idle(sshd: Sshd, reach):
    transport = reach(sshd)
    await transport.run("true")

    for _ in range(3):
        sshd.cut()
        assert (await transport.run("echo back")).stdout == b"back\n"


async def test_next_use_works_when_sshd_restarts(sshd: Sshd, reach):
    transport = reach(sshd)
    await transport.run("true")

    sshd.restart()

    done = await asyncio.gather(*(transport.run("echo back") for _ in range(20)))
    assert {each.stdout for each in done} == {b"back\n"}
    assert (
        len(sshd.connection_pids()) <= 2
    )  # one connection; as an ordinary user's sshd shows one or two processes


@pytest.mark.slow  # eight broken links, sixty commands
async def test_commands_run_once_when_links_break_all_the_time(sshd: Sshd, reach):
    transport = reach(sshd)
    started = set()

    async def run(number: int) -> None:
        with contextlib.suppress(UnreachableError):
            await transport.run(f"echo {number} >> log")
            started.add(number)

    async def cut() -> None:
        for _ in range(8):
            await asyncio.sleep(0.02)
            sshd.cut()

    await asyncio.gather(cut(), *(run(number) for number in range(60)))

    lines = (sshd.home / "log").read_text().split()
    assert len(lines) == len(set(lines))
    assert {str(number) for number in started} <= set(lines)


@pytest.mark.slow  # a refused connection is tried again for most of a second
async def test_port_is_named_when_the_connection_is_refused(sshd: Sshd, reach):
    port = free_port()
    transport = reach(sshd, port=port)

    with pytest.raises(
        UnreachableError, match=f"{sshd.address}:{port} cannot be reached: the connection was refused"
    ):
        await transport.run("true")


async def test_first_use_waits_a_moment_when_sshd_is_just_starting(sshd: Sshd, reach):
    sshd.stop()
    transport = reach(sshd)
    task = asyncio.ensure_future(transport.run("echo up"))
    await asyncio.sleep(0.05)

    sshd.restart()

    assert (await task).stdout == b"up\n"


async def test_name_is_told_when_it_is_unknown(sshd: Sshd, reach):
    transport = reach(sshd, host="no-such-host.invalid")

    with pytest.raises(UnreachableError, match=r"'no-such-host\.invalid' is unknown"):
        await transport.run("true")


async def test_connect_times_out_when_the_host_is_silent(sshd: Sshd, reach):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        transport = reach(sshd, port=silent.getsockname()[1], connect_timeout=0.3)
        before = time.monotonic()

        with pytest.raises(UnreachableError, match=r"no answer within 0\.3 seconds"):
            await transport.run("true")

        assert time.monotonic() - before < 3


@pytest.mark.slow  # tried again for most of a second
async def test_connect_fails_clearly_when_the_port_is_no_ssh(sshd: Sshd, reach):
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n" * 50)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        transport = reach(sshd, port=server.sockets[0].getsockname()[1])
        with pytest.raises(UnreachableError, match="cannot be reached"):
            await transport.run("true")


@pytest.mark.slow  # three keep-alives must go unanswered, and their interval is a whole number of seconds at least 1
async def test_run_is_unreachable_when_the_link_goes_silent(sshd: Sshd, reach):
    transport = reach(sshd, keepalive=0.3)
    task = asyncio.ensure_future(transport.run("echo started > mark; sleep 1000"))
    await until((sshd.home / "mark").exists)

    sshd.freeze()

    with pytest.raises(UnreachableError):
        async with asyncio.timeout(10):
            await task
    sshd.kill_all()
    sshd.cut()
    assert (await transport.run("echo back")).stdout == b"back\n"


async def test_all_share_one_attempt_when_many_start_at_once(sshd: Sshd, reach):
    transport = reach(sshd)

    await asyncio.gather(*(transport.run("true") for _ in range(8)))

    assert sshd.log.count("Accepted publickey") == 1


async def test_others_still_connect_when_one_who_waits_is_cancelled(sshd: Sshd, reach):
    transport = reach(sshd)
    first = asyncio.ensure_future(transport.run("true"))
    second = asyncio.ensure_future(transport.run("echo second"))
    await asyncio.sleep(0.005)

    first.cancel()

    assert (await second).stdout == b"second\n"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert sshd.log.count("Accepted publickey") == 1


async def test_nothing_stays_open_when_the_connect_is_cancelled(sshd: Sshd, reach):
    transport = reach(sshd)
    for wait in (0, 0.005, 0.01, 0.02, 0.03, 0.04):
        task = asyncio.ensure_future(transport.run("true"))
        await asyncio.sleep(wait)
        task.cancel()
        await asyncio.wait([task])
        if task.cancelled() and not transport._pool._places:
            await until(lambda: not sshd.connection_pids())

    assert (await transport.run("echo fine")).stdout == b"fine\n"


async def test_waiters_are_told_when_the_transport_closes(sshd: Sshd, reach):
    transport = reach(sshd)
    running = asyncio.ensure_future(transport.run("sleep 1000"))
    process = await transport.spawn("echo up; sleep 1000")
    assert await anext(process.output()) == b"up\n"

    await transport.aclose()

    assert await process.wait() == 128 + 15
    assert (await running).status == 128 + 15
    with pytest.raises(UnreachableError, match="closed"):
        await transport.run("true")
    await until(lambda: not sshd.connection_pids())


async def test_close_ends_the_attempt_when_it_is_still_connecting(sshd: Sshd, reach):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        transport = reach(sshd, port=silent.getsockname()[1])
        task = asyncio.ensure_future(transport.run("true"))
        await asyncio.sleep(0.01)

        await transport.aclose()

        with pytest.raises(UnreachableError, match="closed"):
            await task


async def test_old_file_stays_when_the_link_is_cut_in_a_copy(sshd: Sshd, reach, tmp_path):
    transport = reach(sshd)
    source = tmp_path / "source"
    source.write_bytes(b"old")
    await transport.put(source, "copy")
    with source.open("wb") as file:
        file.truncate(500_000_000)
    task = asyncio.ensure_future(transport.put(source, "copy"))
    await until(
        lambda: any(
            path.name.startswith(".trainyard-") and path.stat().st_size for path in sshd.home.iterdir()
        )
    )

    sshd.cut()

    with pytest.raises(UnreachableError):
        await task
    await until(lambda: [path.name for path in sshd.home.iterdir()] == ["copy"])
    assert (sshd.home / "copy").read_bytes() == b"old"


async def test_no_part_is_left_here_when_the_link_is_cut_in_a_fetch(sshd: Sshd, reach, tmp_path):
    transport = reach(sshd)
    with (sshd.home / "big").open("wb") as file:
        file.truncate(500_000_000)
    folder = tmp_path / "folder"
    folder.mkdir()
    task = asyncio.ensure_future(transport.get("big", folder / "big"))
    await until(lambda: any(path.stat().st_size for path in folder.iterdir()))

    sshd.cut()

    with pytest.raises(UnreachableError):
        await task
    assert list(folder.iterdir()) == []


@needs_bash
async def test_disk_that_is_full_is_told_when_a_copy_does_not_fit(sshd: Sshd, reach, tmp_path):
    transport = reach(sshd)
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)
    limited = sshd.home / "limited"
    limited.mkdir()
    # A limit on the size of files does to one account what a full disk does to all.
    (sshd.home / ".bashrc").write_text("trap '' XFSZ; ulimit -f 100\n")

    with pytest.raises(DeniedError, match=r"(?i)file (size|too large)|limit"):
        await transport.put(source, "limited/target")

    assert list(limited.iterdir()) == []


async def test_stream_tells_a_cut_from_an_end(sshd: Sshd, reach):
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        stream = await reach(sshd).connect(server.sockets[0].getsockname()[1])
        assert await stream.read() == b"hello"

        sshd.cut()

        with pytest.raises(UnreachableError):
            await stream.read()
        with pytest.raises(UnreachableError):
            await stream.write(b"x")
        await stream.aclose()


async def test_no_stream_stays_open_when_its_opening_is_cancelled(sshd: Sshd, reach):
    transport = reach(sshd)
    await transport.run("true")
    opened, closed = 0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened, closed
        opened += 1
        await reader.read()
        closed += 1
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        for wait in (0, 0.0005, 0.001, 0.002, 0.004):
            task = asyncio.ensure_future(transport.connect(server.sockets[0].getsockname()[1]))
            await asyncio.sleep(wait)
            if not task.cancel():
                await (await task).aclose()
            await asyncio.wait([task])
        stream = await transport.connect(server.sockets[0].getsockname()[1])
        await stream.aclose()
        await until(lambda: closed == opened > 0)


@needs_bash
@pytest.mark.slow  # three seconds are given to a login shell before it is given up
async def test_terminate_does_not_wait_for_ever_when_the_login_shell_hangs(sshd: Sshd, reach):
    transport = reach(sshd)
    await transport.run("true")
    (sshd.home / ".bashrc").write_text("sleep 1000\n")
    process = await transport.spawn("echo never")

    async with asyncio.timeout(20):
        await process.terminate()

    with pytest.raises(UnreachableError):
        await process.wait()
    sshd.kill_all()


async def test_forwarding_is_denied_when_the_host_does_not_allow_it(sshds, reach):
    (host,) = sshds(1, settings=["AllowTcpForwarding no"])

    with pytest.raises(DeniedError, match="does not allow forwarding"):
        await reach(host).connect(1)


async def test_login_shell_that_runs_nothing_is_told(sshds, reach):
    (host,) = sshds(1, settings=["ForceCommand echo This account is not available; exit 1"])
    transport = reach(host)

    with pytest.raises(DeniedError, match="This account is not available"):
        await transport.run("true")
    process = await transport.spawn("cat")
    with pytest.raises(DeniedError, match="This account is not available"):
        await process.wait()


@needs_bash
async def test_output_is_clean_when_the_start_up_files_talk(sshd: Sshd, reach, ssh_terminals):
    (sshd.home / ".bashrc").write_text("echo Welcome to the machine\necho 'long line' $(seq 5000)\n")
    transport = reach(sshd)

    assert (await transport.run("echo clean")).stdout == b"clean\n"
    process = await transport.spawn("echo clean", terminal=TerminalSize())
    assert await read_all(process) == b"clean\r\n"
