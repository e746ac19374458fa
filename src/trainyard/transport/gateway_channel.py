"""The class Channel: one operation beside a task over one WebSocket to the platform's server, with frames and windows.

`gateway.py` defines the operations. `gateway_remote.py` is the other end and documents the frames.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

from trainyard.client.connection import Connection
from trainyard.client.terminal import Terminal, open_terminal
from trainyard.lib.aio import end_task
from trainyard.lib.errors import Error, NotFoundError, UnreachableError
from trainyard.lib.shell import quote

MAGIC = b"\1trainyard-1\n"
WINDOW = 1024 * 1024  # the most input that may be sent before the remote program has taken it
PIECE = 64 * 1024
ERROR_TAIL = 64 * 1024
NOT_THERE = b"trainyard: the task does not run on this node"
_HEADER = struct.Struct(">cI")
_COUNT = struct.Struct(">I")


# The program comes first on standard input, because arguments are public on the node. This line executes it.
_BOOT = """import os, sys
text, size = b"", int(sys.argv[1])
while len(text) < size:
    piece = os.read(0, size - len(text))
    if not piece:
        sys.exit()
    text += piece
exec(text)"""


@cache
def _program() -> bytes:
    return Path(__file__).with_name("gateway_remote.py").read_bytes()


class NotBegunError(UnreachableError):
    """Nothing was run, so the operation can be tried again."""


class Channel:
    """An operation that has begun."""

    def __init__(self, terminal: Terminal, closing: AsyncExitStack, name: str) -> None:
        self._terminal = terminal
        self._closing = closing
        self._name = name
        self._received = bytearray()
        self._has_magic = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._output: deque[bytes] = deque()
        self._room = WINDOW
        self._sending = asyncio.Lock()
        self.errors = bytearray()
        self.error_limit: int | None = ERROR_TAIL
        self.begun: Mapping[str, Any] | None = None
        self.status: int | None = None
        self.ended: Mapping[str, Any] | None = None  # the last message of the remote program
        self.failure: Error | None = None  # the reason why no more messages will come
        self._is_output_over = False
        self._pump = asyncio.create_task(self._receive(), name=f"gateway to {name}")

    @classmethod
    async def open(cls, connection: Connection, job: str, task: str, name: str, wanted: Any) -> Channel:
        """Begin an operation. NotBegunError and NotFoundError say that nothing was run; other errors are refusals."""
        closing = AsyncExitStack()
        command = f"exec python3 -IS -c {quote(_BOOT)} {len(_program())}"
        try:
            terminal = await closing.enter_async_context(
                open_terminal(connection, job, task, command=command, has_terminal=False)
            )
        except UnreachableError as error:
            raise NotBegunError(error.message, hint=error.hint) from error
        channel = cls(terminal, closing, name)
        try:
            await terminal.write(_program())
            await channel.until(lambda: channel._has_magic)  # it listens
            await terminal.write(json.dumps(wanted).encode() + b"\n")
            await channel.until(lambda: channel.begun is not None or channel.ended is not None)
        except BaseException as error:
            await channel.aclose()
            if isinstance(error, UnreachableError) and not channel._has_magic:
                raise NotBegunError(error.message, hint=error.hint) from error
            raise
        return channel

    async def aclose(self) -> None:
        """Close the channel; a command that still runs is ended. Closing twice is no error."""
        self.failure = self.failure or UnreachableError(f"the connection to {self._name} was closed")
        await end_task(self._pump)
        self._notify()
        await self._closing.aclose()

    def when_over(self, callback: Callable[[Channel], None]) -> None:
        """Call `callback` when the operation has ended or its connection is lost."""
        self._pump.add_done_callback(lambda _: callback(self))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true. Raises the failure if no more messages will come."""
        while not condition():
            if self.failure is not None:
                raise type(self.failure)(self.failure.message, hint=self.failure.hint)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)

    async def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send one frame."""
        await self._terminal.write(_HEADER.pack(kind, len(payload)) + payload)

    async def write(self, data: bytes) -> None:
        """Write input as fast as the remote program takes it. UnreachableError once it takes no more."""
        rest = memoryview(data)
        async with self._sending:
            while rest:
                await self.until(lambda: self._room > 0 or self._is_finished)
                if self._is_finished:
                    raise UnreachableError(f"the command on {self._name} has ended and takes no input")
                piece = bytes(rest[: min(PIECE, self._room)])
                self._room -= len(piece)
                await self.send(b"i", piece)
                rest = rest[len(piece) :]

    async def read(self) -> bytes:
        """Return the next piece of output; b'' at its end."""
        await self.until(lambda: bool(self._output) or self._is_output_over or self.ended is not None)
        if not self._output:
            return b""
        piece = self._output.popleft()
        if self.ended is None and self.failure is None:
            await self._took(len(piece))
        return piece

    async def exit_status(self) -> int:
        """Wait for the status of a command."""
        await self.until(lambda: self.status is not None or self.ended is not None)
        if self.status is None:
            raise UnreachableError(f"the command on {self._name} ended without a status")
        return self.status

    @property
    def _is_finished(self) -> bool:
        return self.status is not None or self.ended is not None

    async def _took(self, count: int) -> None:
        try:
            await self.send(b"a", _COUNT.pack(count))
        except UnreachableError as error:  # output that came before the end may still be read
            self.failure = self.failure or error

    async def _receive(self) -> None:
        """Read all the time. Windows limit the flow, so the end of the connection is noticed at once."""
        try:
            async for message in self._terminal.output():
                self._received += message
                await self._parse()
                self._notify()
                if self.ended is not None:
                    return
            self.failure = self._unspoken()
        except Error as error:
            self.failure = self.failure or error
        finally:
            self._notify()

    def _unspoken(self) -> Error:
        """Return an error for a connection that ended without a last message."""
        if self._received.startswith(NOT_THERE):
            return NotFoundError(
                f"the task of {self._name} does not run now", hint="Look at the job's state."
            )
        said = bytes(self._received).decode(errors="replace").strip()
        return UnreachableError(
            f"nothing can be run on {self._name}" + (f": {said[-500:]}" if said else ""),
            hint="The node needs python3 in its PATH; look at `trainyard nodes`.",
        )

    async def _parse(self) -> None:
        if not self._has_magic:
            if not self._received.startswith(MAGIC):
                return
            del self._received[: len(MAGIC)]
            self._has_magic = True
        start = 0
        while len(self._received) - start >= _HEADER.size:
            kind, size = _HEADER.unpack_from(self._received, start)
            end = start + _HEADER.size + size
            if len(self._received) < end:
                break
            await self._take(kind, bytes(self._received[start + _HEADER.size : end]))
            start = end
        del self._received[:start]

    async def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == b"o":
            self._output.append(payload)
        elif kind == b"x":
            self.errors += payload
            if self.error_limit is not None:
                del self.errors[: -self.error_limit]
            await self._took(len(payload))
        elif kind == b"a":
            self._room += _COUNT.unpack(payload)[0]
        elif kind == b"O":
            self._is_output_over = True
        elif kind == b"S":
            self.begun = json.loads(payload)
        elif kind == b"X":
            self.status = int(json.loads(payload)["status"])
        elif kind == b"E":
            self.ended = json.loads(payload)

    def _notify(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
