"""Reads single keys in a live view, and restores the terminal afterwards."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def key_pressed() -> Iterator[asyncio.Event]:
    """An event for `q`, Escape or the end of input."""
    pressed = asyncio.Event()
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def look() -> None:
        if os.read(descriptor, 1) in {b"q", b"Q", b"\x1b", b""}:
            pressed.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, look)
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
