"""Hints: "look again" inside one process. Nothing depends on one arriving; it only saves waiting for the next look."""

from __future__ import annotations

import asyncio
import threading

RECONCILER = "reconciler"  # people want something of a workload, a node or a quota
EVENTS = "events"  # something was appended to the events
POOLS = "pools"  # machines are wanted, or somebody changed a pool


class Wakeups:
    """Topics that can be woken from any thread, and waited for from any loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]] = {}
        self._count: dict[str, int] = {}

    def wake(self, *topics: str) -> None:
        """Tell everybody who waits for one of these topics, and the next who comes to wait."""
        with self._lock:
            woken = []
            for topic in topics:
                self._count[topic] = self._count.get(topic, 0) + 1
                woken += self._waiting.pop(topic, [])
        for loop, future in woken:
            try:
                loop.call_soon_threadsafe(_finish, future)
            except RuntimeError:  # that loop has closed: nobody waits there any more
                continue

    def mark(self, topic: str) -> int:
        """How often a topic was woken: given to `wait`, what happened since then counts as well."""
        with self._lock:
            return self._count.get(topic, 0)

    async def wait(self, topic: str, *, timeout: float | None = None, since: int | None = None) -> bool:
        """Wait for a hint; False where none came in time. With `since`, a mark, none can be missed in between."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if since is not None and self._count.get(topic, 0) != since:
                return True
            self._waiting.setdefault(topic, []).append((loop, future))
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return False
        finally:
            self._forget(topic, future)
        return True

    def _forget(self, topic: str, future: asyncio.Future[None]) -> None:
        with self._lock:
            left = [entry for entry in self._waiting.get(topic, []) if entry[1] is not future]
            if left:
                self._waiting[topic] = left
            else:
                self._waiting.pop(topic, None)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
