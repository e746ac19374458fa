"""Bodies of requests: read whole, within limits of size and time, and counted while they are held. The same at every door.

A stranger may send little; whoever sends more has to say who they are first, by the headers. What may be open at all is
web/connection_limits.py's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from trainyard.lib.errors import InvalidError
from trainyard.server.auth.actor import LimitedError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Identify = Callable[[], Awaitable[str]]

BODY_SECONDS = 30.0  # a body that takes longer holds a place for nothing
STRANGERS_BODY = 64 << 10  # of one request, before it is known whose it is
# Of all strangers, and of one address of theirs.
STRANGERS_BYTES, STRANGERS_EACH = 16 << 20, 2 << 20
# Of all users, and of one of them. One body may always be as large as the settings say.
USERS_BYTES, USERS_EACH = 128 << 20, 32 << 20
RETRY_SECONDS = 1.0


class TooLargeError(InvalidError):
    """The body is larger than this path takes."""

    code = "too_large"
    http_status = 413


class TooSlowError(InvalidError):
    """The body did not come in time."""

    code = "too_slow"
    http_status = 408


class RequestBodies:
    """The bodies that one server holds."""

    def __init__(self) -> None:
        self._strangers = _Budget(STRANGERS_BYTES, STRANGERS_EACH)
        self._users = _Budget(USERS_BYTES, USERS_EACH)

    @asynccontextmanager
    async def body(
        self, scope: Scope, receive: Receive, *, limit: int, identify: Identify
    ) -> AsyncIterator[bytes]:
        """The body of a request, counted until the block ends. `identify` says whose it is, or raises."""
        held = _Held(self._strangers, (scope.get("client") or ("",))[0])
        try:
            yield await self._read(scope, receive, limit, identify, held)
        finally:
            held.change(0)

    async def _read(
        self, scope: Scope, receive: Receive, limit: int, identify: Identify, held: _Held
    ) -> bytes:
        async def know() -> None:
            key = await identify()
            held.move(self._users, key)

        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                if _declared(scope, limit) > STRANGERS_BODY:
                    await know()
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise TooSlowError("The body never came.", hint="Send it again.")
                    pieces.append(message.get("body", b""))
                    more = message.get("more_body", False)
                    size += len(pieces[-1])
                    if size > limit:
                        raise _too_large(limit)
                    if held.budget is self._strangers and (size > STRANGERS_BODY or not held.has_room(size)):
                        await know()
                    held.change(size)
        except TimeoutError as error:
            raise TooSlowError("The body took too long.", hint="Send it again, or less at once.") from error
        return b"".join(pieces)


class _Budget:
    """Bytes that may be held: of all, and of each."""

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self.held = 0
        self.by_key: Counter[str] = Counter()


class _Held:
    """What is held of one body."""

    def __init__(self, budget: _Budget, key: str) -> None:
        self.budget = budget
        self._key = key
        self._size = 0

    def has_room(self, size: int) -> bool:
        more, others = size - self._size, self.budget.by_key[self._key] - self._size
        # One body alone always fits: how large it may be was asked before.
        return self.budget.held + more <= self.budget.total and (
            not others or others + size <= self.budget.each
        )

    def change(self, size: int) -> None:
        """So much is held now; LimitedError where that is too much."""
        more = size - self._size
        if more > 0 and not self.has_room(size):
            raise LimitedError("Too much is being sent at once.", retry_after=RETRY_SECONDS)
        self._size = size
        self.budget.held += more
        self.budget.by_key[self._key] += more
        if not self.budget.by_key[self._key]:
            del self.budget.by_key[self._key]

    def move(self, budget: _Budget, key: str) -> None:
        """It is known now whose it is."""
        size = self._size
        self.change(0)
        self.budget, self._key = budget, key
        self.change(size)


def _declared(scope: Scope, limit: int) -> int:
    """How large the body is, as its header says; 0: it says nothing."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            if not value.isdigit() or int(value[:20]) > limit:
                raise _too_large(limit)
            return int(value[:20])
    return 0


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"The body is larger than {limit} bytes.", hint="Send less at once.")
