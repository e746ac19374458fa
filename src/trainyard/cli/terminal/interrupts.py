"""Handles Ctrl-C: the first one interrupts the remote command, the second one only leaves."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def two_stage(first: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """On the first Ctrl-C run `first` beside what goes on; on the second cancel it, as Ctrl-C does otherwise.

    Where Ctrl-C is ignored, as in the background of a script, it stays ignored: it is meant for somebody else.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    loop = asyncio.get_running_loop()
    working = asyncio.current_task()
    started: list[asyncio.Task[None]] = []

    def pressed() -> None:
        if not started:
            started.append(asyncio.ensure_future(first()))
            # If a machine cannot be reached, the wait for it will report that.
            started[0].add_done_callback(lambda task: task.cancelled() or task.exception())
        elif working is not None:
            working.cancel()

    loop.add_signal_handler(signal.SIGINT, pressed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for task in started:
            task.cancel()
