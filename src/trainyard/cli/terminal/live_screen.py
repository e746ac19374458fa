"""A screen that is refreshed until `q` or Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from trainyard.cli.terminal.key_reader import key_pressed
from trainyard.cli.terminal.output import Output

T = TypeVar("T")
INTERVAL_SECONDS = 2.0


def can_watch(output: Output) -> bool:
    """Whether there is a terminal to draw on and a keyboard to end it."""
    return output.can_draw and output.is_terminal and sys.stdin.isatty()


async def watch(
    output: Output,
    first: T,
    look: Callable[[T], Awaitable[T]],
    draw: Callable[[T], str],
    *,
    interval: float | None = None,
) -> None:
    """Draw `first`, then each new result of `look`. Restores the screen at the end."""
    found = first
    output.enter_screen()
    try:
        with key_pressed() as pressed:
            while True:
                output.screen(draw(found))
                try:
                    await asyncio.wait_for(pressed.wait(), timeout=interval or INTERVAL_SECONDS)
                    return
                except TimeoutError:
                    found = await look(found)
    finally:
        output.leave_screen()
