"""The output of a session's commands, for people: list the commands, show their last lines, follow them.

This module reads the session's files and starts nothing on the machine. `session.py` runs commands and waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from trainyard.lib import shell
from trainyard.lib.errors import NotFoundError
from trainyard.runtime.session import Ended, Session, SessionState

LISTED = 200  # the most commands that a listing shows; older ones are left out
RUNNING, WAITING, LOST = "running", "waiting", "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRecord:
    """One command as the session's files describe it."""

    number: int
    text: str  # its first line
    state: str  # running, waiting, lost, or an exit status
    size: int = 0  # bytes it has printed
    submitted: datetime | None = None
    ended: datetime | None = None


async def fetch_commands(session: Session, *, limit: int = LISTED) -> list[CommandRecord]:
    """Return the newest commands, the oldest of them first."""
    state = await session.state()
    script = f"D={shell.home_path(session.folder)} count={limit}\n{_read('commands.sh')}"
    text = (await session.transport.run(script)).stdout.decode(errors="replace")
    lines = [line.split(" ", 1) for line in text.split("\n") if line[1:2] == " "]
    files: dict[str, tuple[int, datetime]] = {}
    for name, size, seconds in (rest.split(" ") for kind, rest in lines if kind == "s"):
        files[name] = (int(size), datetime.fromtimestamp(int(seconds), UTC))
    return [_record(rest, files, state) for kind, rest in lines if kind == "c"]


def _record(line: str, files: Mapping[str, tuple[int, datetime]], session: SessionState) -> CommandRecord:
    word, status, *text = line.split(" ", 2)
    number = int(word)
    if status == "-":
        has_begun = session.running == number and f"{number}.out" in files
        status = (RUNNING if has_begun else WAITING) if session.alive else LOST
    submitted, ended = files.get(f"{number}.cmd"), files.get(f"{number}.status")
    return CommandRecord(
        number=number,
        text=text[0] if text else "",
        state=status,
        size=files[f"{number}.out"][0] if f"{number}.out" in files else 0,
        submitted=submitted[1] if submitted else None,
        ended=ended[1] if ended and status not in {RUNNING, WAITING} else None,
    )


async def newest(session: Session) -> int:
    """Return the number of the running command, else of the last one. NotFoundError if there was none."""
    state = await session.state()
    number = state.running if state.alive and state.running is not None else state.last
    if not number:
        raise NotFoundError(
            f"nothing was run on {session.machine} yet",
            hint=f"Run something with `trainyard run {session.machine} COMMAND`.",
        )
    return number


async def show(
    session: Session, number: int, on_output: Callable[[bytes], None], *, lines: int | None = None
) -> None:
    """Pass on the output of a command so far: its last `lines` lines, or all of it."""
    start = await _start(session, number, lines)
    if start is None:
        return
    async for piece in session.read(number, start=start):
        on_output(piece)


async def follow(
    session: Session,
    number: int,
    on_output: Callable[[bytes], None],
    *,
    lines: int | None = None,
    on_ended: Callable[[Ended], None] = lambda _ended: None,
) -> Ended:
    """Pass on the past and future output of a command until it ends. Cancelling leaves the command running."""
    start = await _start(session, number, lines) or 0
    if await session.status(number) is not None or not (await session.state()).alive:
        await show(session, number, on_output, lines=lines)
        ended = Ended(number, await session.status(number) or 0, 0)
    else:
        ended = await session.wait(number, on_output=on_output, start=start, interrupt=False)
    on_ended(ended)
    return ended


async def follow_all(
    session: Session,
    number: int,
    on_output: Callable[[bytes], None],
    *,
    lines: int | None = None,
    on_ended: Callable[[Ended], None] = lambda _ended: None,
) -> Ended:
    """Follow a command and those that wait behind it, until the shell is idle."""
    ended = await follow(session, number, on_output, lines=lines, on_ended=on_ended)
    while (await session.state()).last > number:
        number += 1
        ended = await follow(session, number, on_output, on_ended=on_ended)
    return ended


async def _start(session: Session, number: int, lines: int | None) -> int | None:
    """Return the byte to begin at, or None if the command has not begun."""
    head = f"D={shell.home_path(session.folder)} n={number} lines={lines or 0}\n"
    done = await session.transport.run(head + _read("tail_start.sh"))
    if done.status == 44:
        raise NotFoundError(
            f"there is no command {number} on {session.machine}",
            hint=f"See which there are with `trainyard logs --list {session.machine}`.",
        )
    text = done.stdout.decode().strip()
    return int(text) if text.isdigit() else None


@cache
def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
