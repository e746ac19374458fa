"""Answers that are kept as bytes until something in the database has changed, whoever changed it."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Protocol

ENTRIES = 512
BYTES = 16 << 20  # of answers that are kept; a page of a hundred jobs is 80 kB


class Changes(Protocol):
    """Tells whether anything was committed since."""

    async def mark(self) -> Hashable:
        """A mark that is another one after every commit."""


@dataclass(slots=True)
class CachedResponse:
    """An answer's bytes, and when the reading for it began."""

    body: bytes
    etag: str
    mark: Hashable
    began: float


@dataclass(slots=True)
class _Place:
    kept: CachedResponse | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Answers:
    """A cache of rendered answers. Whoever comes gets what was committed before they came, or something newer."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._places: OrderedDict[Hashable, _Place] = OrderedDict()
        self._bytes = 0

    async def get(self, key: Hashable, render: Callable[[], Awaitable[tuple[bytes, str]]]) -> CachedResponse:
        """The answer for `key`; rendered where it is not there or was overtaken, by one for all who wait for it."""
        came = time.monotonic()
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place()
        else:
            self._places.move_to_end(key)
        if place.kept is not None and place.kept.mark == await self._changes.mark():
            return place.kept
        async with place.lock:
            # Somebody may have begun to read after we came: that is new enough for us, whatever was written since.
            if place.kept is not None and place.kept.began >= came:
                return place.kept
            began = time.monotonic()
            mark = await self._changes.mark()
            if place.kept is not None and place.kept.mark == mark:
                return place.kept
            body, etag = await render()
            self._keep(key, place, CachedResponse(body, etag, mark, began))
            return CachedResponse(body, etag, mark, began)

    async def peek(self, key: Hashable) -> CachedResponse | None:
        """The answer for `key` if it is kept and still right."""
        place = self._places.get(key)
        if place is None or place.kept is None or place.kept.mark != await self._changes.mark():
            return None
        return place.kept

    def _keep(self, key: Hashable, place: _Place, kept: CachedResponse) -> None:
        if place.kept is not None and self._places.get(key) is place:
            self._bytes -= len(place.kept.body)
        place.kept = kept
        if self._places.get(key) is not place:  # evicted while we rendered
            return
        self._bytes += len(kept.body)
        while self._places and (self._bytes > BYTES or len(self._places) > ENTRIES):
            _, oldest = self._places.popitem(last=False)
            self._bytes -= len(oldest.kept.body) if oldest.kept is not None else 0
