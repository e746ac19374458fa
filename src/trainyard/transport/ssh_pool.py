"""The class Pool: the shared connections to one host. It replaces lost connections and adds one when all are full.

sshd allows ten sessions on a connection by default (MaxSessions); an administrator may set fewer. A `run` waits a moment
for a free place. A `spawn` never waits, since other spawned commands may live for days. Two places are reserved for
ending commands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from trainyard.lib.aio import end_task, gather_all
from trainyard.lib.errors import UnreachableError
from trainyard.transport.ssh_connect import SshConnection

SESSIONS_PER_LINK = (
    8  # of sshd's ten: two are left for ending commands. Half of the first link is kept for runs
)
RESERVED_SESSIONS = 2
PATIENCE_SECONDS = 0.5  # how long a run waits for a place before another connection is opened for it
IDLE_SECONDS = 20.0  # a further connection that nobody uses is closed after this


@dataclass(eq=False)
class PooledConnection:
    """A connection and the number of its sessions."""

    link: SshConnection
    is_first: bool
    limit: int
    runs: int = 0
    spawns: int = 0
    idle_timer: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def is_free(self) -> bool:
        """Whether one more session may be opened."""
        return not self.link.is_lost and self.runs + self.spawns < self.limit

    @property
    def takes_spawn(self) -> bool:
        """Whether one more long-lived session may be opened."""
        return self.is_free and self.spawns < (self.limit // 2 if self.is_first else self.limit)


class Pool:
    """All connections to one host."""

    def __init__(self, open_link: Callable[[], Coroutine[Any, Any, SshConnection]], name: str) -> None:
        self._open_link = open_link
        self._name = name
        self._places: list[PooledConnection] = []
        self._opening: asyncio.Task[PooledConnection] | None = None
        self._interested = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._limit = SESSIONS_PER_LINK
        self._reserve = asyncio.Semaphore(RESERVED_SESSIONS)
        self.is_closed = False

    async def first(self) -> PooledConnection:
        """Return a live connection; connect if there is none. Concurrent callers share one attempt."""
        if self.is_closed:
            raise self._closed()
        return self._find_live() or await self._open()

    def _find_live(self) -> PooledConnection | None:
        return next((place for place in self._places if not place.link.is_lost), None)

    def _closed(self) -> UnreachableError:
        return UnreachableError(f"the way to {self._name} has been closed")

    async def take_for_run(self) -> PooledConnection:
        """Take a place for a short session; give it back with `release_run`."""
        place = await self._find_for_run()
        place.runs += 1
        return place

    def release_run(self, place: PooledConnection) -> None:
        """The session has ended."""
        place.runs -= 1
        self._freed(place)

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[SshConnection]:
        """Yield a connection for short work that must not wait for other commands."""
        async with self._reserve:
            yield (self._find_live() or await self.first()).link

    @asynccontextmanager
    async def extra(self) -> AsyncIterator[SshConnection]:
        """Yield a new connection for the caller alone, closed afterwards."""
        link = await self._open_link()
        try:
            yield link
        finally:
            await link.aclose()

    def narrow(self, place: PooledConnection, held: int) -> None:
        """Lower the limit, since the host refused a session beside the `held` ones."""
        self._limit = place.limit = max(1, min(place.limit, held))

    async def take_for_spawn(self) -> PooledConnection:
        """Take a place for a long-lived session; give it back with `release_spawn`."""
        await self.first()
        while True:
            place = next((place for place in self._places if place.takes_spawn), None)
            if place is None:
                place = await self._open()
            if place.takes_spawn:  # other callers that waited for the same connection may have filled it
                place.spawns += 1
                return place

    def release_spawn(self, place: PooledConnection) -> None:
        """The session has ended."""
        place.spawns -= 1
        self._freed(place)

    async def aclose(self) -> None:
        """Close all connections, and the attempt to open one."""
        self.is_closed = True
        self._wake_all()
        await end_task(self._opening)
        places, self._places = self._places, []
        for place in places:
            if place.idle_timer is not None:
                place.idle_timer.cancel()
        await gather_all([place.link.aclose() for place in places])

    async def _find_for_run(self) -> PooledConnection:
        await self.first()
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            place = next((place for place in self._places if place.is_free), None)
            if place is not None:
                return place
            if self.is_closed or self._find_live() is None:
                await self.first()
            elif not await self._freed_before(deadline):
                await self._open()
                deadline += PATIENCE_SECONDS

    async def _freed_before(self, deadline: float) -> bool:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
                return True
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.done() and not waiter.cancelled():
                # This caller was woken and cancelled at once, so wake the next one. A wake-up in vain does no harm.
                self._wake_one()

    def _freed(self, place: PooledConnection) -> None:
        self._wake_one()
        if place.is_first or place.runs or place.spawns or self.is_closed:
            return
        if place.idle_timer is not None:
            place.idle_timer.cancel()
        place.idle_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle, place)

    def _close_idle(self, place: PooledConnection) -> None:
        if place.runs or place.spawns or place not in self._places:
            return
        self._places.remove(place)
        place.link.connection.close()

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiting:
            self._wake_one()

    async def _open(self) -> PooledConnection:
        """Open one more connection. Callers that ask meanwhile wait for the same one."""
        if self.is_closed:
            raise self._closed()
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
        opening = self._opening
        self._interested += 1
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled() and not _is_cancelling():
                raise self._closed() from None
            if self._interested == 1:
                await end_task(opening)
            raise
        finally:
            self._interested -= 1
            if opening.done() and self._opening is opening:
                self._opening = None

    async def _connect(self) -> PooledConnection:
        link = await self._open_link()
        self._places = [place for place in self._places if not place.link.is_lost]
        place = PooledConnection(link, is_first=not self._places, limit=self._limit)
        self._places.append(place)
        link.client.on_lost = lambda _cause: self._lost(place)
        self._wake_all()
        return place

    def _lost(self, place: PooledConnection) -> None:
        if place in self._places:
            self._places.remove(place)
        if place.idle_timer is not None:
            place.idle_timer.cancel()
        if self._places:
            self._places[0].is_first = True
        self._wake_all()


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
