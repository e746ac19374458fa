"""Blocking calls of the vendor's package off the event loop, in threads that do not keep the program from ending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run it in a thread of its own. Cancelling stops the waiting, not the thread: what it does may still happen.

    Not `asyncio.to_thread`: its threads are waited for when the program ends, so Ctrl-C would hang until the time-out.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return  # nobody waits any more
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # T, as there was no error

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as caught:  # noqa: BLE001  # handed on to whoever waits, as it is
            error = caught
        with suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True, name="aliyun-call").start()
    return await future
