"""Sends one payload to a script on a machine, over the open connection. Large payloads go through the system's `ssh`,
which encrypts on a core of its own and reads the payload without passing it through Python.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from trainyard.lib.aio import end_task, finish, readable
from trainyard.lib.errors import InvalidError, UnreachableError
from trainyard.transport.api import Attachable, Process, Transport
from trainyard.transport.copy.payload import Payload, Stream

# From these sizes on, of one payload and of all payloads to all machines, a second connection pays: a login costs about
# 0.15 s of processor time on both ends together, asyncssh 2.4 ms a megabyte on the one core that Python has.
BULK = 32 * 1024 * 1024
BULK_IN_ALL = 128 * 1024 * 1024
CHUNK = 128 * 1024
POLL_SECONDS = 0.1
END_SECONDS = 2.0  # the time that a script needs to tidy up after the end of its input
LONGEST_ARGUMENT = 100_000  # Linux refuses a single argument of 128 KiB
LONGEST_REASON = 500
LONGEST_OUTPUT = 64 * 1024  # a limit for the output of our scripts, which print only a few lines
# A machine that takes no byte for so long, or does not finish, is given up. The time to unpack or assemble files at the
# speed of a slow disk is added.
STALL_SECONDS = 120.0
WORK_RATE = 4 * 1024 * 1024
WATCH_SECONDS = 0.25

T = TypeVar("T")
SSH_FAILED = 255
_FAREWELLS = ("exit status", "failure status", "not recoverable", "exit delayed")

# These are only preferred; a host that lacks them gets the rest of the default list.
QUICK = (
    *("-c", "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"),
    *("-o", "KexAlgorithms=^curve25519-sha256,curve25519-sha256@libssh.org"),
    *("-o", "BatchMode=yes"),
    *("-o", "Compression=no"),
    *("-o", "ControlMaster=no"),
    *("-o", "ControlPath=none"),
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "ServerAliveInterval=10"),
    *("-o", "ServerAliveCountMax=3"),
)


@dataclass(frozen=True)
class Outcome:
    """The result of a script: the text after our mark on its last marked line, and its standard error."""

    words: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    errors: str

    @property
    def is_ok(self) -> bool:
        """Whether everything has arrived."""
        return self.words[:1] == ("ok",)

    @property
    def reason(self) -> str:
        """The last error message."""
        return last_complaint(self.errors)


def last_complaint(errors: str) -> str:
    """Return the line of standard error with the cause. The last line of GNU tar says only that it exits."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    useful = [line for line in lines if not any(phrase in line for phrase in _FAREWELLS)]
    return printable((useful or lines or ["no reason given"])[-1])


def printable(text: str) -> str:
    """Clean a machine's output for a message: no control characters and only a few lines."""
    return "".join(char if char.isprintable() else "?" for char in text[:LONGEST_REASON])


class Patience:
    """Ends a transfer that has not moved for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._moved = time.monotonic()
        self._count = 0

    def note(self, count: int) -> None:
        """Note how many bytes have been sent so far."""
        if count > self._count:
            self._count = count
            self._moved = time.monotonic()

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work. If nothing moves any more, cancel it and raise TimeoutError."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if time.monotonic() - self._moved > self._seconds:
                    raise TimeoutError
                await asyncio.wait({task}, timeout=min(WATCH_SECONDS, self._seconds))
            return task.result()
        finally:
            await finish(end_task(task))


def patience_for(work: int) -> float:
    """Return how many seconds to wait for a machine that must process so many bytes after receiving them."""
    return STALL_SECONDS + work / WORK_RATE


async def read_bounded(process: Process) -> bytes:
    """Return the output of a script of ours. InvalidError if it is too long."""
    output = bytearray()
    async for piece in process.output():
        output += piece
        if len(output) > LONGEST_OUTPUT:
            raise InvalidError(
                "the machine prints without an end",
                hint="Look at the machine; it does not do what it was told.",
            )
    return bytes(output)


async def feed(
    transport: Transport,
    script: str,
    payload: Payload | Stream,
    mark: str,
    on_bytes: Callable[[int], None],
    *,
    in_all: int,
    seconds: float = STALL_SECONDS,
) -> Outcome:
    """Run `script` with the payload as its standard input. `on_bytes` gets the number of bytes sent.

    `in_all` is the number of bytes that are being sent to all machines together.

    Cancelling closes the script's input, so that it can tidy up, and ends it. UnreachableError if the connection is lost or
    nothing moves for `seconds`.
    """
    patience = Patience(seconds)

    def moved(count: int) -> None:
        patience.note(count)
        on_bytes(count)

    try:
        return await patience.watch(_feed(transport, script, payload, mark, moved, in_all))
    except TimeoutError as error:
        raise UnreachableError(
            f"the machine took nothing, and said nothing, for {seconds:.0f} seconds"
        ) from error


async def _feed(
    transport: Transport,
    script: str,
    payload: Payload | Stream,
    mark: str,
    on_bytes: Callable[[int], None],
    in_all: int,
) -> Outcome:
    words = None
    if isinstance(payload, Payload) and is_bulk(payload.length, in_all):
        words = bulk_argv(transport, script)
    if words is not None and isinstance(payload, Payload):
        outcome = await _through_program(words, payload, mark, on_bytes)
        if outcome is not None:
            return outcome
    return await _through_channel(transport, script, payload, mark, on_bytes)


def is_bulk(length: int, in_all: int) -> bool:
    """Return whether a payload of `length` bytes, of `in_all` for all machines, is worth its own connection."""
    return length > BULK and in_all > BULK_IN_ALL


def bulk_argv(transport: Transport, script: str) -> Sequence[str] | None:
    """Return the `ssh` command line that runs `script` on the machine; None if there is none."""
    if not isinstance(transport, Attachable) or len(script) > LONGEST_ARGUMENT:
        return None
    words = transport.argv(script, terminal=False)
    program = shutil.which(words[0])
    if os.path.basename(words[0]) != "ssh" or program is None:  # noqa: PTH119  # a word of a command
        return None
    return [program, *QUICK, *words[1:]]


async def _through_program(
    words: Sequence[str], payload: Payload, mark: str, on_bytes: Callable[[int], None]
) -> Outcome | None:
    """Send through `ssh`. None if ssh failed before it took any byte; then the open connection may still work."""
    descriptor = payload.open()
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=descriptor,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # The process gets its own group, so that only we pass on Ctrl-C. It gets no session of its own: Linux shares the
            # processor by session, so ssh would run ahead of tar, and sshd would use half as much again on its buffers.
            process_group=0,
        )
        watching = asyncio.ensure_future(_watch(descriptor, payload, on_bytes))
        try:
            output, errors = await _communicate(process)
        except BaseException:
            await finish(_end(process))
            raise
        finally:
            await end_task(watching)
        outcome = make_outcome(output, errors, mark)
        taken = os.lseek(descriptor, 0, os.SEEK_CUR) - payload.start
        if process.returncode == SSH_FAILED and not outcome.words:
            if taken:
                raise UnreachableError(f"the connection was lost: {outcome.reason}")
            return None
        on_bytes(taken)
        return outcome
    finally:
        os.close(descriptor)


async def _watch(descriptor: int, payload: Payload, on_bytes: Callable[[int], None]) -> None:
    # Position is shared with the program that reads.
    while True:
        await asyncio.sleep(POLL_SECONDS)
        on_bytes(os.lseek(descriptor, 0, os.SEEK_CUR) - payload.start)


async def _communicate(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Return the bounded output and errors of a process once it has ended."""
    if process.stdout is None or process.stderr is None:
        return b"", b""
    async with asyncio.TaskGroup() as group:
        output = group.create_task(_read_stream(process.stdout, LONGEST_OUTPUT))
        errors = group.create_task(_read_stream(process.stderr, LONGEST_OUTPUT))
    await process.wait()
    return output.result(), errors.result()


async def _read_stream(stream: asyncio.StreamReader, most: int) -> bytes:
    """Return the last bytes of a stream."""
    found = b""
    while piece := await stream.read(CHUNK):
        found = (found + piece)[-most:]
    return found


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    await _communicate(process)


async def _through_channel(
    transport: Transport, script: str, payload: Payload | Stream, mark: str, on_bytes: Callable[[int], None]
) -> Outcome:
    process = await transport.spawn(script)
    try:
        reading = asyncio.ensure_future(read_bounded(process))
        try:
            # A script that has failed closes its input. Its own error message is better than ours.
            with suppress(UnreachableError):
                await _write(process, payload, on_bytes)
            output = await reading
            await process.wait()
        finally:
            await end_task(reading)
        return make_outcome(output, process.errors, mark)
    except BaseException:
        await finish(_close(process))
        raise


async def _write(process: Process, payload: Payload | Stream, on_bytes: Callable[[int], None]) -> None:
    descriptor = payload.open()
    try:
        # A stream is read to its end: its maker waits for that.
        limit = payload.length if isinstance(payload, Payload) else None
        await _copy(process, descriptor, limit, on_bytes)
        if isinstance(payload, Stream):
            await payload.ended()
        await process.write_eof()
    finally:
        os.close(descriptor)
        if isinstance(payload, Stream):
            await finish(payload.settled())


async def _copy(
    process: Process, descriptor: int, limit: int | None, on_bytes: Callable[[int], None]
) -> None:
    done = 0
    while chunk := await _read(descriptor, CHUNK if limit is None else limit - done):
        await process.write(chunk)
        done += len(chunk)
        on_bytes(done)


async def _read(descriptor: int, limit: int) -> bytes:
    """Return the next bytes; b'' at the end. Only a stream can make it wait."""
    while True:
        try:
            return os.read(descriptor, min(CHUNK, limit))
        except BlockingIOError:
            await readable(descriptor)


async def _close(process: Process) -> None:
    """Send end of file first, so that the script removes partial files; then end it if it still runs."""
    with suppress(UnreachableError, TimeoutError):
        await process.write_eof()
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    with suppress(UnreachableError):
        await process.terminate()


def make_outcome(output: bytes, errors: bytes, mark: str) -> Outcome:
    """Find our lines in what the script printed."""
    lines = [line.split() for line in output.decode(errors="replace").splitlines() if line.startswith(mark)]
    ours = tuple(tuple(words[1:]) for words in lines)
    return Outcome(ours[-1] if ours else (), ours, errors.decode(errors="replace"))
