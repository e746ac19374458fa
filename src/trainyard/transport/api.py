"""The narrow waist: six verbs to one machine. What runs over them (sessions, copies, tools) lives above.

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
    """Columns and rows of a person's terminal."""

    columns: int = 80
    rows: int = 24


class Process(Protocol):
    """A command that is still running."""

    def output(self) -> AsyncIterator[bytes]:
        """Standard output in pieces as they come (with a terminal: all output). Ends at end of file. One reader."""
        ...

    @property
    def errors(self) -> bytes:
        """The last 64 KiB of standard error so far (empty with a terminal)."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to standard input; waits while the far side is slow. UnreachableError once the pipe is gone."""
        ...

    async def write_eof(self) -> None:
        """Close standard input."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Tell the terminal its new size; nothing without a terminal."""
        ...

    async def terminate(self) -> None:
        """End it: SIGTERM, a second of grace, SIGKILL. Ending what has ended is no error."""
        ...

    async def wait(self) -> int:
        """Wait for the exit status; a signal gives 128 + its number.

        Raises UnreachableError where the connection was lost before the status was known.
        """
        ...


class ByteStream(Protocol):
    """A connection to a port on the machine."""

    async def read(self, limit: int = 65536) -> bytes:
        """Up to `limit` bytes; b'' at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all of it; waits while the far side is slow."""
        ...

    async def write_eof(self) -> None:
        """Say that nothing more comes."""
        ...

    async def aclose(self) -> None:
        """Close both ways."""
        ...


# A script for `spawn`: a shell that takes statements on its standard input. Ways that know it start it with less.
SHELL = "exec sh -s"


class Transport(Protocol):
    """A way to one machine. Safe to use from many tasks at once. Opens on first use, reopens after a lost link."""

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
        where the machine does not answer; never raises for a non-zero status.
        """
        ...

    async def spawn(
        self, script: str, *, env: Mapping[str, str] = NO_ENV, terminal: TerminalSize | None = None
    ) -> Process:
        """Start `script` with `sh -c` in the home directory; the caller reads, writes and waits."""
        ...

    async def put(self, source: Path, target: str) -> None:
        """Copy one local file to `target` (relative: from the home directory); mode kept; complete or not there."""
        ...

    async def get(self, source: str, target: Path) -> None:
        """Copy one file from the machine to `target`; mode kept; complete or not there. NotFoundError if missing."""
        ...

    async def connect(self, port: int) -> ByteStream:
        """Open a stream to a TCP port that listens on the machine's loopback."""
        ...

    async def aclose(self) -> None:
        """Let go. What was started on the machine and detached there runs on. Closing twice is no error."""
        ...


@runtime_checkable
class Attachable(Protocol):
    """A transport whose machine a person's own terminal can reach by running a program."""

    def argv(self, script: str = "", *, terminal: bool = True) -> Sequence[str]:
        """The local command that runs `script` there (a login shell when empty). Holds no secret."""
        ...


@runtime_checkable
class Preparable(Protocol):
    """A transport that may have to learn something before the program of `argv` can go there."""

    async def prepare(self) -> None:
        """Learn by what key the machine is known. Twice is once."""
        ...


@runtime_checkable
class Leavable(Protocol):
    """A process that can be left to the end of its transport: its input ends then, and it goes."""

    def leave(self) -> None:
        """Let closing the transport end its input and nothing else. For one that waits for input and goes at its end."""
        ...


@runtime_checkable
class Nearby(Protocol):
    """A transport that knows whether its machine is on this computer."""

    @property
    def is_here(self) -> bool:
        """Whether the machine's processors and memory are ours."""
        ...


def is_loopback(address: str) -> bool:
    """Whether an address, or the name of one, means this computer."""
    return address.startswith("127.") or address in ("::1", "localhost")


async def read_all(process: Process) -> bytes:
    """The whole standard output of a short process."""
    return b"".join([piece async for piece in process.output()])
