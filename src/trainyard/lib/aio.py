"""Small asyncio pieces: fan-out that lets the healthy finish, bounded concurrency, cleanup that survives cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
A = TypeVar("A")


async def gather_all(coroutines: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """Wait for all; failures come back as values in their place.

    Not a TaskGroup: that would cancel seven healthy machines in the middle of an install because the eighth failed.
    Cancelling the call cancels all.
    """
    return await asyncio.gather(*coroutines, return_exceptions=True)


async def map_bounded(
    function: Callable[[A], Coroutine[Any, Any, T]], items: Sequence[A], *, limit: int
) -> list[T | BaseException]:
    """Like `gather_all` over `function(item)`, at most `limit` at a time."""
    gate = asyncio.Semaphore(limit)

    async def one(item: A) -> T:
        async with gate:
            return await function(item)

    return await gather_all([one(item) for item in items])


async def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run cleanup to its end even when the surrounding call is cancelled meanwhile; then let the cancel through."""
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(
            task, return_exceptions=True
        )  # its failure is seen, the cancel is what is raised
        raise


async def end_task(task: asyncio.Task[Any] | None) -> None:
    """Cancel a background task and wait until it has gone; its result or failure is of no interest any more."""
    if task is None:
        return
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def readable(descriptor: int) -> None:
    """Wait until something, or the end, can be read from a descriptor that never blocks. One reader at a time."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
