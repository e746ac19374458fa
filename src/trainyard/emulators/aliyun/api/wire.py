"""HTTP/1.1 on a loopback port: reads requests, writes replies, and can misbehave on the raw socket when it is told to.

Knows nothing of actions: what to answer is decided by the `respond` that it is given. A server of our own, since faults
(silence, a reset, half a body) need the socket that libraries hide, and since a light installation has no library.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import parse_qsl

from trainyard.lib.errors import ConflictError, DeniedError

HEAD_LIMIT = 256 * 1024  # the vendor's client puts 44 kB of user data into the address
BODY_LIMIT = 8 * 1024 * 1024
IDLE_SECONDS = 120  # how long a connection may stay open with nothing to say
JSON = "application/json;charset=utf-8"
HTML = "text/html"

Pairs: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""
    peer: str = ""
    """The address it came from."""
    local: str = ""
    """The address it came to."""

    def query_pairs(self) -> Pairs:
        """The decoded parameters of the address."""
        return tuple(parse_qsl(self.query, keep_blank_values=True))

    def form_pairs(self) -> Pairs:
        """The decoded parameters of a form body; none for any other body."""
        if not self.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            return ()
        return tuple(parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    keep_bytes: int | None = None
    """Send only so many bytes of the body, then close the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """No answer: the connection stays open so long, or until the client gives up."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """No answer: the connection is reset at once."""


Outcome: TypeAlias = Reply | Silence | Cut
Respond: TypeAlias = Callable[[Request], Awaitable[Outcome]]


class BadRequest(Exception):  # noqa: N818  # HTTP's word
    """What came is no HTTP that we take; answered with a page and the end of the connection."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class Server:
    """Listens on one address and port until it is closed."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.address = ""
        self.port = 0

    async def open(self, address: str, port: int) -> None:
        """Begin to listen; port 0 takes any that is free. ConflictError where it is taken."""
        try:
            self._server = await asyncio.start_server(self._connected, address, port, limit=HEAD_LIMIT)
        except PermissionError as error:
            raise DeniedError(
                f"port {port} may not be opened by this user", hint="Use a port above 1023, or --port 0."
            ) from error
        except OSError as error:
            raise ConflictError(
                f"{address}:{port} cannot be opened: {error.strerror}",
                hint="Use --port 0 for one that is free.",
            ) from error
        self.address, self.port = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (OSError, EOFError, TimeoutError):  # the client has gone, or has had nothing to say
            writer.transport.abort()
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False where it was the last of its connection."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                request = await read_request(reader, writer)
        except BadRequest as bad:
            page = _page(bad.status.value, bad.status.phrase)
            await _send(writer, page, last=True)
            return False
        if request is None:
            return False
        outcome = await self._respond(request)
        if isinstance(outcome, Silence):
            await _keep_silent(reader, outcome.seconds)
            return False
        if isinstance(outcome, Cut):
            _reset(writer)
            return False
        last = request.headers.get("connection", "").lower() == "close" or outcome.keep_bytes is not None
        await _send(writer, outcome, last=last)
        return not last


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request of a connection; None where the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG) from error
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(HTTPStatus.BAD_REQUEST)
    headers: dict[str, str] = {}
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest(HTTPStatus.BAD_REQUEST)
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    path, _, query = words[1].partition("?")
    peer, local = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
    return Request(
        method=words[0],
        path=path,
        query=query,
        headers=headers,
        body=await _read_body(reader, headers),
        peer=peer[0] if peer else "",
        local=local[0] if local else "",
    )


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader)
    length = headers.get("content-length", "0")
    if not length.isdigit():
        raise BadRequest(HTTPStatus.BAD_REQUEST)
    if int(length) > BODY_LIMIT:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return await reader.readexactly(int(length))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        try:
            size = int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16)
        except ValueError as error:
            raise BadRequest(HTTPStatus.BAD_REQUEST) from error
        if size < 0 or len(body) + size > BODY_LIMIT:
            raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        body += (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            return body


async def _send(writer: asyncio.StreamWriter, reply: Reply, *, last: bool) -> None:
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [
        f"HTTP/1.1 {reply.status} {phrase}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        f"Connection: {'close' if last else 'keep-alive'}",
        *(f"{name}: {value}" for name, value in reply.headers.items()),
    ]
    # One write: head and body in two would wait for the client's delayed acknowledgement, 40 ms.
    writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + reply.body[: reply.keep_bytes])
    await writer.drain()


async def _keep_silent(reader: asyncio.StreamReader, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(65536):
                pass
    except TimeoutError:
        pass  # the silence is over: the connection closes without an answer


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a load balancer that dies does."""
    transport_socket = writer.get_extra_info("socket")
    if transport_socket is not None:
        transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _page(status: int, phrase: str) -> Reply:
    return Reply(status=status, body=html_page(status, phrase), content_type=HTML)


def html_page(status: int, phrase: str) -> bytes:
    """The page of a proxy that has nothing better to say."""
    title = f"{status} {phrase}"
    return (
        f"<html>\n<head><title>{title}</title></head>\n<body>\n<center><h1>{title}</h1></center>\n"
        "<hr><center>nginx</center>\n</body>\n</html>\n"
    ).encode()
