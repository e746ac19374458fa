"""text/event-stream: messages, pings, and an answer that ends when its reader has gone. What is streamed is send.py's
and logs.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from trainyard.lib.errors import Error
from trainyard.messages.catalogue import error_in
from trainyard.messages.text import EN
from trainyard.server.api.http.errors import body_of
from trainyard.server.api.http.guard_middleware import Send
from trainyard.server.api.http.languages import language_of_scope
from trainyard.server.api.http.request_bodies import Receive, Scope

# Proxies close what is silent for a minute; a client takes a stream for dead after 45 seconds.
PING_SECONDS = 15.0
PING = b": ping\n\n"
END = b"event: end\ndata: {}\n\n"


def message(kind: str, data: object, identity: object = "") -> bytes:
    """One message. JSON has no line feed in it, so one `data` line is enough."""
    head = f"id: {identity}\nevent: {kind}\ndata: " if identity != "" else f"event: {kind}\ndata: "
    return head.encode() + to_json(data) + b"\n\n"


class EventStream(Response):
    """An answer that goes on. `check` is asked with every ping whether the reader may still look."""

    media_type = "text/event-stream"

    def __init__(
        self, messages: AsyncGenerator[bytes, None], check: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._messages = messages
        self._check = check
        self._language = EN

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until there is no more, or the reader has gone."""
        self._language = language_of_scope(scope)
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [pair for pair in self.raw_headers if pair[0] != b"content-length"],
            }
        )
        pump = asyncio.ensure_future(self._pump(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in (pump, gone):
                part.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)
            await self._messages.aclose()
        if not pump.cancelled() and (error := pump.exception()) is not None:
            raise error

    async def _pump(self, send: Send) -> None:
        async def out(body: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        await out(b"retry: 1000\n\n")
        try:
            async for body in self._with_pings():
                await out(body)
        except Error as error:
            said, hint = error_in(error, self._language)
            await out(message("error", body_of(error.code, said, hint, reason=error.reason)))
        await out(b"", more=False)

    async def _with_pings(self) -> AsyncIterator[bytes]:
        asked = time.monotonic()
        following: asyncio.Future[Any] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(anext(self._messages, None))
                done, _ = await asyncio.wait({following}, timeout=PING_SECONDS)
                if time.monotonic() - asked >= PING_SECONDS - 0.1:
                    asked = time.monotonic()
                    if self._check is not None:
                        await self._check()
                if not done:
                    yield PING
                    continue
                body = following.result()
                following = None
                if body is None:
                    return
                yield body
        finally:
            if following is not None:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError, Error):
                    await following


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
