"""A real HTTP server on loopback that answers as it is told, in order, and remembers what it was asked.

For what the emulator of Alibaba Cloud does on purpose only: it checks nothing, and can be told to misbehave.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

REQUEST_ID = "4A6E2F0B-0000-4C1D-9E7A-5D1B6F3A2C77"


@dataclass(frozen=True)
class Reply:
    """What the server does with one request; `cut` closes the connection without an answer."""

    body: str | dict = "{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    wait: threading.Event | None = None  # answer no sooner


@dataclass(frozen=True)
class Asked:
    """What the server was asked."""

    method: str
    path: str
    action: str
    headers: dict[str, str]
    form: dict[str, str]


def error(
    code: str, message: str = "no", status: int = 400, headers: dict[str, str] | None = None, **extra
) -> Reply:
    """The provider's error body."""
    body = {"RequestId": REQUEST_ID, "HostId": "h", "Code": code, "Message": message, **extra}
    return Reply(body, status, headers or {})


class ScriptedApi:
    """Give it replies, or a function from what was asked to a reply; read `asked` afterwards."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.answer: Callable[[Asked], Reply] | None = None
        self.asked: list[Asked] = []
        self.endpoint = ""

    def script(self, *replies: Reply) -> None:
        """What to answer next; after the last one, empty objects."""
        self.replies = list(replies)
        self.asked = []

    def take(self, asked: Asked) -> Reply:
        """The reply to a request."""
        self.asked.append(asked)
        if self.answer:
            return self.answer(asked)
        return self.replies.pop(0) if self.replies else Reply({"RequestId": REQUEST_ID})


def _handler(api: ScriptedApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536  # unbuffered writes cost 40 ms each: delayed acknowledgements
        timeout = 20

        def _serve(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            form = dict(parse_qsl(self.rfile.read(length).decode(), keep_blank_values=True))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = api.take(Asked(self.command, self.path, headers.get("x-acs-action", ""), headers, form))
            if reply.wait is not None:
                reply.wait.wait(10)
            if reply.cut:
                self.close_connection = True
                return
            body = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
            self.send_response(reply.status)
            for name, value in {"content-type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())
            self.wfile.flush()

        do_GET = do_POST = do_PUT = _serve

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # of five, a busy machine turns callers away


@contextmanager
def scripted_api() -> Iterator[ScriptedApi]:
    """A server for the time of a test."""
    api = ScriptedApi()
    server = _Server(("127.0.0.1", 0), _handler(api))
    server.daemon_threads = True
    api.endpoint = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
