"""The client's end of a control channel: a long-lived `sh` on the machine (`control_channel.sh`) answers requests.

This module does the framing only. `session.py` decides when to open a channel and what to do when it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainyard.lib import ids, shell
from trainyard.lib.errors import InvalidError, UnreachableError
from trainyard.transport.api import SHELL, Leavable, Process, Transport

OnOutput = Callable[[bytes], None]
FULL = "full"  # stands in place of a number or a status when the machine's disk is full
FREE_SPACE = "Free some space there, then run it again."
FIRST_PART = 65536  # bytes of output that come with the status; as in control_channel.sh


@dataclass(frozen=True, slots=True)
class SessionLook:
    """A session as the machine sees it."""

    alive: bool
    running: int | None = None  # the command that runs now, or is next
    last: int = 0  # the newest command's number
    variables: str = ""  # the name of the set of variables that its shell was given


class ControlChannel:
    """One control channel; it carries one exchange at a time.

    A channel whose exchange was cut short is no longer idle and must be closed.
    """

    def __init__(self, process: Process, machine: str) -> None:
        self._process = process
        self._machine = machine
        self._pieces: AsyncIterator[bytes] = process.output()
        self._buffer = bytearray()
        self.is_idle = False
        self.first_look = SessionLook(False)
        self.first_answer: tuple[int, str] | None = None

    @classmethod
    async def open(
        cls, transport: Transport, folder: str, machine: str, question: str = ""
    ) -> ControlChannel:
        """Start the remote shell and wait until it answers. `first_look` then holds the state of the session.

        `question` is a script as for `ask`; it runs in the same round trip, and `first_answer` holds its result.
        """
        process = await transport.spawn(SHELL)
        line = cls(process, machine)
        mark = ids.new_id()
        asking = _asking(question, mark) if question else ""
        first = f"D={shell.home_path(folder)}\n{_far_side()}ty_open\nty_look\n{asking}"
        try:
            await process.write(first.encode(errors="surrogateescape"))
            await line._answer("!")
            line.first_look = await line._looked()
            if question:
                line.first_answer = await line._said(mark)
        except BaseException:
            await process.terminate()
            raise
        return line

    async def look(self) -> SessionLook:
        """Ask the machine for the state of the session."""
        await self._send("ty_look\n")
        return await self._looked()

    async def ask(self, script: str) -> tuple[int, str]:
        """Run a short script of ours in a subshell of the channel; return its status and its output.

        This saves opening another ssh channel. The output holds both streams; the script gets no input.
        """
        mark = ids.new_id()
        await self._send(_asking(script, mark))
        return await self._said(mark)

    async def _said(self, mark: str) -> tuple[int, str]:
        self.is_idle = False
        ending = f"\n{mark} ".encode()
        while (end := self._buffer.find(ending)) < 0 or self._buffer.find(b"\n", end + 1) < 0:
            await self._fill()
        said = self._buffer[:end].decode(errors="surrogateescape")
        del self._buffer[: end + len(ending)]
        status, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        self.is_idle = True
        return int(status), said

    async def submit(self, token: str, text: str) -> int:
        """Queue a command and return its number. The same token always means the same command."""
        await self._send(f"ty_submit {token} {shell.quote(text)}\n")
        number = await self._submitted()
        self.is_idle = True
        return number

    async def wait(self, number: int, collect: OnOutput | None) -> tuple[str, int]:
        """Wait until a command has ended; return its status word and the size of its output.

        `collect` gets the output in pieces.
        """
        mark = ids.new_id()
        await self._send(f"ty_wait {number} {mark if collect else ''}\n")
        return await self._ended(collect, mark)

    async def run(
        self, token: str, text: str, collect: OnOutput | None, on_number: Callable[[int], None]
    ) -> tuple[str, int]:
        """`submit` and `wait` in one exchange."""
        await self._send(f'ty_submit {token} {shell.quote(text)}\nty_wait "$n" {token if collect else ""}\n')
        on_number(await self._submitted())
        return await self._ended(collect, token)

    async def _submitted(self) -> int:
        (word,) = await self._answer("+")
        if word == FULL:
            raise InvalidError(
                f"the disk of {self._machine} is full: the command was not started", hint=FREE_SPACE
            )
        return int(word)

    def leave(self) -> bool:
        """Let the remote shell end with its transport, which is about to be closed.

        Returns False if the channel must be closed by itself first.
        """
        if not self.is_idle or not isinstance(self._process, Leavable):
            return False
        self.is_idle = False
        self._process.leave()
        return True

    async def aclose(self) -> None:
        """End the remote shell. An idle one tidies up at end of file; one in the middle of an exchange is killed."""
        if self.is_idle:
            self.is_idle = False
            with contextlib.suppress(UnreachableError, TimeoutError):
                async with asyncio.timeout(1):
                    await self._process.write_eof()
                    await self._process.wait()
        await self._process.terminate()

    async def _send(self, statement: str) -> None:
        self.is_idle = False
        await self._process.write(statement.encode(errors="surrogateescape"))

    async def _looked(self) -> SessionLook:
        alive, running, last, variables = await self._answer("?")
        self.is_idle = True
        return SessionLook(
            alive == "alive",
            int(running) if running.isdigit() else None,
            int(last) if last.isdigit() else 0,
            variables,
        )

    async def _ended(self, collect: OnOutput | None, mark: str) -> tuple[str, int]:
        number, status, size = await self._answer("=")
        if size == "-" and collect is not None:
            size = await self._take_output(number, collect, f"\n{mark}\n".encode())
        self.is_idle = True
        return status, int(size)

    async def _take_output(self, number: str, collect: OnOutput, ending: bytes) -> str:
        """Pass on the first part up to its end mark, then the rest if there is more; return the total size."""
        while (end := self._buffer.find(ending)) < 0:
            await self._fill()
        collect(bytes(self._buffer[:end]))
        del self._buffer[: end + len(ending)]
        if end < FIRST_PART:
            return str(end)
        await self._send(f"ty_rest {number}\n")
        _number, _status, size = await self._answer("=")
        left = int(size) - FIRST_PART
        while left:
            if not self._buffer:
                await self._fill()
            piece = bytes(self._buffer[:left])
            del self._buffer[:left]
            left -= len(piece)
            collect(piece)
        return size

    async def _answer(self, mark: str) -> list[str]:
        while (end := self._buffer.find(b"\n")) < 0:
            await self._fill()
        words = self._buffer[:end].decode().split()
        del self._buffer[: end + 1]
        if words[:1] != [mark]:
            raise UnreachableError(f"the line to {self._machine} answered {words!r} where {mark!r} was due")
        return words[1:]

    async def _fill(self) -> None:
        try:
            self._buffer += await anext(self._pieces)
        except StopAsyncIteration:
            errors = self._process.errors.decode(errors="replace").strip()
            raise UnreachableError(
                f"the line to {self._machine} ended" + (f": {errors}" if errors else "")
            ) from None


def _asking(script: str, mark: str) -> str:
    return f"(\n{script}\n) </dev/null 2>&1 3>&-\nprintf '\\n%s %s\\n' {mark} \"$?\"\n"


@cache
def _far_side() -> str:
    here = Path(__file__)
    names = ("session_alive.sh", "session_wake.sh", "control_channel.sh")
    text = "".join(here.with_name(name).read_text() for name in names)
    # The script is sent to every machine, so comments are removed first. No string in it may span lines.
    return "".join(f"{line}\n" for line in map(str.strip, text.splitlines()) if line and line[0] != "#")
