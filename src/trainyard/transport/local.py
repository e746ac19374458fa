"""The transport to a machine on this computer: real processes with the machine's home and environment.

`local_process.py` watches the processes. `backends/local/` defines machines and ends everything on them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from weakref import WeakSet

from trainyard.lib.aio import finish, gather_all
from trainyard.lib.errors import DeniedError, Error, InvalidError, NotFoundError, UnreachableError
from trainyard.transport.api import NO_ENV, Completed, TerminalSize
from trainyard.transport.local_process import LocalProcess, start_on_pipes, start_on_terminal

COPY_CHUNK = 16 * 1024 * 1024  # a copy checks for a cancel after so many bytes
CONNECT_SECONDS = 10.0
DEFAULT_TERM = "xterm-256color"


class LocalTransport:
    """Runs commands on this computer, in `home`, with the machine's own `env` on top of what it `inherited`.

    `refresh` is called before every use; it returns the machine's own variables, and raises UnreachableError if the
    machine does not run. `dropped` names variables of the user's terminal that the machine must not get.
    """

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str],
        *,
        inherited: Mapping[str, str] = NO_ENV,
        dropped: Sequence[str] = ("TMUX", "TMUX_PANE"),
        address: str = "127.0.0.1",
        refresh: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self._home = home
        self._env: Mapping[str, str] = MappingProxyType(dict(env))
        self._inherited = inherited
        self._dropped = tuple(dropped)
        self._address = address
        self._refresh = refresh
        self._processes: WeakSet[LocalProcess] = WeakSet()

    @property
    def is_here(self) -> bool:
        """Always true."""
        return True

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] = NO_ENV,
        timeout: float | None = None,
    ) -> Completed:
        """Run `script` and wait for its shell, but not for processes that it leaves in the background."""
        process = self._start(script, env, has_input=bool(stdin))
        process.error_limit = 2**62  # `Completed` holds all of standard error
        try:
            async with asyncio.timeout(timeout):
                return await _complete(process, stdin)
        finally:
            await finish(process.kill())  # the process is alive here only after a cancel or a timeout
            process.close()

    async def spawn(
        self, script: str, *, env: Mapping[str, str] = NO_ENV, terminal: TerminalSize | None = None
    ) -> LocalProcess:
        """Start `script`; the caller reads, writes and waits."""
        return self._start(script, env, terminal=terminal)

    async def put(self, source: Path, target: str) -> None:
        """Copy a file of the client into the machine."""
        self._current_env()
        await _copy(source, self._home / target)

    async def get(self, source: str, target: Path) -> None:
        """Copy a file of the machine to the client."""
        self._current_env()
        await _copy(self._home / source, target)

    async def connect(self, port: int) -> LocalStream:
        """Reach a server on the machine's own address, else one on 127.0.0.1."""
        self._current_env()
        failure: OSError | None = None
        for address in dict.fromkeys((self._address, "127.0.0.1")):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return LocalStream(*await asyncio.open_connection(address, port))
            except OSError as error:  # TimeoutError is one too
                failure = failure or error
        raise UnreachableError(
            f"nothing listens on port {port} of {self._address}",
            hint="Check that the program there has started and binds this port.",
        ) from failure

    async def aclose(self) -> None:
        """End the processes that were spawned and not detached."""
        processes = list(self._processes)
        await gather_all([process.terminate() for process in processes])
        for process in processes:
            process.close()

    def argv(self, script: str = "", *, terminal: bool = True) -> Sequence[str]:  # noqa: ARG002  # it is the caller's own
        """Return `env … bash -l` with the machine's own variables only, since arguments are public on this computer."""
        words = ["env", "-C", str(self._home)]
        for name in self._dropped:
            words += ["-u", name]
        words += [f"{name}={value}" for name, value in self._current_env().items()]
        return [*words, "sh", "-c", script] if script else [*words, "bash", "-l"]

    def _current_env(self) -> Mapping[str, str]:
        if self._refresh is not None:
            self._env = self._refresh()
        return self._env

    def _start(
        self,
        script: str,
        env: Mapping[str, str],
        *,
        terminal: TerminalSize | None = None,
        has_input: bool = True,
    ) -> LocalProcess:
        if "\0" in script:
            raise InvalidError("a script cannot hold a NUL character")
        full_env = {**self._inherited, **self._current_env(), **env}
        try:
            if terminal is None:
                process = start_on_pipes(script, home=self._home, env=full_env, has_input=has_input)
            else:
                full_env.setdefault("TERM", DEFAULT_TERM)
                process = start_on_terminal(script, home=self._home, env=full_env, size=terminal)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UnreachableError(f"the machine's home {str(self._home)!r} is gone") from error
        except PermissionError as error:
            raise DeniedError(f"nothing can be run in {str(self._home)!r}: {error.strerror}") from error
        except OSError as error:
            raise _translated(error) from error
        self._processes.add(process)
        return process


class LocalStream:
    """A TCP connection on loopback."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, limit: int = 65536) -> bytes:
        """Up to `limit` bytes; b'' at the end."""
        try:
            return await self._reader.read(limit)
        except ConnectionError as error:
            raise UnreachableError("the connection was reset by the other side") from error

    async def write(self, data: bytes) -> None:
        """Send, waiting while the other side is slow."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as error:
            raise UnreachableError("the connection was closed by the other side") from error

    async def write_eof(self) -> None:
        """Tell the other side that nothing more comes; reading goes on."""
        with suppress(OSError):  # it hung up already
            self._writer.write_eof()

    async def aclose(self) -> None:
        """Close; twice is no error."""
        self._writer.close()
        with suppress(OSError):  # a reset while closing is a close
            await self._writer.wait_closed()


def _translated(error: OSError) -> Error:
    if error.errno == errno.E2BIG:
        return InvalidError(
            "the environment is too large for a process", hint="Pass large values in a file instead."
        )
    return UnreachableError(
        f"this computer cannot start another process: {error.strerror}",
        hint="End some processes, or raise the limits shown by `ulimit -a`.",
    )


async def _complete(process: LocalProcess, stdin: bytes) -> Completed:
    output = bytearray()

    async def collect() -> None:
        async for piece in process.output():
            output.extend(piece)

    async def feed() -> None:
        with suppress(UnreachableError):  # a command that does not read its input is no failure
            await process.write(stdin)
        await process.write_eof()

    helpers = [asyncio.ensure_future(collect())]
    if stdin:
        helpers.append(asyncio.ensure_future(feed()))
    try:
        status = await process.wait()
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.wait(helpers)
    # The output of the shell and of the children it waited for is in the pipe by now. Processes that still hold the
    # pipe open run in the background and are not waited for.
    output.extend(process.read_available())
    return Completed(status, bytes(output), process.errors)


async def _copy(source: Path, target: Path) -> None:
    """Copy a file to a temporary name beside `target` and rename it, so that the copy is whole or absent."""
    cancelled = threading.Event()
    copying = asyncio.ensure_future(asyncio.to_thread(_copy_blocking, source, target, cancelled))
    try:
        await asyncio.shield(copying)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.gather(copying, return_exceptions=True)
        raise
    except FileNotFoundError as error:
        missing = target.parent if source.exists() else source
        raise NotFoundError(f"{str(missing)!r} does not exist") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        raise InvalidError(f"{error.filename!r} cannot be copied as a file: {error.strerror}") from error
    except PermissionError as error:
        raise DeniedError(f"{error.filename!r} cannot be copied: {error.strerror}") from error


def _copy_blocking(source: Path, target: Path, cancelled: threading.Event) -> None:
    if target.is_dir():
        raise IsADirectoryError(21, "it is a folder", str(target))
    with source.open("rb") as reader:
        mode = os.fstat(reader.fileno()).st_mode & 0o7777
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".trainyard-")
        try:
            with open(handle, "wb") as writer:  # noqa: PTH123  # a descriptor, not a path
                while os.sendfile(writer.fileno(), reader.fileno(), None, COPY_CHUNK):
                    if cancelled.is_set():
                        raise InterruptedError
                os.fchmod(writer.fileno(), mode)
            os.replace(temporary, target)  # noqa: PTH105
        except BaseException:
            os.unlink(temporary)  # noqa: PTH108
            raise
