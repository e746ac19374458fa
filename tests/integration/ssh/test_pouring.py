"""Bulk from a descriptor over an open connection: exact bytes, whatever the connection is doing meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading

import pytest

from trainyard.lib.errors import UnreachableError
from trainyard.transport import sshpour
from trainyard.transport.api import Pourable, Pouring, read_all

pytestmark = pytest.mark.ssh

PACKET = sshpour.DATA
ROUND = sshpour.PACKETS * PACKET


@pytest.fixture
def content(tmp_path):
    """A file with so many bytes, opened."""
    opened = []

    def make(size: int) -> tuple[int, bytes]:
        data = os.urandom(size)
        (tmp_path / "content").write_bytes(data)
        opened.append(os.open(tmp_path / "content", os.O_RDONLY))
        return opened[-1], data

    yield make
    for descriptor in opened:
        os.close(descriptor)


def configured(tmp_path, *lines: str):
    path = tmp_path / "ssh_config"
    path.write_text("".join(f"{line}\n" for line in lines))
    return {"config_file": path}


async def digest_of(process) -> str:
    await process.write_eof()
    return (await read_all(process)).decode().split()[0]


async def pour(transport, descriptor: int, limit: int | None = None, script: str = "sha256sum") -> str:
    """What the machine says that it got."""
    process = await transport.spawn(script)
    assert isinstance(process, Pourable)
    heard = []
    count = await process.pour(descriptor, limit, heard.append)
    assert heard == sorted(heard)
    assert (heard[-1] if heard else 0) == count
    return await digest_of(process)


@pytest.mark.parametrize(
    "size",
    [0, 1, 16, PACKET - 1, PACKET, PACKET + 1, ROUND - 1, ROUND, ROUND + 17, 5_000_001],
)
async def test_all_bytes_arrive_when_a_file_is_poured(sshd, reach, content, size):
    descriptor, data = content(size)
    assert await pour(reach(sshd), descriptor) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("limit", [0, 1, PACKET, ROUND + 5, 3_000_000])
async def test_no_byte_too_many_goes_when_there_is_a_limit(sshd, reach, content, limit):
    descriptor, data = content(3_000_001)
    assert await pour(reach(sshd), descriptor, limit) == hashlib.sha256(data[:limit]).hexdigest()


async def test_a_pipe_is_waited_for_when_it_is_empty(sshd, reach):
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    pieces = [os.urandom(size) for size in (1, 40_000, 7, 300_000, 3)]

    def write() -> None:
        for piece in pieces:
            os.write(writer, piece)
        os.close(writer)

    transport = reach(sshd)
    process = await transport.spawn("sha256sum")
    pouring = asyncio.ensure_future(process.pour(reader, None, lambda _count: None))
    await asyncio.sleep(0)
    thread = threading.Thread(target=write)
    thread.start()
    assert await pouring == sum(map(len, pieces))
    thread.join()
    os.close(reader)
    assert await digest_of(process) == hashlib.sha256(b"".join(pieces)).hexdigest()


@pytest.mark.slow  # 24 MB, with the keys exchanged anew after every one
async def test_all_bytes_arrive_when_keys_are_exchanged_meanwhile(sshd, reach, content, tmp_path):
    descriptor, data = content(24_000_000)
    transport = reach(sshd, **configured(tmp_path, "RekeyLimit 1M"))
    assert await pour(transport, descriptor) == hashlib.sha256(data).hexdigest()
    assert (await transport.run("echo still here")).stdout == b"still here\n"


@pytest.mark.slow  # 12 MB, with the keys exchanged anew by the host
async def test_all_bytes_arrive_when_the_host_wants_new_keys(sshds, reach, content):
    (host,) = sshds(1, settings=["RekeyLimit 1M"])
    descriptor, data = content(12_000_000)
    assert await pour(reach(host), descriptor) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "line",
    ["Ciphers chacha20-poly1305@openssh.com", "Ciphers aes128-ctr", "Compression yes"],
)
async def test_the_usual_way_is_taken_when_the_connection_is_of_another_kind(
    sshd, reach, content, tmp_path, line
):
    descriptor, data = content(3_000_000)
    transport = reach(sshd, **configured(tmp_path, line))
    assert isinstance(transport, Pouring)
    assert not await transport.pours()
    assert await pour(transport, descriptor) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("cipher", ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com"])
async def test_it_is_poured_when_the_cipher_is_of_that_kind(sshd, reach, content, tmp_path, cipher):
    descriptor, data = content(1_000_000)
    transport = reach(sshd, **configured(tmp_path, f"Ciphers {cipher}"))
    assert await transport.pours()
    assert await pour(transport, descriptor) == hashlib.sha256(data).hexdigest()


async def test_old_libraries_seal_as_well(sshd, reach, content, monkeypatch):
    real = sshpour.AESGCM

    class Old:
        def __init__(self, key: bytes) -> None:
            self._cipher = real(key)

        def encrypt(self, nonce, data, associated_data):
            return self._cipher.encrypt(nonce, data, associated_data)

    monkeypatch.setattr(sshpour, "AESGCM", Old)
    descriptor, data = content(1_000_000)
    assert await pour(reach(sshd), descriptor) == hashlib.sha256(data).hexdigest()


async def test_nothing_of_one_stream_is_in_the_padding_of_the_next(sshd, reach, tmp_path, monkeypatch):
    real = sshpour.AESGCM
    sealed: list[bytes] = []

    class Watched:
        def __init__(self, key: bytes) -> None:
            self._cipher = real(key)

        def encrypt(self, nonce, data, associated_data):
            sealed.append(bytes(data))
            return self._cipher.encrypt(nonce, data, associated_data)

    monkeypatch.setattr(sshpour, "AESGCM", Watched)
    transport = reach(sshd)
    for text in (b"secret" * ROUND, b"plain"):
        (tmp_path / "text").write_bytes(text)
        descriptor = os.open(tmp_path / "text", os.O_RDONLY)
        assert await pour(transport, descriptor) == hashlib.sha256(text).hexdigest()
        os.close(descriptor)
    packet = sealed[-1]
    assert packet[10 : -packet[0]] == b"plain"
    assert packet[0] >= 4
    assert len(packet) % 16 == 0
    assert b"ecr" not in packet


@pytest.mark.slow  # the reader starts late, so that the window closes
async def test_the_pourer_waits_when_the_reader_is_slow(sshd, reach, content):
    descriptor, data = content(8_000_000)
    transport = reach(sshd)
    await transport.run("mkfifo gate")
    process = await transport.spawn("read -r go <gate; sha256sum")
    heard: list[int] = []
    pouring = asyncio.ensure_future(process.pour(descriptor, None, heard.append))
    async with asyncio.timeout(10):
        while not heard or heard[-1] < 2_000_000:
            await asyncio.sleep(0.01)
    # The connection is free for others meanwhile; one of them lets the reader go.
    assert (await transport.run("echo hi")).stdout == b"hi\n"
    assert not pouring.done()
    assert heard[-1] < 4_000_000
    await transport.run("echo go >gate")
    assert await pouring == len(data)
    assert await digest_of(process) == hashlib.sha256(data).hexdigest()


@pytest.mark.slow  # three streams of 6 MB, and commands between them
async def test_streams_do_not_mix_when_several_are_poured_at_once(sshd, reach, tmp_path):
    transport = reach(sshd)

    async def one(number: int) -> bool:
        data = os.urandom(6_000_000 + number)
        (tmp_path / str(number)).write_bytes(data)
        descriptor = os.open(tmp_path / str(number), os.O_RDONLY)
        try:
            return await pour(transport, descriptor) == hashlib.sha256(data).hexdigest()
        finally:
            os.close(descriptor)

    async def others() -> bool:
        answers = [await transport.run(f"echo {number}") for number in range(20)]
        return [each.stdout for each in answers] == [b"%d\n" % number for number in range(20)]

    assert await asyncio.gather(*(one(number) for number in range(3)), others()) == [True] * 4
    assert sshd.log.count("Accepted publickey") == 1


async def test_all_bytes_arrive_when_there_is_a_jump_host(sshds, reach, content):
    gate, inner = sshds(2)
    descriptor, data = content(3_000_000)
    transport = reach(inner, jump=(f"{gate.user}@{gate.address}:{gate.port}",))
    assert await transport.pours()
    assert await pour(transport, descriptor) == hashlib.sha256(data).hexdigest()


async def test_the_pipe_is_said_to_be_gone_when_the_command_ends_early(sshd, reach, content):
    descriptor, _ = content(8_000_000)
    process = await reach(sshd).spawn("head -c 100000 >/dev/null; echo enough; exit 3")
    with pytest.raises(UnreachableError):
        await process.pour(descriptor, None, lambda _count: None)
    assert await read_all(process) == b"enough\n"
    assert await process.wait() == 3


async def test_the_pipe_is_said_to_be_gone_when_the_connection_is_cut(sshd, reach, content):
    descriptor, _ = content(8_000_000)
    transport = reach(sshd)
    process = await transport.spawn("sleep 60")
    pouring = asyncio.ensure_future(process.pour(descriptor, None, lambda _count: None))
    await asyncio.sleep(0)
    sshd.cut()
    with pytest.raises(UnreachableError):
        await pouring
    assert (await transport.run("echo again")).stdout == b"again\n"
    sshd.kill_all()


async def test_another_can_follow_when_a_pouring_is_cancelled(sshd, reach, content):
    descriptor, data = content(8_000_000)
    transport = reach(sshd)
    process = await transport.spawn("sleep 60")
    pouring = asyncio.ensure_future(process.pour(descriptor, None, lambda _count: None))
    async with asyncio.timeout(10):
        while os.lseek(descriptor, 0, os.SEEK_CUR) < 2_000_000:
            await asyncio.sleep(0)
    pouring.cancel()
    await asyncio.gather(pouring, return_exceptions=True)
    await process.terminate()
    os.lseek(descriptor, 0, os.SEEK_SET)
    assert await pour(transport, descriptor) == hashlib.sha256(data).hexdigest()
