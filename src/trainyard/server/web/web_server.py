"""The web server of a platform: where it listens, by TLS or not, and what it takes from whom. What it serves is api/'s."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn

from trainyard.lib.errors import ConflictError, InvalidError
from trainyard.server.settings import ServerSettings
from trainyard.server.web.connection_limits import ConnectionLimits

# After Ctrl-C: how long open requests (followers of logs above all) may take to end.
SHUTDOWN_SECONDS = 2
LARGEST_FRAME = 1 << 20  # of a WebSocket
# Files that are not connections: logs that are written, the database, ways to nodes.
OTHER_FILES = 1024
LEAST_CONNECTIONS = 64


def make_server(app: Any, settings: ServerSettings) -> uvicorn.Server:
    """The server of an application; `serve` is to be called with a listener."""
    from trainyard.server.web.http_protocol import limited_protocols  # noqa: PLC0415  # brings websockets

    limits = ConnectionLimits(
        total=_with_files(settings.connections),
        each=settings.connections_per_address,
        trusted_proxies=settings.trusted_proxies,
    )
    http, web_socket = limited_protocols(limits, _tls(settings))
    config = uvicorn.Config(
        app,
        http=http,
        ws=web_socket,
        ws_max_size=LARGEST_FRAME,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies) or None,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    # Whoever sends nonsense is told so. A line for each in our log would let strangers fill the disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    server = uvicorn.Server(config)
    # Signals are the command's: it sets `stop`.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    return server


@contextlib.contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """The address of the settings, taken."""
    family = socket.AF_INET6 if ":" in settings.listen else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.listen, settings.port))
        except OSError as error:
            raise ConflictError(
                f"Cannot listen on {settings.listen}:{settings.port}: {error.strerror}.",
                hint="Choose another port with --port; 0 takes any.",
            ) from error
        listener.listen(2048)
        yield listener
    finally:
        listener.close()


def url_of(settings: ServerSettings, listener: socket.socket) -> str:
    """The server's address, as people type it."""
    if settings.url:
        return settings.url.rstrip("/")
    scheme = "https" if settings.tls_certificate else "http"
    name = settings.listen if settings.listen not in {"0.0.0.0", "::"} else socket.gethostname()  # noqa: S104
    name = f"[{name}]" if ":" in name else name
    return f"{scheme}://{name}:{listener.getsockname()[1]}"


def _with_files(connections: int) -> int:
    """As many connections as this process may have files for; it asks for more files where it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    wanted = connections + OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    return max(LEAST_CONNECTIONS, min(connections, max(soft - OTHER_FILES, soft // 2)))


def _tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if not settings.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidError(
            f"TLS cannot begin with {settings.tls_certificate} and {settings.tls_key}: {error.strerror or error}.",
            hint="Name a certificate and its key, both in PEM, with tls_certificate and tls_key.",
        ) from error
    return context
