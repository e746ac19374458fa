"""Commands and port streams over an ssh connection, with flow control in both directions.

A lost connection raises UnreachableError in every read, write and wait. `ssh_connect.py` opens connections and
`ssh_pool.py` shares them.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from trainyard.lib.errors import DeniedError, UnreachableError
from trainyard.transport.api import TerminalSize
from trainyard.transport.ssh_import import asyncssh

ERROR_TAIL = 64 * 1024
# The bytes buffered for a slow reader. asyncssh holds at most one window (2 MiB) more, then the host blocks.
READ_AHEAD = 512 * 1024
# A command prints its process id before its own output, so that it can be ended. The output of a login shell's
# start-up files comes before the process id and does not belong to the command.
ANNOUNCEMENT = b"\x1etrainyard "
ANNOUNCE_SECONDS = 3.0  # for a login shell that hangs in its start-up files; its command never began
CLOSE_SECONDS = 1.0
MOST_ROUNDS = 10  # round trips through sshd's event loop, which reads half a pipe or more in each
LONGEST_GREETING = 1024 * 1024
UNKNOWN_SIGNAL_STATUS = 128  # OpenSSH names only POSIX's signals; the number of others is not known


class Pipe:
    """Bytes from a channel in order, with back pressure. It ends by end of file or by a lost connection."""

    def __init__(self, lost_message: str) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._lost = False
        self._waiter: asyncio.Future[None] | None = None
        self._lost_message = lost_message
        self.pause: Callable[[], None] | None = None
        self.resume: Callable[[], None] | None = None
        self._paused = False

    def feed(self, data: bytes) -> None:
        """Add data that has come."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > READ_AHEAD and self.pause is not None and not self._paused:
            self._paused = True
            self.pause()
        self._wake()

    def end(self) -> None:
        """End of file."""
        self._ended = True
        self._wake()

    def lose(self) -> None:
        """Note that the connection was lost before the end of file."""
        self._lost = not self._ended
        self._wake()

    async def take(self) -> bytes:
        """Wait for the first byte and return all bytes; b'' at the end. UnreachableError after a lost connection."""
        while not self._pieces:
            if self._ended:
                return b""
            if self._lost:
                raise UnreachableError(self._lost_message)
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take_now()

    def take_now(self) -> bytes:
        """Return all bytes that are there now, without waiting."""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._paused and self.resume is not None:
            self._paused = False
            self.resume()
        return data

    def collected(self) -> bytes:
        """Return everything that has come. UnreachableError if the connection was lost before the end."""
        if self._lost:
            raise UnreachableError(self._lost_message)
        return self.take_now()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class WriteGate:
    """Blocks writers while the send buffer is full."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.is_gone = False

    def shut(self) -> None:
        """The send buffer is full."""
        self._open.clear()

    def open(self) -> None:
        """There is room again."""
        self._open.set()

    def close(self) -> None:
        """The channel is closed; release all waiting writers."""
        self.is_gone = True
        self._open.set()

    async def passed(self) -> None:
        """Wait for room."""
        await self._open.wait()


class CommandSession(asyncssh.SSHClientSession[bytes]):
    """Receives asyncssh's events of one command and offers them as awaitables."""

    def __init__(self, name: str, *, tail_only: bool = False, slow_reader: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.out = Pipe(f"the connection to {name} was lost while a command ran")
        self.gate = WriteGate()
        self.status: asyncio.Future[int] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.pid: asyncio.Future[int] = loop.create_future()
        self.errors = bytearray()
        self.activity = 0  # grows with every piece of output
        self.channel: asyncssh.SSHClientChannel[bytes] | None = None
        self.is_left = False  # closing the connection ends it
        self._name = name
        self._tail_only = tail_only
        self._slow_reader = slow_reader
        self._greeting = b""
        self._first = b""
        self._told_status: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether the command has started and, as far as we know, not ended."""
        return self.pid.done() and self.pid.exception() is None and not self.status.done()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """The channel is open."""
        self.channel = chan
        if self._slow_reader:
            self.out.pause = chan.pause_reading
            self.out.resume = chan.resume_reading

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Output has come."""
        self.activity += 1
        if datatype is not None:
            self.errors += data
            if self._tail_only and len(self.errors) > 2 * ERROR_TAIL:
                del self.errors[:-ERROR_TAIL]
        elif self.pid.done():
            self.out.feed(data)
        else:
            self._await_announcement(data)

    def _await_announcement(self, data: bytes) -> None:
        self._greeting += data
        start = self._greeting.find(ANNOUNCEMENT)
        end = self._greeting.find(b"\n", start) if start >= 0 else -1
        if end < 0:
            if len(self._greeting) > LONGEST_GREETING:
                self._greeting = self._greeting[-1024:]
            return
        self.pid.set_result(int(self._greeting[start + len(ANNOUNCEMENT) : end].strip()))
        if self._told_status is not None:
            self._set_status(self._told_status)
        rest, self._greeting = self._greeting[end + 1 :], b""
        if rest:
            self.out.feed(rest)

    def eof_received(self) -> bool:
        """The far side will send no more."""
        self.out.end()
        return True  # standard input stays open until its writer or the command's end closes it

    def exit_status_received(self, status: int) -> None:
        """The command has ended."""
        self._set_status(status)

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:  # noqa: ARG002  # asyncssh's signature
        """A signal has ended the command."""
        self._set_status(_signal_status(signal))

    def _set_status(self, status: int) -> None:
        # NB: sshd may send the status before the last of the output, or even before the first.
        self._told_status = status
        if self.pid.done() and not self.status.done():
            self.status.set_result(status)

    def _check_announced(self) -> None:
        """Check at the end of output whether the login shell ended before our first line ran.

        The cause is /usr/sbin/nologin, a forced command or a broken .bashrc.
        """
        if self.pid.done() or self._told_status is None:
            return
        said = (self._greeting or bytes(self.errors)).decode(errors="replace").strip()
        self._fail(
            DeniedError(
                f"{self._name} runs no commands for this account"
                + (f"; it says: {said[-500:]}" if said else ""),
                hint="Check the account's login shell there.",
            )
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel has closed, in peace or not."""
        if exc is None and self._told_status is not None:
            self.out.end()  # sshd may close without an end of file
        else:
            self.out.lose()
        self.gate.close()
        self._check_announced()
        self._fail(UnreachableError(f"the connection to {self._name} was lost before the command ended"))
        if not self.closed.done():
            self.closed.set_result(None)

    def give_up(self) -> None:
        """Fail all waits: the command was not started, or its connection is lost."""
        if not self.closed.done():
            self.connection_lost(ConnectionError("not started"))

    def _fail(self, error: Exception) -> None:
        for future in (self.status, self.pid):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks the exception as seen, since nobody may wait for it

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self.gate.shut()

    def resume_writing(self) -> None:
        """There is room in the send buffer again."""
        self.gate.open()

    def begin_with(self, data: bytes) -> None:
        """Send `data` together with the first write, or alone if no write follows at once."""
        self._first = data
        asyncio.get_running_loop().call_soon(self._write_first)

    def _write_first(self) -> None:
        data, self._first = self._first, b""
        if data and self.channel is not None and not self.gate.is_gone:
            with suppress(OSError):
                self.channel.write(data)

    async def write(self, data: bytes) -> None:
        """Write to standard input after waiting for room."""
        await self.gate.passed()
        if self._first:
            data, self._first = self._first + data, b""
        if self.gate.is_gone or self.channel is None:
            raise UnreachableError(f"the command on {self._name} reads its standard input no more")
        try:
            self.channel.write(data)
        except OSError as error:
            raise UnreachableError(f"standard input of the command on {self._name} is closed") from error
        await self.gate.passed()

    def write_eof(self) -> None:
        """Close standard input; nothing where it is closed already."""
        self._write_first()
        if self.channel is not None and not self.gate.is_gone:
            with suppress(OSError):
                self.channel.write_eof()

    async def abandon(self) -> None:
        """Close the channel without ending the command first. All waits fail."""
        if self.channel is not None and not self.closed.done():
            self.channel.abort()
            # sshd answers when the command has ended. We do not wait for a command that does not end.
            await asyncio.wait([self.closed], timeout=CLOSE_SECONDS)
        self.give_up()

    async def drained(self, look: Callable[[], Awaitable[None]]) -> None:
        """Wait for the end of output once the status is known, but not for children in the background.

        Such children keep the channel open. Every `look` is a round trip through sshd's event loop, which reads the rest
        of the pipe before it answers. After two round trips without a byte the pipe is empty. The number of round trips
        is bounded, because children in the background may print for ever.
        """
        await asyncio.wait([self.closed], timeout=0.05)
        quiet = rounds = 0
        while not self.closed.done() and quiet < 2 and rounds < MOST_ROUNDS:
            before = self.activity
            await look()
            quiet = quiet + 1 if self.activity == before else 0
            rounds += 1


class SshProcess:
    """A running command, in the shape that the Transport protocol asks for."""

    def __init__(
        self, session: CommandSession, end: Callable[[int], Awaitable[None]], *, terminal: bool
    ) -> None:
        self._session = session
        self._end = end
        self._terminal = terminal

    async def output(self) -> AsyncIterator[bytes]:
        """Pieces as they come. Raises UnreachableError where the connection is lost before the end."""
        while piece := await self._session.out.take():
            yield piece
        if self._session.status.done():
            self._session.status.result()  # raises if the login shell never ran the command

    @property
    def errors(self) -> bytes:
        """The tail of standard error so far."""
        return bytes(self._session.errors[-ERROR_TAIL:])

    async def write(self, data: bytes) -> None:
        """Write to standard input; waits while the far side is slow."""
        await self._session.write(data)

    async def write_eof(self) -> None:
        """Close standard input; on a terminal, type Ctrl-D."""
        if self._terminal:
            with suppress(UnreachableError):
                await self._session.write(b"\x04")
        else:
            self._session.write_eof()

    async def resize(self, size: TerminalSize) -> None:
        """Tell the terminal its new size."""
        channel = self._session.channel
        if self._terminal and channel is not None and not self._session.closed.done():
            channel.change_terminal_size(size.columns, size.rows)

    def leave(self) -> None:
        """Let closing the transport only end its input: sshd closes that together with the connection."""
        self._session.is_left = True

    async def terminate(self) -> None:
        """SIGTERM, a second of grace, SIGKILL to the command's process group."""
        session = self._session
        await asyncio.wait([session.pid], timeout=ANNOUNCE_SECONDS)
        if session.is_running:
            await self._end(session.pid.result())
            await asyncio.wait([session.status], timeout=ANNOUNCE_SECONDS)
        await session.abandon()

    async def wait(self) -> int:
        """The exit status; 128 + N for signal N."""
        return await asyncio.shield(self._session.status)


class StreamSession(asyncssh.SSHTCPSession[bytes]):
    """A stream to a port; also receives asyncssh's events of it."""

    def __init__(self, name: str) -> None:
        self._in = Pipe(f"the connection to {name} was lost")
        self._gate = WriteGate()
        self._name = name
        self._channel: asyncssh.SSHTCPChannel[bytes] | None = None
        self._rest = b""

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        """The channel is open."""
        self._channel = chan
        self._in.pause = chan.pause_reading
        self._in.resume = chan.resume_reading

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:  # noqa: ARG002  # asyncssh's signature
        """Output has come."""
        self._in.feed(data)

    def eof_received(self) -> bool:
        """The far side will send no more."""
        self._in.end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel has closed, in peace or not."""
        if exc is None:
            self._in.end()
        else:
            self._in.lose()
        self._gate.close()

    def pause_writing(self) -> None:
        """The send buffer is full."""
        self._gate.shut()

    def resume_writing(self) -> None:
        """There is room in the send buffer again."""
        self._gate.open()

    async def read(self, limit: int = 65536) -> bytes:
        """Up to `limit` bytes; b'' at the end."""
        if not self._rest:
            self._rest = await self._in.take()
        piece, self._rest = self._rest[:limit], self._rest[limit:]
        return piece

    async def write(self, data: bytes) -> None:
        """Send; waits while the far side is slow."""
        await self._gate.passed()
        try:
            if self._gate.is_gone or self._channel is None:
                raise BrokenPipeError
            self._channel.write(data)
        except OSError as error:
            raise UnreachableError(f"the stream to {self._name} is closed") from error
        await self._gate.passed()

    async def write_eof(self) -> None:
        """Say that nothing more will be sent."""
        if self._channel is not None and not self._gate.is_gone:
            self._channel.write_eof()

    async def aclose(self) -> None:
        """Close both directions; data written before is still sent."""
        self.close()

    def close(self) -> None:
        """Close both directions without waiting."""
        if self._channel is not None:
            self._channel.close()


def _signal_status(name: str) -> int:
    number = getattr(signal, f"SIG{name}", None)
    return 128 + int(number) if isinstance(number, signal.Signals) else UNKNOWN_SIGNAL_STATUS
