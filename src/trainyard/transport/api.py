"""The Transport protocol: six methods to reach one machine. Sessions, copies and tools are built on it.

Every implementation passes `transport/contract.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, runtime_checkable

NO_ENV: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended. A non-zero `status` is a fact, not an exception."""

    status: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Columns and rows of a user's terminal."""

    columns: int = 80
    rows: int = 24


class Process(Protocol):
    """A command that is still running."""

    def output(self) -> AsyncIterator[bytes]:
        """Yield standard output in pieces as they come; with a terminal, all output. Allows one reader."""
        ...

    @property
    def errors(self) -> bytes:
        """The last 64 KiB of standard error so far (empty with a terminal)."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to standard input; waits while the process reads slowly. UnreachableError once the pipe is closed."""
        ...

    async def write_eof(self) -> None:
        """Close standard input."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Tell the terminal its new size; nothing without a terminal."""
        ...

    async def terminate(self) -> None:
        """End the process: SIGTERM, a second of grace, SIGKILL. It is no error if the process has ended."""
        ...

    async def wait(self) -> int:
        """Wait for the exit status. A signal gives 128 + its number.

        Raises UnreachableError if the connection was lost before the status was known.
        """
        ...


class ByteStream(Protocol):
    """A connection to a port on the machine."""

    async def read(self, limit: int = 65536) -> bytes:
        """Up to `limit` bytes; b'' at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all of the data; waits while the peer reads slowly."""
        ...

    async def write_eof(self) -> None:
        """Send end of file. Reading goes on."""
        ...

    async def aclose(self) -> None:
        """Close both directions."""
        ...


# A script for `spawn`: a shell that reads statements from its standard input. Some transports start it faster.
SHELL = "exec sh -s"


class Transport(Protocol):
    """Reaches one machine. Safe to use from many tasks at once. Connects on first use and after a lost connection."""

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] = NO_ENV,
        timeout: float | None = None,
    ) -> Completed:
        """Run `script` with `sh -c` in the home directory and wait.

        Cancelling the call, or passing `timeout` seconds (TimeoutError), kills the command. Raises UnreachableError
        if the machine does not answer. A non-zero status raises nothing.
        """
        ...

    async def spawn(
        self, script: str, *, env: Mapping[str, str] = NO_ENV, terminal: TerminalSize | None = None
    ) -> Process:
        """Start `script` with `sh -c` in the home directory. The caller reads, writes and waits."""
        ...

    async def put(self, source: Path, target: str) -> None:
        """Copy one local file to `target`, which may be relative to the home directory. Keeps the mode; is atomic."""
        ...

    async def get(self, source: str, target: Path) -> None:
        """Copy one file from the machine to `target`. Keeps the mode; is atomic. NotFoundError if it is missing."""
        ...

    async def connect(self, port: int) -> ByteStream:
        """Open a stream to a TCP port that listens on the machine's loopback."""
        ...

    async def aclose(self) -> None:
        """Close the connections. Detached processes on the machine run on. Closing twice is no error."""
        ...


@runtime_checkable
class Attachable(Protocol):
    """A transport with a local program that connects the user's own terminal to the machine."""

    def argv(self, script: str = "", *, terminal: bool = True) -> Sequence[str]:
        """Return the local command that runs `script` there (a login shell when empty). It holds no secret."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """A transport that must prepare before the program of `argv` can connect."""

    async def prepare(self) -> None:
        """Find out the machine's host key. May be called twice."""
        ...


@runtime_checkable
class Leavable(Protocol):
    """A process that need not be ended before its transport is closed: it ends when its input does."""

    def leave(self) -> None:
        """Let closing the transport only end its input. For a process that exits at the end of its input."""
        ...


@runtime_checkable
class Nearby(Protocol):
    """A transport that knows whether its machine is on this computer."""

    @property
    def is_here(self) -> bool:
        """Whether the machine runs on this computer."""
        ...


def is_loopback(address: str) -> bool:
    """Return whether an address or a host name means this computer."""
    return address.startswith("127.") or address in ("::1", "localhost")


async def read_all(process: Process) -> bytes:
    """Return the whole standard output of a short process."""
    return b"".join([piece async for piece in process.output()])
