"""Receives the output of a script on a machine. Large outputs come through the system's `ssh`, as in `send.py`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from trainyard.lib.aio import end_task, finish
from trainyard.lib.errors import UnreachableError
from trainyard.transport.api import Process, Transport
from trainyard.transport.copy.payload import Payload, make_payload
from trainyard.transport.copy.send import BULK, SSH_FAILED, bulk_argv

CHUNK = 1024 * 1024
BATCH = 1024 * 1024  # so many bytes are gathered before a thread writes them

Consumer = Callable[[bytes], None]


async def drain(
    transport: Transport, script: str, stdin: bytes, consume: Consumer, *, expected: int
) -> tuple[int, str]:
    """Run `script` and pass its output to `consume` in a thread. Returns its status and its standard error.

    Cancelling ends the script and waits for the consumer. UnreachableError if the connection is lost.
    """
    words = bulk_argv(transport, script) if expected > BULK else None
    if words is not None:
        payload = make_payload(lambda descriptor: os.write(descriptor, stdin))
        try:
            result = await _through_program(words, payload, consume)
        finally:
            payload.close()
        if result is not None:
            return result
    return await _through_channel(transport, script, stdin, consume)


async def _through_program(
    words: Sequence[str], payload: Payload, consume: Consumer
) -> tuple[int, str] | None:
    """Receive through `ssh`. None if ssh failed before any output; then the open connection may still work."""
    descriptor = payload.open()
    reader, writer = os.pipe()
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=descriptor,
                stdout=writer,
                stderr=asyncio.subprocess.PIPE,
                process_group=0,
            )
        finally:
            os.close(descriptor)
            os.close(writer)
        complaining = asyncio.ensure_future(process.communicate())
        stopped = threading.Event()
        reading = asyncio.ensure_future(asyncio.to_thread(_pump, reader, consume, stopped))
        try:
            count = await asyncio.shield(reading)
            _, errors = await complaining
        except BaseException:
            # Also where the consumer failed: a full disk here must not leave ssh there.
            stopped.set()
            with suppress(ProcessLookupError):
                process.terminate()
            await finish(_settle(reading, complaining))
            raise
    finally:
        os.close(reader)
    if process.returncode == SSH_FAILED and not count:
        return None
    if process.returncode == SSH_FAILED:
        raise UnreachableError(
            "the connection was lost during the download", hint="Download again; only the rest comes."
        )
    return process.returncode or 0, errors.decode(errors="replace")


async def _settle(*futures: asyncio.Future[int] | asyncio.Future[tuple[bytes, bytes]]) -> None:
    await asyncio.wait(futures)


def _pump(reader: int, consume: Consumer, stopped: threading.Event) -> int:
    count = 0
    while not stopped.is_set() and (piece := os.read(reader, CHUNK)):
        count += len(piece)
        consume(piece)
    return count


async def _through_channel(
    transport: Transport, script: str, stdin: bytes, consume: Consumer
) -> tuple[int, str]:
    process = await transport.spawn(script)
    writing = asyncio.ensure_future(_write(process, stdin))
    try:
        held: list[bytes] = []
        async for piece in process.output():
            held.append(piece)
            if sum(map(len, held)) >= BATCH:
                await finish(asyncio.to_thread(consume, b"".join(held)))
                held.clear()
        await finish(asyncio.to_thread(consume, b"".join(held)))
        status = await process.wait()
        return status, process.errors.decode(errors="replace")
    except BaseException:
        await finish(_end(process))
        raise
    finally:
        await end_task(writing)


async def _write(process: Process, data: bytes) -> None:
    # A script that reads nothing more has its reasons; its status tells them.
    with suppress(UnreachableError):
        await process.write(data)
        await process.write_eof()


async def _end(process: Process) -> None:
    with suppress(UnreachableError):
        await process.terminate()
