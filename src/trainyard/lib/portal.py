"""Blocking calls into asyncio: one background loop, entered from any thread.

Works where a loop is already running in the calling thread (a notebook), because the portal's loop lives in a
thread of its own. No domain knowledge; `sync.py` is the user.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")

_CLEANUP_SECONDS = 10.0  # how long Ctrl-C waits for a cancelled call to put things in order


class Portal:
    """A background event loop. `call` runs a coroutine there and waits for its result."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="trainyard-portal", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run and wait. Ctrl-C cancels the coroutine, waits until it has cleaned up, then raises."""
        # NB: cancelling the future of run_coroutine_threadsafe ends it at once, while the coroutine still cleans
        # up in the loop. So the task is cancelled, never a future: `ended` ends when the task has ended.
        started: Future[asyncio.Task[T]] = Future()
        ended: Future[T] = Future()
        try:
            asyncio.run_coroutine_threadsafe(_run(coroutine, started, ended), self._loop)
            return ended.result()
        except KeyboardInterrupt:  # at any moment, also before the loop has heard of the coroutine
            self._pass_a_turn()
            if started.done():
                self._loop.call_soon_threadsafe(started.result().cancel)
                _settle(ended)
            else:
                coroutine.close()
            raise

    def _pass_a_turn(self) -> None:
        """Wait until the loop has taken up all it was given so far."""
        turn: Future[None] = Future()
        self._loop.call_soon_threadsafe(turn.set_result, None)
        turn.result(timeout=_CLEANUP_SECONDS)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run in the background; the caller keeps the future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Stop the loop. Tasks still running there are cancelled first."""
        if not self._loop.is_running():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()


async def _run(coroutine: Coroutine[Any, Any, T], started: Future[asyncio.Task[T]], ended: Future[T]) -> None:
    task = asyncio.ensure_future(coroutine)
    started.set_result(task)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:  # the portal is being closed under a call of another thread
        task.cancel()
        ended.cancel()
        raise
    if task.cancelled():
        ended.cancel()
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())


def _settle(future: Future[T]) -> None:
    """Wait for a cancelled call without hiding the interrupt that cancelled it."""
    try:
        future.exception(timeout=_CLEANUP_SECONDS)
    except (CancelledError, TimeoutError):
        return


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
