"""A child process watched by the event loop: pipes or a terminal, and a pidfd for its end. No threads, no SIGCHLD.

asyncio's own subprocesses start a thread per child on Python 3.11 and read ahead without being asked.
`transport/local.py` chooses the child's home and environment.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import resource
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from trainyard.lib.errors import UnreachableError
from trainyard.transport.api import TerminalSize

PIECE = 256 * 1024  # the largest piece that output() yields
ERROR_TAIL = 64 * 1024
TERMINATE_GRACE_SECONDS = 1.0
LONGEST_ARGUMENT = 120_000  # Linux refuses a single argument of 128 KiB and more
CLOSED = -1
FULL_PIPE_READS = (
    8  # reads of PIECE bytes: more than a pipe can hold, and a bound against a writer that never pauses
)

# A new session has no controlling terminal; the first one that its leader opens becomes it. So the shell opens the
# terminal itself, and no code of ours runs between fork and exec, where it would be unsafe beside threads.
_ON_TERMINAL = 'exec 0<>"$0" 1>&0 2>&0; exec /bin/sh "$@"'


class LocalProcess:
    """A child process that leads its own session, so that ending it ends its whole group."""

    _in = _out = _err = CLOSED

    def __init__(self, child: subprocess.Popen[bytes], *, terminal: int = CLOSED) -> None:
        self._child = child
        self._loop = asyncio.get_running_loop()
        self._is_terminal = terminal != CLOSED
        self._in = terminal if self._is_terminal else _take(child.stdin)
        self._out = terminal if self._is_terminal else _take(child.stdout)
        self._err = _take(child.stderr)
        self._errors = bytearray()
        self.error_limit = ERROR_TAIL
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._writing = asyncio.Lock()
        self._waiting: set[asyncio.Future[None]] = set()
        self.pidfd = os.pidfd_open(child.pid)
        self._loop.add_reader(self.pidfd, self._reap)
        if self._err != CLOSED:
            self._loop.add_reader(self._err, self._read_errors)

    def __del__(self) -> None:
        # A caller may drop a process whose output it never read to the end.
        for descriptor in {self._out, self._in} - {CLOSED}:
            os.close(descriptor)

    async def output(self) -> AsyncIterator[bytes]:
        """Yield pieces of up to 256 KiB, read only as fast as the caller takes them."""
        while self._out != CLOSED:
            try:
                piece = os.read(self._out, PIECE)
            except BlockingIOError:
                await self._ready(self._out, self._loop.add_reader, self._loop.remove_reader)
                continue
            except OSError:  # EIO: nobody holds the other side of the terminal any more
                piece = b""
            if not piece:
                self._close_output()
                return
            yield piece
            await asyncio.sleep(0)  # a fast writer must not block the event loop

    def read_available(self) -> bytes:
        """Return the bytes that standard output holds at this moment, without waiting."""
        rest = bytearray()
        with suppress(OSError):  # BlockingIOError: that was all; EIO: the terminal is gone
            for _ in range(FULL_PIPE_READS if self._out != CLOSED else 0):
                rest += os.read(self._out, PIECE)
        return bytes(rest)

    @property
    def errors(self) -> bytes:
        """The tail of standard error so far."""
        self._drain_errors()
        return bytes(self._errors)

    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting while the pipe is full."""
        rest = memoryview(data)
        async with self._writing:
            while rest:
                if self._in == CLOSED:
                    raise UnreachableError("standard input of the command is closed")
                try:
                    rest = rest[os.write(self._in, rest[:PIECE]) :]
                except BlockingIOError:
                    await self._ready(self._in, self._loop.add_writer, self._loop.remove_writer)
                except OSError as error:  # EPIPE; EIO on a terminal
                    self._close_input()
                    raise UnreachableError("the command reads its standard input no more") from error

    async def write_eof(self) -> None:
        """Close standard input; on a terminal, type Ctrl-D."""
        if self._is_terminal:
            with suppress(UnreachableError):
                await self.write(b"\x04")
            return
        async with self._writing:
            self._close_input()

    async def resize(self, size: TerminalSize) -> None:
        """Set the size; the kernel tells the program by SIGWINCH."""
        if self._is_terminal and self._out != CLOSED:
            _set_size(self._out, size)

    async def terminate(self) -> None:
        """End the group: SIGTERM, a second, SIGKILL."""
        self._signal(signal.SIGTERM)
        if self._is_terminal:  # an interactive shell ignores SIGTERM, but it exits at SIGHUP
            self._signal(signal.SIGHUP)
        await asyncio.wait([self._ended], timeout=TERMINATE_GRACE_SECONDS)
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL to the group; returns when the child is gone."""
        self._signal(signal.SIGKILL)
        await asyncio.wait([self._ended])

    async def wait(self) -> int:
        """The exit status; 128 + N for signal N."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Close the pipes, even if output is unread."""
        self._close_input()
        self._close_output()
        self._close_errors()

    def _signal(self, number: signal.Signals) -> None:
        # Until the child is reaped, its process id cannot be given to another process.
        if not self._ended.done():
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def _reap(self) -> None:
        status = self._child.poll()
        if status is None:
            return
        self._loop.remove_reader(self.pidfd)
        os.close(self.pidfd)
        self._drain_errors()
        self._close_errors()
        if not self._is_terminal:
            self._close_input()
        self._ended.set_result(status if status >= 0 else 128 - status)

    def _drain_errors(self) -> None:
        for _ in range(FULL_PIPE_READS):
            if self._err == CLOSED or not self._read_errors():
                return

    def _read_errors(self) -> bool:
        try:
            piece = os.read(self._err, PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._close_errors()
        self._errors += piece
        if len(self._errors) > self.error_limit:
            del self._errors[: -self.error_limit]
        return True

    async def _ready(
        self, descriptor: int, watch: Callable[..., None], unwatch: Callable[[int], bool]
    ) -> None:
        woken: asyncio.Future[None] = self._loop.create_future()
        watch(descriptor, _wake, woken)
        self._waiting.add(woken)
        try:
            await woken
        finally:
            self._waiting.discard(woken)
            if descriptor in {
                self._in,
                self._out,
            }:  # otherwise it was closed, and its number may belong to another file by now
                unwatch(descriptor)

    def _close_input(self) -> None:
        if self._is_terminal or self._in == CLOSED:
            return
        descriptor, self._in = self._in, CLOSED
        self._loop.remove_writer(descriptor)
        os.close(descriptor)
        self._wake_all()

    def _close_output(self) -> None:
        if self._out == CLOSED:
            return
        descriptor, self._out = self._out, CLOSED
        self._loop.remove_reader(descriptor)
        if self._is_terminal:
            self._loop.remove_writer(descriptor)
            self._in = CLOSED
        os.close(descriptor)
        self._wake_all()

    def _wake_all(self) -> None:
        """Wake the tasks that wait for a pipe that was closed. The event loop does not wake them."""
        for woken in self._waiting:
            _wake(woken)

    def _close_errors(self) -> None:
        if self._err == CLOSED:
            return
        descriptor, self._err = self._err, CLOSED
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


def start_on_pipes(
    script: str, *, home: Path, env: Mapping[str, str], has_input: bool = True
) -> LocalProcess:
    """Run `sh -c script` with pipes; without input it reads end-of-file."""
    child = _start_shell(
        ["/bin/sh"],
        script,
        home=home,
        env=env,
        streams=(subprocess.PIPE if has_input else subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE),
    )
    return _adopt(child)


def start_on_terminal(script: str, *, home: Path, env: Mapping[str, str], size: TerminalSize) -> LocalProcess:
    """Run `sh -c script` with a terminal of its own, which it controls."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    try:
        _set_size(ours, size)
        words = ["/bin/sh", "-c", _ON_TERMINAL, os.ttyname(theirs)]
        child = _start_shell(words, script, home=home, env=env, streams=(theirs, theirs, theirs))
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return _adopt(child, terminal=ours)


def _adopt(child: subprocess.Popen[bytes], *, terminal: int = CLOSED) -> LocalProcess:
    try:
        process = LocalProcess(child, terminal=terminal)
    except OSError:  # no descriptor is left for the pidfd, and an unwatched child must not live
        child.kill()
        child.wait()
        raise
    _make_room(process.pidfd)
    return process


@cache
def _given_limit() -> int:
    """Return the limit of open files that processes get here before we raise ours."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _make_room(descriptor: int) -> None:
    """Raise the limit of open files to its maximum once half of it is used. A child on pipes takes four.

    Most systems give 1024 and allow far more.
    """
    given, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 2 * descriptor > given == _given_limit() != allowed:
        with suppress(OSError, ValueError):  # "unlimited" may be more than the kernel gives
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))


def _start_shell(
    words: Sequence[str], script: str, *, home: Path, env: Mapping[str, str], streams: tuple[int, int, int]
) -> subprocess.Popen[bytes]:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] != _given_limit():
        # Programs that use select() may rely on the small numbers of the usual limit.
        script = f"ulimit -S -n {_given_limit()}; {script}"
    text = script.encode(errors="surrogateescape")
    if len(text) < LONGEST_ARGUMENT:
        return _popen([*words, "-c", script], home=home, env=env, streams=streams)
    scratch = os.memfd_create("script")
    try:
        with open(scratch, "wb", closefd=False) as file:
            file.write(text)
        return _popen(
            [*words, "-c", f". /dev/fd/{scratch}"], home=home, env=env, streams=streams, keep=(scratch,)
        )
    finally:
        os.close(scratch)


def _popen(
    words: Sequence[str],
    *,
    home: Path,
    env: Mapping[str, str],
    streams: tuple[int, int, int],
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        words,
        cwd=home,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        bufsize=0,
        start_new_session=True,
        pass_fds=keep,
    )


def _take(pipe: IO[bytes] | None) -> int:
    """Duplicate our end of a pipe as a non-blocking descriptor."""
    if pipe is None:
        return CLOSED
    descriptor = os.dup(pipe.fileno())
    pipe.close()
    os.set_blocking(descriptor, False)
    return descriptor


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _set_size(descriptor: int, size: TerminalSize) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
