"""uvicorn's protocols with limits: each connection has a place, headers have a size, a number and a time, and so has TLS.

Only names that uvicorn shows to everybody are overridden. Whose place goes first is connection_limits.py's.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from trainyard.server.web.connection_limits import (
    BUSY,
    HEADERS_SECONDS,
    ConnectionLimits,
    ConnectionPlace,
    answer_of,
)

# A cursor of a large job's log is 60 KB, in the address or in a header.
HEAD_BYTES = 128 << 10
MOST_HEADERS = 200
MOST_PIPELINED = 16  # requests of one connection that wait for the one before them

INVALID = answer_of(
    "400 Bad Request",
    "invalid",
    "This is no HTTP request.",
    "Send HTTP/1.1; over https where the server speaks it.",
)
HEAD_TOO_LARGE = answer_of(
    "431 Request Header Fields Too Large",
    "too_large",
    f"The request's headers are more than {MOST_HEADERS} or larger than {HEAD_BYTES} bytes.",
    "Send less at once.",
)
TOO_MANY_PIPELINED = answer_of(
    "429 Too Many Requests",
    "too_many",
    "Too many requests wait on this connection.",
    "Read the answers first.",
    "retry-after: 1",
)


class _RefusedError(Exception):
    """Raised into the parser, which then stops."""


class _SlowReaders(asyncio.Protocol):
    """Tells the limits when the reader of a connection is slower than we are."""

    limits: ClassVar[ConnectionLimits]
    place: ConnectionPlace | None

    def pause_writing(self) -> None:
        """The reader is slower than we are."""
        if self.place is not None:
            self.limits.stuck(self.place)
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self.place is not None:
            self.limits.flows(self.place)
        super().resume_writing()


class LimitedHttp(_SlowReaders, HttpToolsProtocol):
    """HTTP/1.1 with limits."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.place: ConnectionPlace | None = None
        self._beside_body = 0  # bytes of the message so far that are not its body, which counts twice
        self._is_between = True  # no message has begun since the last was complete
        self._refusal = INVALID

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Take a place, or say that there is none."""
        super().connection_made(transport)
        if self.place is not None:  # of the handshake before
            self.place.transport = transport
            self.limits.wait(self.place)
            return
        self.place = self.limits.enter(transport)
        if self.place is None:
            transport.write(BUSY)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        if self.place is not None:
            self.limits.leave(self.place)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, within the limits."""
        place = self.place
        if place is None or self.transport.is_closing():  # refused, or told to go
            return
        place.has_begun = True
        self._beside_body += len(data)
        super().data_received(data)
        if self._is_between:
            self._beside_body = 0
            return
        if self._beside_body > HEAD_BYTES and not self.transport.is_closing():
            self._refusal = HEAD_TOO_LARGE
            self.send_400_response("")
        elif not place.has_headers:
            self.limits.hold(place, self._beside_body)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's signature
        """Say what is wrong with what came, in the API's shape, and close."""
        if not self.transport.is_closing():
            self.transport.write(self._refusal)
            self.transport.close()

    # -- of the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        if len(self.pipeline) >= MOST_PIPELINED:
            self._refusal = TOO_MANY_PIPELINED
            raise _RefusedError
        self._is_between = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a field behind a body, which counts as one."""
        if len(self.headers) >= MOST_HEADERS:
            self._refusal = HEAD_TOO_LARGE
            raise _RefusedError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """All headers have come."""
        if self.place is not None:
            self.place.has_headers = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of a body."""
        # NB: twice: what frames its pieces may be as long as they are. Who sends single bytes is refused.
        self._beside_body -= 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of a request has come."""
        self._is_between, self._beside_body = True, 0
        if self.place is not None:
            self.limits.served(self.place)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request was answered: the connection waits, unless another request came behind it."""
        super().on_response_complete()
        if self.place is not None and self.cycle.response_complete:
            self.limits.wait(self.place)

    def handle_websocket_upgrade(self) -> None:
        """Hand the place on to the WebSocket."""
        super().handle_websocket_upgrade()
        taker = self.transport.get_protocol()
        if isinstance(taker, LimitedWebSocket):
            taker.place, self.place = self.place, None


class LimitedWebSocket(_SlowReaders, WebSocketsSansIOProtocol):
    """A WebSocket on the place of the request that opened it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.place: ConnectionPlace | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        if self.place is not None:
            self.limits.leave(self.place)
        super().connection_lost(exc)


class TlsHandshake(asyncio.Protocol):
    """What a connection is until TLS was agreed upon: it has a place, and as long as headers have.

    `loop.create_server` would do the handshake before anybody could count it. `loop.start_tls` comes too late: uvloop has
    read the first bytes by then.
    """

    limits: ClassVar[ConnectionLimits]
    context: ClassVar[ssl.SSLContext]
    within: ClassVar[type[LimitedHttp]]

    def __init__(self, **given: Any) -> None:
        self._given = given

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin."""
        place = self.limits.enter(transport)
        if place is None:
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        http = self.within(**self._given)
        http.place = place
        agreed: asyncio.Future[None] = loop.create_future()

        def end(_: object) -> None:
            if agreed.cancelled() or agreed.exception() is not None or transport.is_closing():
                self.limits.leave(place)

        agreed.add_done_callback(end)
        tls = SSLProtocol(
            loop, http, self.context, agreed, server_side=True, ssl_handshake_timeout=int(HEADERS_SECONDS)
        )
        transport.set_protocol(tls)
        tls.connection_made(transport)


def limited_protocols(
    limits: ConnectionLimits, tls: ssl.SSLContext | None
) -> tuple[type[asyncio.Protocol], type[asyncio.Protocol]]:
    """The classes for connections and for WebSockets of one server, which are made by uvicorn and share its limits."""
    http = type("Http", (LimitedHttp,), {"limits": limits})
    socket = type("WebSocket", (LimitedWebSocket,), {"limits": limits})
    if tls is None:
        return http, socket
    return type("Https", (TlsHandshake,), {"limits": limits, "context": tls, "within": http}), socket
