"""How many connections there may be, of one address and in all; how long one may keep us waiting; what it may hold meanwhile.

A connection waits while bytes of a request are missing. Where all places are taken, the one that has waited longest
gives its place to the next: whoever only waits cannot lock out who asks. The protocols that tell us of connections are
http_protocol.py's; what a request may hold is http/request_bodies.py's.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

HEADERS_SECONDS = (
    10.0  # for a request's headers, from when the connection was free for them; for a TLS handshake too
)
STUCK_SECONDS = 30.0  # for a reader to take STUCK_STEP of what we have for it
STUCK_STEP = 4096
SWEEP_SECONDS = 1.0
# Of half-sent requests, and of answers that nobody takes. Beyond it the oldest go.
HALF_SENT_BYTES = 16 << 20
UNREAD_BYTES = 32 << 20


class ConnectionPlace:
    """One connection, as far as the limits care."""

    __slots__ = (
        "address",
        "half_sent",
        "has_begun",
        "has_headers",
        "is_gone",
        "since",
        "transport",
        "unread",
        "unread_since",
    )

    def __init__(self, transport: asyncio.Transport, address: _Address) -> None:
        self.transport = transport
        self.address = address
        self.is_gone = False
        self.since = 0.0  # since when it waits
        self.has_begun = False  # something of the next request has come
        self.has_headers = False  # all of its headers have
        self.half_sent = 0  # bytes of it that are held
        self.unread = 0  # bytes that wait to be sent, when that was looked at last
        self.unread_since = 0.0


@dataclass(slots=True, eq=False)
class _Address:
    """The connections of one address."""

    name: str
    limit: int
    count: int = 0
    waiting: dict[ConnectionPlace, None] = field(default_factory=dict)  # longest first


class ConnectionLimits:
    """The connections of one server. `total` and `each` are limits; a trusted proxy's are counted in `total` alone."""

    def __init__(self, *, total: int, each: int, trusted_proxies: Collection[str] = ()) -> None:
        self._total = total
        self._each = min(each, total)
        self._is_trusted = trusting(trusted_proxies)
        self._addresses: dict[str, _Address] = {}
        self._count = 0
        self._half_sent = 0
        self._stuck: dict[ConnectionPlace, None] = {}  # longest first
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, transport: asyncio.Transport) -> ConnectionPlace | None:
        """A place for a new connection; None where every place is taken by a request that is being answered."""
        address = self._address(_peer(transport))
        if address.count >= address.limit and not self._evict(address):
            return None
        if self._count >= self._total and not self._evict(self._most_crowded()):
            return None
        place = ConnectionPlace(transport, address)
        self._addresses[address.name] = address
        address.count += 1
        self._count += 1
        self.wait(place)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        return place

    def leave(self, place: ConnectionPlace) -> None:
        """The connection has ended. Twice is no error."""
        if place.is_gone:
            return
        self.served(place)
        self._stuck.pop(place, None)
        place.is_gone = True
        place.address.count -= 1
        self._count -= 1
        if not place.address.count:
            del self._addresses[place.address.name]

    def wait(self, place: ConnectionPlace) -> None:
        """The connection is free for a request."""
        if place.is_gone:
            return
        if place.half_sent:
            self.hold(place, 0)
        place.has_begun = place.has_headers = False
        place.since = asyncio.get_running_loop().time()
        waiting = place.address.waiting
        waiting.pop(place, None)
        waiting[place] = None

    def served(self, place: ConnectionPlace) -> None:
        """All of a request has come."""
        place.address.waiting.pop(place, None)
        if place.half_sent:
            self.hold(place, 0)

    def hold(self, place: ConnectionPlace, size: int) -> None:
        """So many bytes of a half-sent request are held for this connection."""
        if place.is_gone:
            return
        self._half_sent += size - place.half_sent
        place.half_sent = size
        while self._half_sent > HALF_SENT_BYTES:
            holding = [one for each in self._addresses.values() for one in each.waiting if one.half_sent]
            if not holding:
                return
            self._drop(min(holding, key=lambda one: one.since))

    def stuck(self, place: ConnectionPlace) -> None:
        """The other side does not take what we send."""
        if place.is_gone:
            return
        place.unread = place.transport.get_write_buffer_size()
        place.unread_since = asyncio.get_running_loop().time()
        self._stuck[place] = None

    def flows(self, place: ConnectionPlace) -> None:
        """It does again."""
        self._stuck.pop(place, None)

    # -- who goes

    def _sweep(self) -> None:
        """Close what took too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for address in list(self._addresses.values()):
            for place in list(address.waiting):
                if now - place.since < HEADERS_SECONDS:
                    break
                if not place.has_headers:
                    self._time_out(place)
        unread = 0
        for place in reversed(list(self._stuck)):  # the newest may stay
            size = place.transport.get_write_buffer_size()
            if place.unread - size >= STUCK_STEP:
                place.unread, place.unread_since = size, now
            unread += size
            if now - place.unread_since >= STUCK_SECONDS or unread > UNREAD_BYTES:
                self._drop(place)
        self._timer = loop.call_later(SWEEP_SECONDS, self._sweep) if self._count else None

    def _time_out(self, place: ConnectionPlace) -> None:
        if (
            place.transport.is_closing() or not place.has_begun
        ):  # who was told, or has nothing to be told about
            self._drop(place)
            return
        place.transport.write(TOO_SLOW)
        place.transport.close()
        self.wait(place)  # for what is left to be sent: as long once more

    def _evict(self, address: _Address) -> bool:
        place = next(iter(address.waiting), None)
        if place is not None:
            self._drop(place)
        return place is not None

    def _most_crowded(self) -> _Address:
        return max(self._addresses.values(), key=lambda one: len(one.waiting))

    def _drop(self, place: ConnectionPlace) -> None:
        self.leave(place)
        place.transport.abort()

    def _address(self, host: str) -> _Address:
        is_trusted = not host or self._is_trusted(host)
        name = host if is_trusted else _group(host)
        return self._addresses.get(name) or _Address(name, self._total if is_trusted else self._each)


def answer_of(status: str, code: str, message: str, hint: str, *headers: str) -> bytes:
    """An error in the API's shape, for a connection that is closed after it."""
    body = f'{{"code":"{code}","reason":"","message":"{message}","hint":"{hint}","fields":{{}}}}'
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "connection: close", *headers, "", body]).encode()


TOO_SLOW = answer_of(
    "408 Request Timeout", "too_slow", "The request's headers took too long.", "Send it again."
)
BUSY = answer_of(
    "503 Service Unavailable",
    "too_many",
    "The server has too many connections.",
    "Try again in 1 s.",
    "retry-after: 1",
)


def trusting(proxies: Collection[str]) -> Callable[[str], bool]:
    """Whether an address is one of these, which may be networks; `*` is all."""
    networks, names = [], set()
    for each in proxies:
        try:
            networks.append(ipaddress.ip_network(each, strict=False))
        except ValueError:
            names.add(each)

    def is_trusted(address: str) -> bool:
        if "*" in names or address in names:
            return True
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(ip.version == network.version and ip in network for network in networks)

    return is_trusted


def _peer(transport: asyncio.Transport) -> str:
    """Whose connection it is. Empty for a Unix socket: who may open that is its file's matter."""
    name = transport.get_extra_info("peername")
    host = str(name[0]).partition("%")[0] if isinstance(name, tuple) and name else ""
    return host.removeprefix("::ffff:") if "." in host else host


def _group(host: str) -> str:
    """Addresses that are one customer's: of IPv6 a network, where everybody has as many as they like."""
    if ":" not in host:
        return host
    return str(ipaddress.ip_network((host, 64), strict=False))
