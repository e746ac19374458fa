"""Streams: made while they are read, by nobody who could be forgotten."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from trainyard.lib.errors import DeniedError, UnreachableError
from trainyard.transport.copy import send
from trainyard.transport.copy.payload import Stream
from trainyard.transport.local import LocalTransport

DATA = os.urandom(5_000_000)


@pytest.fixture
async def machine(tmp_path):
    transport = LocalTransport(tmp_path, {"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    yield transport
    await transport.aclose()


def write_all(descriptor: int) -> int:
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(DATA)
    return len(DATA)


def streams() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "trainyard-stream"]


async def until_gone() -> None:
    async with asyncio.timeout(5):
        while streams():  # it has settled; the thread itself ends a moment later
            await asyncio.sleep(0.001)


def nothing(_count: int) -> None:
    """Nobody watches."""


async def test_a_stream_arrives_whole_when_it_is_longer_than_the_pipe(machine, tmp_path):
    process, seen = await machine.spawn("cat >got"), []
    stream = Stream(write_all, len(DATA))
    await send._write(process, stream, seen.append)
    assert await process.wait() == 0
    assert (tmp_path / "got").read_bytes() == DATA
    assert seen[-1] == stream.length == len(DATA)
    await until_gone()


async def test_the_length_is_the_true_one_when_a_stream_was_announced_longer(machine, tmp_path):
    process = await machine.spawn("cat >got")
    stream = Stream(lambda descriptor: os.write(descriptor, b"short"), 1000)
    await send._write(process, stream, nothing)
    await process.wait()
    assert ((tmp_path / "got").read_bytes(), stream.length) == (b"short", 5)
    await until_gone()


async def test_the_reader_hears_of_it_when_the_maker_fails(machine):
    def write(descriptor: int) -> int:
        os.write(descriptor, b"half")
        raise DeniedError("cannot be read")

    process = await machine.spawn("cat >/dev/null")
    with pytest.raises(DeniedError):
        await send._write(process, Stream(write, 1000), nothing)
    await process.terminate()
    await until_gone()


async def test_the_maker_stops_when_the_reader_leaves(machine):
    process = await machine.spawn("head -c 1000 >/dev/null")
    with pytest.raises(UnreachableError):
        await send._write(process, Stream(write_all, len(DATA)), nothing)
    await process.wait()
    await until_gone()


async def test_the_maker_stops_when_the_reader_is_cancelled(machine):
    process = await machine.spawn("exec sleep 30")
    work = asyncio.ensure_future(send._write(process, Stream(write_all, len(DATA)), nothing))
    async with asyncio.timeout(5):
        while not streams():
            await asyncio.sleep(0.001)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await process.terminate()
    await until_gone()


async def test_nothing_is_begun_when_nobody_reads():
    stream = Stream(write_all, len(DATA))
    await stream.settled()
    stream.close()
    assert streams() == []
