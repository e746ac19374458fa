"""Requests that no honest client sends, from a seed: for every operation of both doors, and frames for the terminal.

They are sent to the ASGI application itself, so that bytes arrive which HTTP libraries would not let out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_from_bytes

from signed_requests import VERSION, signed
from trainyard.server.api.dlc.routes import ROUTES

ANSWER_SECONDS = 60.0
# Texts inside JSON, as they are written there: half letters, NULs, odd times, numbers, ways out, long ones.
TEXTS = (
    r"\ud800", r"x\udfffy", r"\ud83d", r"\udc00\ud800", r"\u0000", r"a\u0000b", r"\\u0000", r"\\ud800", r"\ud83d\ude00", "中文", "é",
    "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31", "-1", "1e400",
    "NaN", "inf", "²", "٣", "٣٣٣٣", "../../etc/passwd", "..", ".", "/", "%00", "%s%s%n", "$(id)", "'; DROP TABLE users; --", " ",
    "\u2028", r"\u202e", r"\u001b[31m", r"\r\nSet-Cookie: a=b", "x" * 300, "x" * 70_000, "*/0 * * * *", "0 0 31 2 *",
    "http://[", "https://a:b@c:99999/", "default", "admin", "local", "true", "Succeeded", "[", "(?:a+)+$", "60s", "1h", "-5m",
)  # fmt: skip
VALUES = (
    "null", "true", "0", "-1", "1", "1e400", "-1e400", "1e-400", "NaN", "Infinity", "-Infinity", "9" * 400, "9" * 5000, "1.5",
    "9223372036854775808", "-9223372036854775809", "[]", "{}", "[[]]", '{"":""}', '{"a":{"b":{"c":1}}}', "[1,[2,[3]]]",
    '{"cpu":1e400}', '{"cpu":NaN}', '{"\\ud800":1}', '{"a":1,"a":2}', '["\\ud800"]', '[{"name":"\\ud800"}]', '[{"cpu":NaN}]',
    "[" * 60 + "]" * 60, '{"a":' * 200 + "1" + "}" * 200, '[{"PodCount":1}]',
)  # fmt: skip
BODIES = (
    b"", b"null", b"[]", b'"x"', b"0", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"[" * 5000 + b"]" * 5000, b"\xff\xfe{\x00}\x00",
    b"\xef\xbb\xbf{}", b'{"name":"\xed\xa0\x80"}', b'{"name":"\xff"}', b"\x00", b'{"a":1,"a":2}', b"{'a':1}", b"{}{}", b"NaN",
    b"9" * 5000, b"a=b&c=d", b"--x\r\n\r\n--x--", b'{"name":"x",}', b'{"' + b"k" * 100_000 + b'":1}', b"\n" * 1000,
)  # fmt: skip
PARTS = (
    b"x", b"\xed\xa0\x80", b"\xff", b"..", b".", b"%", b" ", b"a/b", b"a\nb", b"x" * 64, b"x" * 5000, "中文".encode(), b"\xc2\xb2",
    b"0001-01-01T00:00:00Z", b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59-14:00", b"9999-12-31T23:59:59Z", b"9" * 400,
    b"-1", b"0", b"1", b"nan", b"inf", b"-inf", b"1e400", b"1e308", b"true", b"(?:a+)+$", b"[", b'{"a":1}', b"[" * 30_000, b"{}",
    b"\x00", b"me", b"default", b"admin", b"\xd9\xa3", b"start", b"1-99999999999999999999", b"00", b"1s", b"99999999999d", b"", b"*",
)  # fmt: skip
HEADERS = (
    b"if-match", b"if-none-match", b"last-event-id", b"idempotency-key", b"x-request-id", b"cookie", b"content-type", b"range",
    b"accept", b"x-csrf-token", b"x-forwarded-for", b"host", b"origin", b"content-length", b"accept-encoding", b"authorization",
    b"x-acs-version", b"x-acs-date", b"x-acs-action", b"transfer-encoding", b"user-agent", b"expect",
)  # fmt: skip
HEADER_VALUES = (
    b"", b"\xe9", b"\xff\xfe", b"x" * 9000, b"\x00", b'"1"', b'W/"2"', b'"' + b"9" * 30 + b'"', b"*", b"9" * 400, b"-1", b"\xc2\xb2",
    b"trainyard_session=\xe9; trainyard_csrf=\xff", b"a=b; a=c; =; ;", b"text/plain", b"application/json; charset=utf-16",
    b"multipart/form-data; boundary=x", b"bytes=0-,5-", b"Bearer", b"Bearer \xe9", b"Basic eA==", b"Bearer ty_" + b"\xe9" * 43,
    b"ACS3-HMAC-SHA256", b"ACS3-HMAC-SHA256 Credential=\xe9,SignedHeaders=;;,Signature=\xff", b"0001-01-01T00:00:00Z", b"[::1",
)  # fmt: skip
DLC_KEYS = (
    "DisplayName", "JobType", "JobSpecs", "UserCommand", "WorkspaceId", "Priority", "Envs", "Settings", "DataSources", "CodeSource",
    "ThirdpartyLibs", "ThirdpartyLibDir", "ElasticSpec", "JobMaxRunningTimeMinutes", "SuccessPolicy", "ResourceId", "WorkingDir",
)  # fmt: skip
DLC_QUERY = (
    "Status", "PageSize", "PageNumber", "Tags", "WorkspaceId", "Username", "ShowOwn", "JobType", "DisplayName", "JobId", "StartTime",
    "EndTime", "Order", "PodUid", "MaxLines", "Cursor", "MetricType", "TimeStep", "AcceleratorType", "MaxEventsNum",
)  # fmt: skip
METRICS = (b"GpuCoreUsage", b"CpuCoreUsage")
TIMES = (
    b"0001-01-01T00:00:00Z", b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59Z", b"9999-12-31T23:59:59-14:00", b"0001-01-01",
    b"2026-02-30T00:00:00Z", b"1969-12-31T23:59:59Z", b"2026-11-18T24:00:00Z", b"-62135596800", b"1e400", b"nan",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request."""

    method: str
    path: bytes  # as it is on the wire
    query: bytes = b""
    body: bytes = b""
    headers: Sequence[tuple[bytes, bytes]] = ()

    def __str__(self) -> str:
        """Short enough for a report."""
        return f"{self.method} {self.path[:120]!r} ?{self.query[:200]!r} {self.body[:300]!r} {[(n, v[:60]) for n, v in self.headers]}"


@dataclass(slots=True)
class Maker:
    """Makes requests from a seed. `known` are values of paths that there are; `key` signs at the compatible door."""

    seed: int
    description: Mapping[str, Any]
    known: Mapping[str, str]
    key: tuple[str, str]
    token: str = ""
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def requests(self, count: int) -> Iterator[Hostile]:
        """Of every operation in turn, so many in all."""
        rest = [
            (method.upper(), path, said)
            for path, each in self.description["paths"].items()
            for method, said in each.items()
        ]
        for number in range(count):
            if number % 4 == 3:
                yield self._of_dlc(*ROUTES[number // 4 % len(ROUTES)][:2])
            else:
                yield self._of_rest(*rest[(number - number // 4) % len(rest)])

    def frame(self) -> dict[str, Any]:
        """A frame for the terminal."""
        choice = self.random.randrange(6)
        if choice == 0:
            return {"bytes": self.random.choice(BODIES)[:2000]}
        if choice == 1:
            return {"text": self.random.choice(BODIES).decode(errors="replace")}
        keys = self.random.sample(["command", "columns", "rows", "terminal", "eof", "x"], 3)
        return {"text": "{" + ",".join(f'"{key}":{self._value()}' for key in keys) + "}"}

    # -- inside

    def _of_rest(self, method: str, path: str, said: Mapping[str, Any]) -> Hostile:
        places, query = {}, []
        for one in said.get("parameters", ()):
            if one["in"] == "path":
                places[one["name"]] = self._place(one["name"])
            elif one["in"] == "query" and self.random.random() < 0.5:
                query.append(self._pair(one["name"]))
        raw = path
        for name, value in places.items():
            raw = raw.replace("{" + name + "}", value)
        content = said.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        body = self._body(list(self._properties(schema))) if content else b""
        headers = [(b"authorization", f"Bearer {self.token}".encode())]
        if self.random.random() < 0.1:  # a browser
            headers = [
                (b"cookie", f"trainyard_session={self.token}".encode()),
                (b"x-csrf-token", self.random.choice(HEADER_VALUES)),
            ]
        return self._finished(method, raw, query, body, headers)

    def _of_dlc(self, method: str, path: str) -> Hostile:
        raw = path.replace("{job}", self._place("job_id")).replace("{pod}", self._place("pod"))
        names = self.random.sample(DLC_QUERY, 3)
        query = [self._pair(name) for name in names]
        if path.endswith("/metrics"):
            query.append((b"MetricType", self.random.choice(METRICS)))
        body = self._body(DLC_KEYS) if method != "GET" else b""
        headers = [(b"x-acs-version", VERSION.encode())]
        if self.random.random() < 0.2:
            date = self.random.choice(["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "x", ""])
            made = signed(*self.key, method, raw, body=body, x_acs_date=date)
            headers = [(name.encode(), value.encode()) for name, value in made.items()]
            return self._finished(method, raw, [], body, headers)
        headers.append((b"authorization", f"Bearer {self.token}".encode()))
        return self._finished(method, raw, query, body, headers)

    def _finished(
        self,
        method: str,
        raw: str,
        query: list[tuple[bytes, bytes]],
        body: bytes,
        headers: list[tuple[bytes, bytes]],
    ) -> Hostile:
        written = b"&".join(name + b"=" + quote_from_bytes(value).encode() for name, value in query)
        if body:
            headers = [*headers, (b"content-type", b"application/json")]
        for _ in range(self.random.choice((0, 0, 1, 2))):
            headers = [*headers, (self.random.choice(HEADERS), self.random.choice(HEADER_VALUES))]
        return Hostile(method, raw.encode(), written, body, headers)

    def _pair(self, name: str) -> tuple[bytes, bytes]:
        times = name.lower() in {"since", "until", "starttime", "endtime", "day", "month", "from", "to", "at"}
        return name.encode(), self.random.choice(TIMES if times and self.random.random() < 0.8 else PARTS)

    def _place(self, name: str) -> str:
        if name in self.known and self.random.random() < 0.6:
            return self.known[name]
        return quote_from_bytes(self.random.choice(PARTS), safe=b"") or "x"

    def _properties(self, schema: Mapping[str, Any]) -> Iterator[str]:
        if "$ref" in schema:
            found = self.description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            yield from found.get("properties", {})

    def _body(self, keys: Sequence[str]) -> bytes:
        if self.random.random() < 0.15 or not keys:
            return self.random.choice(BODIES)
        chosen = [key for key in keys if self.random.random() < 0.5] or list(keys[:1])
        pairs = [f'"{key}":{self._plausible(key)}' for key in chosen]
        if self.random.random() < 0.1:
            pairs.append(pairs[0])
        return ("{" + ",".join(pairs) + "}").encode()

    def _plausible(self, key: str) -> str:
        """Half of them such that the request comes further than its first check."""
        plain = {
            "name": '"n1"', "command": '"true"', "job": '{"name":"j","command":"true"}', "roles": '[{"cpu":1}]', "workspace": '"default"',
            "jobs": '[{"name":"j","command":"true"}]', "sweep": '{"x":[1,2]}', "cron": '"0 3 * * *"', "quota": '{"nominal":{"cpu":1}}',
            "types": '["ecs.g6.large"]', "most": "1", "source": '"/srv/x"', "target": '"/x"', "amount": "5", "priority": "3",
            "desired": '"pause"', "role": '"member"', "state": '"refused"', "JobSpecs": '[{"PodCount":1}]', "UserCommand": '"true"',
            "old": '"x"', "new": '"a quite long one"', "username": '"nobody"', "password": '"a quite long one"', "subject": '"i s"',
            "url": '"https://code.test/x.git"', "host": '"r.test"', "value": '"v"',
        }  # fmt: skip
        return plain[key] if key in plain and self.random.random() < 0.5 else self._value()

    def _value(self) -> str:
        if self.random.random() < 0.5:
            return '"' + self.random.choice(TEXTS) + '"'
        return self.random.choice(VALUES)


async def send(app: Any, request: Hostile) -> int:
    """Send one; the status of its answer. Who has sent it goes away once it has come."""
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": request.method,
        "scheme": "http", "path": _path(request.path), "raw_path": request.path, "query_string": request.query, "root_path": "",
        "headers": [(b"host", b"platform.test"), *request.headers], "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    inbox = [{"type": "http.request", "body": request.body, "more_body": False}]
    begun: list[int] = []
    answered = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if inbox:
            return inbox.pop()
        await answered.wait()
        return {"type": "http.disconnect"}

    async def take(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            begun.append(message["status"])
        answered.set()

    async with asyncio.timeout(ANSWER_SECONDS):
        await app(scope, receive, take)
    return begun[0] if begun else 500


async def send_frames(app: Any, path: bytes, token: str, frames: Sequence[Mapping[str, Any]]) -> int:
    """Open a terminal and send frames; the status of a refusal, or the code of its end."""
    scope = {
        "type": "websocket", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "ws",
        "path": _path(path), "raw_path": path, "query_string": b"", "root_path": "", "subprotocols": [],
        "headers": [(b"host", b"platform.test"), (b"authorization", f"Bearer {token}".encode())],
        "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 80), "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    inbox: list[dict[str, Any]] = [
        {"type": "websocket.connect"},
        *({"type": "websocket.receive", **frame} for frame in frames),
        {"type": "websocket.disconnect", "code": 1005},
    ]
    told: list[int] = []

    async def receive() -> dict[str, Any]:
        if not inbox:
            await asyncio.sleep(ANSWER_SECONDS)
        return inbox.pop(0)

    async def take(message: Mapping[str, Any]) -> None:
        if message["type"] == "websocket.http.response.start":
            told.append(message["status"])
        elif message["type"] == "websocket.close":
            told.append(message.get("code", 1000))

    async with asyncio.timeout(ANSWER_SECONDS):
        await app(scope, receive, take)
    return told[0] if told else 1000


def _path(raw: bytes) -> str:
    """As the server reads it: with what is escaped decoded."""
    from urllib.parse import unquote

    return unquote(raw.decode("ascii"))
