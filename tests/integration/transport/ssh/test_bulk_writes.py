"""Bulk over an open connection: exact bytes, whatever the connection is doing meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from trainyard.lib.errors import UnreachableError
from trainyard.transport.api import read_all

pytestmark = pytest.mark.ssh

PACKET = 32 * 1024  # OpenSSH takes no more in one
CHUNK = 128 * 1024  # as copies write


def configured(tmp_path, *lines: str):
    path = tmp_path / "ssh_config"
    path.write_text("".join(f"{line}\n" for line in lines))
    return {"config_file": path}


async def write(process, data: bytes, heard: list[int] | None = None) -> None:
    for start in range(0, len(data), CHUNK):
        await process.write(data[start : start + CHUNK])
        if heard is not None:
            heard.append(start)


async def digest_of(process) -> str:
    await process.write_eof()
    return (await read_all(process)).decode().split()[0]


async def send(transport, data: bytes) -> bool:
    """Whether the machine says that it got just this."""
    process = await transport.spawn("sha256sum")
    await write(process, data)
    return await digest_of(process) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, PACKET - 1, PACKET, PACKET + 1, CHUNK + 17, 5_000_001])
async def test_all_bytes_arrive_when_they_are_many(sshd, reach, size):
    assert await send(reach(sshd), os.urandom(size))


@pytest.mark.slow  # 24 MB, with the keys exchanged anew after every one
async def test_all_bytes_arrive_when_keys_are_exchanged_meanwhile(sshd, reach, tmp_path):
    transport = reach(sshd, **configured(tmp_path, "RekeyLimit 1M"))
    assert await send(transport, os.urandom(24_000_000))
    assert (await transport.run("echo still here")).stdout == b"still here\n"


@pytest.mark.slow  # 12 MB, with the keys exchanged anew by the host
async def test_all_bytes_arrive_when_the_host_wants_new_keys(sshds, reach):
    (host,) = sshds(1, settings=["RekeyLimit 1M"])
    assert await send(reach(host), os.urandom(12_000_000))


@pytest.mark.parametrize(
    "line",
    [
        "Ciphers chacha20-poly1305@openssh.com",
        "Ciphers aes128-ctr",
        "Ciphers aes256-gcm@openssh.com",
        "Compression yes",
    ],
)
async def test_all_bytes_arrive_when_the_connection_is_of_another_kind(sshd, reach, tmp_path, line):
    assert await send(reach(sshd, **configured(tmp_path, line)), os.urandom(3_000_000))


@pytest.mark.slow  # the reader starts late, so that the window closes
async def test_the_writer_waits_when_the_reader_is_slow(sshd, reach):
    data = os.urandom(8_000_000)
    transport = reach(sshd)
    await transport.run("mkfifo gate")
    process = await transport.spawn("read -r go <gate; sha256sum")
    heard: list[int] = []
    writing = asyncio.ensure_future(write(process, data, heard))
    async with asyncio.timeout(10):
        while not heard or heard[-1] < 1_500_000:
            await asyncio.sleep(0.01)
    # The connection is free for others meanwhile; one of them lets the reader go.
    assert (await transport.run("echo hi")).stdout == b"hi\n"
    assert not writing.done()
    assert heard[-1] < 4_000_000
    await transport.run("echo go >gate")
    await writing
    assert await digest_of(process) == hashlib.sha256(data).hexdigest()


@pytest.mark.slow  # three streams of 6 MB, and commands between them
async def test_streams_do_not_mix_when_several_are_written_at_once(sshd, reach):
    transport = reach(sshd)

    async def others() -> bool:
        answers = [await transport.run(f"echo {number}") for number in range(20)]
        return [each.stdout for each in answers] == [b"%d\n" % number for number in range(20)]

    streams = [send(transport, os.urandom(6_000_000 + number)) for number in range(3)]
    assert await asyncio.gather(*streams, others()) == [True] * 4
    assert sshd.log.count("Accepted publickey") == 1


async def test_all_bytes_arrive_when_there_is_a_jump_host(sshds, reach):
    gate, inner = sshds(2)
    transport = reach(inner, jump=(f"{gate.user}@{gate.address}:{gate.port}",))
    assert await send(transport, os.urandom(3_000_000))


async def test_the_pipe_is_said_to_be_gone_when_the_command_ends_early(sshd, reach):
    process = await reach(sshd).spawn("head -c 100000 >/dev/null; echo enough; exit 3")
    with pytest.raises(UnreachableError):
        await write(process, os.urandom(8_000_000))
    assert await read_all(process) == b"enough\n"
    assert await process.wait() == 3


async def test_the_pipe_is_said_to_be_gone_when_the_connection_is_cut(sshd, reach):
    transport = reach(sshd)
    process = await transport.spawn("sleep 60")
    writing = asyncio.ensure_future(write(process, os.urandom(8_000_000)))
    await asyncio.sleep(0)
    sshd.cut()
    with pytest.raises(UnreachableError):
        await writing
    assert (await transport.run("echo again")).stdout == b"again\n"
    sshd.kill_all()


async def test_another_can_follow_when_a_writer_is_cancelled(sshd, reach):
    transport = reach(sshd)
    process = await transport.spawn("sleep 60")
    heard: list[int] = []
    writing = asyncio.ensure_future(write(process, os.urandom(8_000_000), heard))
    async with asyncio.timeout(10):
        while not heard or heard[-1] < 1_000_000:
            await asyncio.sleep(0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await process.terminate()
    assert await send(transport, os.urandom(1_000_000))
