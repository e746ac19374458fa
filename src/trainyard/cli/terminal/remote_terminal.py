"""Connects the user's terminal to a task: sends raw keys and the window's size, prints the output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainyard.cli.invocation import current
from trainyard.client.terminal import Terminal, open_terminal

if TYPE_CHECKING:
    from trainyard.client import Client


async def attach(client: Client, job: str, task: str, command: str) -> int:
    """Run a command in a task with this terminal; its exit status."""
    has_terminal = sys.stdin.isatty()
    size = os.get_terminal_size(sys.stdin.fileno()) if has_terminal else os.terminal_size((80, 24))
    output = current().output
    async with open_terminal(
        client.connection,
        job,
        task,
        command=command,
        columns=size.columns,
        rows=size.lines,
        has_terminal=has_terminal,
    ) as terminal:
        with _raw(has_terminal), _typed(terminal, has_terminal):
            async for piece in terminal.output():
                output.raw(piece)
    return terminal.status or 0


@contextmanager
def _raw(has_terminal: bool) -> Iterator[None]:
    if not has_terminal:
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed ahead stays
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _typed(terminal: Terminal, has_terminal: bool) -> Iterator[None]:
    """Send what is typed, in order, and the window's size whenever it changes."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | os.terminal_size] = asyncio.Queue()
    descriptor = sys.stdin.fileno()

    def typed() -> None:
        data = os.read(descriptor, 65536)
        queue.put_nowait(data)
        if not data:
            loop.remove_reader(descriptor)

    async def send() -> None:
        while True:
            item = await queue.get()
            if isinstance(item, os.terminal_size):
                await terminal.resize(item.columns, item.lines)
            elif item:
                await terminal.write(item)
            else:
                await terminal.end_input()

    sending = asyncio.ensure_future(send())
    is_watched = _watch(loop, descriptor, typed, queue)
    if has_terminal:
        loop.add_signal_handler(signal.SIGWINCH, lambda: queue.put_nowait(os.get_terminal_size(descriptor)))
    try:
        yield
    finally:
        if is_watched:
            loop.remove_reader(descriptor)
        if has_terminal:
            loop.remove_signal_handler(signal.SIGWINCH)
        sending.cancel()


def _watch(
    loop: asyncio.AbstractEventLoop,
    descriptor: int,
    typed: object,
    queue: asyncio.Queue[bytes | os.terminal_size],
) -> bool:
    try:
        loop.add_reader(descriptor, typed)  # type: ignore[arg-type]  # a callback without arguments
    except PermissionError:  # a plain file cannot be watched: it is all there
        while data := os.read(descriptor, 65536):
            queue.put_nowait(data)
        queue.put_nowait(b"")
        return False
    return True
