"""The transport to a task of the platform, through the platform's server. Each operation is one WebSocket.

Every command that runs this way belongs to the task and ends with it. A lost connection ends attached commands, as with
ssh. The next operation connects again and waits a little for a server that is restarting. `gateway_channel.py` holds the
frames of an operation; `gateway_remote.py` is the program that does it on the node.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainyard.client.connection import Connection
from trainyard.lib.aio import finish, gather_all
from trainyard.lib.errors import DeniedError, Error, InvalidError, NotFoundError, UnreachableError
from trainyard.lib.shell import quote
from trainyard.transport.api import NO_ENV, Completed, TerminalSize
from trainyard.transport.gateway_channel import Channel, NotBegunError

RESTART_SECONDS = 20.0  # a restarted server must first take its lease and reach its nodes
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
END_SECONDS = 5.0  # the time limit for ending a command: a second of grace plus a slow network
CHUNK = 256 * 1024
_PROGRAM = (sys.executable, "-m", "trainyard.cli.main")
_ENTER = Path(__file__).with_name("gatewayenter.sh").read_text(encoding="utf-8")


class GatewayTransport:
    """The transport to one task. `place` is the machine's folder, relative to the home of the node's user."""

    def __init__(
        self, connection: Connection, job: str, task: str, *, name: str, place: str, address: str = ""
    ) -> None:
        self._connection = connection
        self._job = job
        self._task = task
        self._name = name
        self._place = place
        self.address = address  # the address at which the other tasks of its job reach it
        self._open_channels: set[Channel] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] = NO_ENV,
        timeout: float | None = None,
    ) -> Completed:
        """Run `script` and wait for its shell, but not for processes that it leaves in the background."""
        async with asyncio.timeout(timeout):
            channel = await self._begin(
                "run", env, script=_checked(script), terminal=None, waits_for_output=False
            )
            channel.error_limit = None
            feeding = asyncio.ensure_future(_feed(channel, stdin))
            try:
                output = []
                while piece := await channel.read():
                    output.append(piece)
                status = await channel.exit_status()
                await channel.until(lambda: channel.ended is not None)
                return Completed(status, b"".join(output), bytes(channel.errors))
            finally:
                feeding.cancel()
                await asyncio.wait([feeding])
                if channel.ended is None:
                    await finish(self._close(channel))  # which ends the command

    async def spawn(
        self, script: str, *, env: Mapping[str, str] = NO_ENV, terminal: TerminalSize | None = None
    ) -> GatewayProcess:
        """Start `script`; the caller reads, writes and waits."""
        size = None if terminal is None else [terminal.columns, terminal.rows]
        channel = await self._begin("run", env, script=_checked(script), terminal=size, waits_for_output=True)
        return GatewayProcess(channel, self._close, is_terminal=terminal is not None)

    async def put(self, source: Path, target: str) -> None:
        """Copy a file to the machine."""
        try:
            file = await asyncio.to_thread(source.open, "rb")
        except OSError as error:
            raise _file_error(error.errno or 0, error.strerror or "", str(source)) from error
        with file:
            mode = os.fstat(file.fileno()).st_mode & 0o7777
            async with self._operation("put", path=target, mode=mode) as channel:
                while piece := await asyncio.to_thread(file.read, CHUNK):
                    await channel.write(piece)
                await channel.send(b"e")
                await channel.until(lambda: channel.ended is not None)
                _check(channel)

    async def get(self, source: str, target: Path) -> None:
        """Copy a file of the machine here."""
        async with self._operation("get", path=source) as channel:
            mode = (channel.begun or {}).get("mode")
            if not isinstance(mode, int):
                raise UnreachableError(f"the machine's answer about {source!r} cannot be understood")
            try:
                handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".trainyard-")
            except OSError as error:
                raise _file_error(error.errno or 0, error.strerror or "", str(target.parent)) from error
            try:
                with os.fdopen(handle, "wb") as file:
                    while piece := await channel.read():
                        await asyncio.to_thread(file.write, piece)
                    await channel.until(lambda: channel.ended is not None)
                    _check(channel)
                    os.fchmod(file.fileno(), mode & 0o777)
                os.replace(temporary, target)  # noqa: PTH105
            except BaseException as error:
                os.unlink(temporary)  # noqa: PTH108
                if isinstance(error, OSError) and not isinstance(error, Error | TimeoutError):
                    raise _file_error(error.errno or 0, error.strerror or "", str(target)) from error
                raise

    async def connect(self, port: int) -> GatewayStream:
        """Reach a server on the loopback of the task's node."""
        return GatewayStream(await self._begin("connect", NO_ENV, port=port), self._close)

    def argv(self, script: str = "", *, terminal: bool = True) -> Sequence[str]:  # noqa: ARG002  # it is the caller's own
        """`trainyard jobs exec …`, which knows the server and the token as this process does: by its login."""
        body = f"exec sh -c {quote(script)}" if script else 'exec "$(command -v bash || echo sh)" -l'
        text = f"place={quote(self._place)}\n{_ENTER}{body}"
        return [*_PROGRAM, "jobs", "exec", "--task", self._task, self._job, text]

    async def aclose(self) -> None:
        """End what is attached; what was detached runs on."""
        await gather_all([self._close(channel) for channel in list(self._open_channels)])
        await gather_all(list(self._leaving))

    # -- inside

    async def _begin(self, verb: str, env: Mapping[str, str], **words: Any) -> Channel:
        """Begin an operation. Try again if it did not begin: the server or the node's connection comes back soon."""
        wanted = {
            "verb": verb, "place": self._place, "address": self.address, "env": dict(env), **words,
        }  # fmt: skip
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + RESTART_SECONDS, FIRST_PAUSE
        while True:
            try:
                channel = await Channel.open(self._connection, self._job, self._task, self._name, wanted)
                break
            except (NotBegunError, NotFoundError) as error:
                is_gone = isinstance(error, NotFoundError) and not await self._still_runs()
                if is_gone or loop.time() > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        self._open_channels.add(channel)
        channel.when_over(self._leave)
        try:
            _check(channel, port=words.get("port"))
        except Error:
            await finish(self._close(channel))
            raise
        return channel

    async def _still_runs(self) -> bool:
        """Return whether the server knows that the task runs although the node's connection does not know it yet."""
        try:
            answer = await self._connection.request("GET", f"/jobs/{self._job}")
        except NotFoundError:
            return False
        return bool(answer.json()["state"] == "running")

    def _operation(self, verb: str, **words: Any) -> _Operation:
        return _Operation(self._begin(verb, NO_ENV, **words), self._close)

    async def _close(self, channel: Channel) -> None:
        self._open_channels.discard(channel)
        await channel.aclose()

    def _leave(self, channel: Channel) -> None:
        """Close the channel in the background, because closing takes another round trip and the answer is here."""
        if channel not in self._open_channels:  # it is being closed already
            return
        task = asyncio.create_task(self._close(channel))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class _Operation:
    """A channel that is closed at the end, whatever happens."""

    def __init__(self, beginning: Coroutine[Any, Any, Channel], close: Any) -> None:
        self._beginning = beginning
        self._close = close

    async def __aenter__(self) -> Channel:
        self._channel = await self._beginning
        return self._channel

    async def __aexit__(self, *_: object) -> None:
        await finish(self._close(self._channel))


class GatewayProcess:
    """A command that is still running, beside a task."""

    def __init__(self, channel: Channel, close: Any, *, is_terminal: bool) -> None:
        self._channel = channel
        self._close = close
        self._is_terminal = is_terminal

    async def output(self) -> AsyncIterator[bytes]:
        """Yield pieces as they come. Raises UnreachableError if the connection is lost before the end."""
        while piece := await self._channel.read():
            yield piece

    @property
    def errors(self) -> bytes:
        """Return the tail of standard error so far."""
        return bytes(self._channel.errors)

    async def write(self, data: bytes) -> None:
        """Write to standard input; waits while the far side is slow."""
        await self._channel.write(data)

    async def write_eof(self) -> None:
        """Close standard input; on a terminal, type Ctrl-D."""
        with suppress(UnreachableError):
            await self._channel.send(b"e")

    async def resize(self, size: TerminalSize) -> None:
        """Tell the terminal its new size."""
        if self._is_terminal:
            with suppress(UnreachableError):
                await self._channel.send(b"r", struct.pack("=HH", size.rows, size.columns))

    async def terminate(self) -> None:
        """End the command: SIGTERM, a second of grace, SIGKILL."""
        channel = self._channel
        if channel.status is None and channel.ended is None:
            with suppress(Error, TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await channel.send(b"t")
                    await channel.exit_status()
        await finish(self._close(channel))

    async def wait(self) -> int:
        """Wait for the exit status; 128 + N for signal N."""
        return await self._channel.exit_status()


class GatewayStream:
    """A connection to a port on the task's node."""

    def __init__(self, channel: Channel, close: Any) -> None:
        self._channel = channel
        self._close = close
        self._rest = b""

    async def read(self, limit: int = 65536) -> bytes:
        """Up to `limit` bytes; b'' at the end."""
        piece = self._rest or await self._channel.read()
        self._rest = piece[limit:]
        return piece[:limit]

    async def write(self, data: bytes) -> None:
        """Send, waiting while the other side is slow."""
        await self._channel.write(data)

    async def write_eof(self) -> None:
        """Tell the other side that nothing more comes; reading goes on."""
        with suppress(UnreachableError):
            await self._channel.send(b"e")

    async def aclose(self) -> None:
        """Close both ways; twice is no error."""
        await finish(self._close(self._channel))


async def _feed(channel: Channel, data: bytes) -> None:
    with suppress(UnreachableError):  # a command that does not read its input is no failure
        await channel.write(data)
        await channel.send(b"e")


def _checked(script: str) -> str:
    if "\0" in script:
        raise InvalidError("a script cannot hold a NUL character")
    return script


def _check(channel: Channel, *, port: int | None = None) -> None:
    """Raise the error with which the remote program failed."""
    ended = channel.ended
    if ended is None or "error" not in ended:
        return
    if port is not None:
        raise UnreachableError(
            f"nothing listens on port {port} of the task's node: {ended['error']}",
            hint="Check that the program there has started and binds this port.",
        )
    raise _file_error(int(ended.get("errno") or 0), str(ended["error"]), str(ended.get("path", "")))


def _file_error(number: int, said: str, path: str) -> Error:
    if number == errno.ENOENT:
        return NotFoundError(f"{path!r} does not exist")
    if number in (errno.EISDIR, errno.ENOTDIR):
        return InvalidError(f"{path!r} cannot be copied as a file: {said}")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DeniedError(f"{path!r} cannot be copied: {said}")
    return UnreachableError(f"the node failed: {said}" + (f" ({path})" if path else ""))
