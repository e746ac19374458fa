"""One connection to a server: requests, retries by idempotence, streams of events, errors as our own classes.

The other modules of this package call it. The schemas are in schemas.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx2

from trainyard import settings
from trainyard.client.connection_errors import is_hopeless, unanswered
from trainyard.client.decode import decode
from trainyard.lib import errors
from trainyard.lib.errors import Error, InvalidError, UnreachableError

T = TypeVar("T")
Query = Mapping[str, Any]

ATTEMPTS = 6
STREAM_ATTEMPTS = 30  # a follower waits for about a minute until the server is back
FIRST_PAUSE = 0.1  # doubled each time: about three seconds in all, longer than a server's restart
LONGEST_PAUSE = 2.0
LONGEST_RETRY_AFTER = 30.0
# A proxy's 502 and 504 may come after the server has done it; every request that is repeated can be done twice.
REPEATED_STATUSES = frozenset({429, 502, 503, 504})
TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0  # a first packet that is lost is sent again after one second, and after three
# Who cannot be connected to is not tried again after so long: neither is what a restart takes.
CONNECTING_SECONDS = 8.0
# The server says something at least every 15 seconds; a stream that is silent for longer is dead.
SILENCE_SECONDS = 45.0
CLOCK_TOLERANCE = timedelta(seconds=5)


class UnauthenticatedError(errors.DeniedError):
    """The server does not know who is asking."""

    code = "unauthenticated"


class InternalError(Error):
    """The server failed."""

    code = "internal"


BY_STATUS: Mapping[int, type[Error]] = {
    401: UnauthenticatedError,
    403: errors.DeniedError,
    404: errors.NotFoundError,
    405: errors.UnsupportedError,
    409: errors.ConflictError,
    422: errors.InvalidError,
    429: errors.CapacityError,
    502: UnreachableError,
    503: errors.CapacityError,
    504: UnreachableError,
}


class _AgainError(Exception):
    """The server could not serve a stream now, and may in a moment."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One message of a stream: its id to go on from, its kind, its data."""

    id: str
    kind: str
    data: str


class Connection:
    """Requests to one server. Safe to use from many tasks at once; one event loop.

    A server that has answered before and is gone is waited for, as long as a restart takes. One that never did is, too,
    unless somebody looks on who would rather know at once: who is not `patient`.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = TIMEOUT_SECONDS,
        transport: httpx2.AsyncBaseTransport | None = None,
        verify: ssl.SSLContext | bool = True,
        patient: bool = True,
    ) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self._waits = patient
        self._ahead = timedelta()
        headers = {"User-Agent": "trainyard-client", "Accept-Language": settings.language()}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._http = httpx2.AsyncClient(
                base_url=f"{self.url}/api/v1",
                headers=headers,
                timeout=httpx2.Timeout(timeout, connect=CONNECT_SECONDS),
                transport=transport,
                verify=verify,
                limits=httpx2.Limits(max_connections=100, max_keepalive_connections=20),
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise errors.InvalidError(
                f"{url!r} is no address of a server.", hint="Write it like https://trainyard.example."
            ) from error

    def now(self) -> datetime:
        """The time by the server's clock, as far as its last answer told: ours may be wrong."""
        return datetime.now(UTC) + self._ahead

    def _note_time(self, answer: httpx2.Response) -> None:
        try:
            told = parsedate_to_datetime(answer.headers["Date"])
        except (KeyError, ValueError):  # nobody has to say it
            return
        ahead = (told if told.tzinfo else told.replace(tzinfo=UTC)) - datetime.now(UTC)
        # Whole seconds, some of them on the way: what is that small is no difference.
        self._ahead = ahead if abs(ahead) > CLOCK_TOLERANCE else timedelta()

    async def aclose(self) -> None:
        """Close it."""
        await self._http.aclose()

    async def get(self, shape: type[T], path: str, query: Query | None = None) -> T:
        """Read one thing."""
        return decode(shape, (await self.request("GET", path, query=query)).json())

    async def send(
        self,
        method: str,
        shape: type[T],
        path: str,
        body: object = None,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Change something, and read what became of it."""
        answer = await self.request(method, path, body=body, query=query, headers=headers)
        return decode(shape, answer.json())

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Send, and send again where that is harmless: reads, wishes, and posts with a key of their own."""
        given = dict(headers or {})
        is_harmless = method != "POST" or "Idempotency-Key" in given
        try:
            request = self._http.build_request(method, path, json=body, params=_query(query), headers=given)
        except ValueError as error:  # JSON has no such number
            raise InvalidError(
                "A number is infinite, or none at all.", hint="Give numbers that can be written with digits."
            ) from error
        began = time.monotonic()
        for attempt in range(ATTEMPTS):
            is_last = attempt == ATTEMPTS - 1
            try:
                answer = await self._http.send(request)
            except httpx2.HTTPError as error:
                if is_last or not self._is_worth_another(error, is_harmless, time.monotonic() - began):
                    raise unanswered(self.url, error) from error
                await asyncio.sleep(_pause(attempt))
                continue
            self._waits = True
            self._note_time(answer)
            is_refused = answer.status_code == 429 or (
                is_harmless and answer.status_code in REPEATED_STATUSES
            )
            if is_refused and not is_last and not _is_verdict(answer):
                await asyncio.sleep(_retry_after(answer) or _pause(attempt))
                continue
            if answer.is_success:
                return answer
            raise error_of(answer)
        raise AssertionError  # pragma: no cover  # the loop returns or raises

    def _is_worth_another(self, error: httpx2.HTTPError, is_harmless: bool, waited: float) -> bool:
        """Whether to send what was not answered again."""
        if not isinstance(error, httpx2.TransportError) or not self._waits or is_hopeless(error):
            return False
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return waited < CONNECTING_SECONDS
        return is_harmless

    async def stream_events(self, path: str, query: Query | None = None) -> AsyncIterator[ServerEvent]:
        """Follow a stream of events. A lost connection is taken up again after the last one that came.

        Ends when the server says `end`; raises what the server refuses with.
        """
        last, failures = "", 0
        while True:
            try:
                async for event in self._stream_once(path, query, last):
                    failures, self._waits = 0, True
                    last = event.id or last
                    if event.kind == "end":
                        return
                    if event.kind != "ping":
                        yield event
            except (httpx2.HTTPError, _AgainError) as error:
                if failures >= STREAM_ATTEMPTS or not self._waits or is_hopeless(error):
                    raise unanswered(self.url, error) from error
            await asyncio.sleep(_pause(failures))
            failures += 1

    async def _stream_once(self, path: str, query: Query | None, last: str) -> AsyncIterator[ServerEvent]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        async with self._http.stream(
            "GET", path, params=_query(query), headers=headers, timeout=timeout
        ) as answer:
            if not answer.is_success:
                await answer.aread()
                if answer.status_code in REPEATED_STATUSES:
                    raise _AgainError(str(error_of(answer)))
                raise error_of(answer)
            async for event in _events(answer):
                if event.kind == "error":
                    error = error_said(loads(event), 500)
                    raise _AgainError(str(error)) if isinstance(error, UnreachableError) else error
                yield event

    async def download(self, path: str, query: Query | None = None) -> AsyncIterator[bytes]:
        """A large answer in pieces."""
        try:
            async with self._http.stream("GET", path, params=_query(query)) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise error_of(answer)
                async for piece in answer.aiter_bytes():
                    yield piece
        except httpx2.HTTPError as error:
            raise unanswered(self.url, error) from error


def error_of(answer: httpx2.Response) -> Error:
    """What the server refused with, as the class that its own code would have raised."""
    try:
        said = answer.json()
        code, message, hint = str(said["code"]), str(said["message"]), str(said.get("hint", ""))
        reason = str(said.get("reason", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        code, reason, hint = "", "", "See that the address is that of a Trainyard server."
        host = answer.request.url.host
        message = f"{host} answered with {answer.status_code} {answer.reason_phrase}."
        if answer.status_code < 500:
            return BY_STATUS.get(answer.status_code, errors.InvalidError)(message, hint=hint)
    return error_said({"code": code, "message": message, "hint": hint, "reason": reason}, answer.status_code)


def error_said(said: Mapping[str, Any], status: int) -> Error:
    """A problem of the API as the class that its own code would have raised."""
    kind = _by_code().get(str(said["code"])) or BY_STATUS.get(status, InternalError)
    error = kind(str(said["message"]), hint=str(said.get("hint", "")), reason=str(said.get("reason", "")))
    if isinstance(error, UnauthenticatedError):
        error.hint = error.hint or "Log in with `trainyard login URL`."
    return error


def _by_code() -> dict[str, type[Error]]:
    kinds: dict[str, type[Error]] = {}
    waiting: list[type[Error]] = [Error]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__ in {errors.__name__, __name__} and kind not in {Error, errors.CommandError}:
            kinds[kind.code] = kind
    return kinds


def _is_verdict(answer: httpx2.Response) -> bool:
    """Whether a 502 or 503 is our server's own word about the request, and would be the same again."""
    if answer.status_code == 429:
        return False
    try:
        code = answer.json().get("code", "")
    except (ValueError, AttributeError):
        return False
    return code in {"capacity", "quota"}


def _query(query: Query | None) -> list[tuple[str, Any]] | None:
    if not query:
        return None
    pairs: list[tuple[str, Any]] = []
    for name, value in query.items():
        if value is None or value == "":
            continue
        pairs += [(name, each) for each in value] if isinstance(value, (list, tuple)) else [(name, value)]
    return pairs


def _pause(attempt: int) -> float:
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempt)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  # a pause, not a secret


def _retry_after(answer: httpx2.Response) -> float:
    text = answer.headers.get("Retry-After", "")
    return min(float(text), LONGEST_RETRY_AFTER) if text.isdigit() else 0.0


async def _lines(answer: httpx2.Response) -> AsyncIterator[str]:
    """Lines that end with a line feed. Not httpx2's: U+2028 inside a text would end a line there."""
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").decode(errors="replace")


async def _events(answer: httpx2.Response) -> AsyncIterator[ServerEvent]:
    """Messages of text/event-stream, as the HTML standard has it; comments are passed on as pings."""
    identity, kind, data = "", "message", list[str]()
    async for line in _lines(answer):
        if not line:
            if data:
                yield ServerEvent(identity, kind, "\n".join(data))
            kind, data = "message", []
        elif line.startswith(":"):
            yield ServerEvent("", "ping", "")
        else:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            elif name == "event":
                kind = value
            elif name == "id" and "\0" not in value:
                identity = value


def loads(event: ServerEvent) -> Any:
    """The JSON of a message."""
    return json.loads(event.data)
