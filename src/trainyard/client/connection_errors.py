"""Errors for a server that does not answer: the reason in one sentence and a hint. connection.py decides on retries."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import httpx2

from trainyard.lib.errors import UnreachableError

OTHER = "name another one with `trainyard login URL`"


def unanswered(url: str, error: Exception) -> UnreachableError:
    """Return the error for a server that does not answer."""
    said, hint = _reason(error)
    return UnreachableError(f"The server at {url} does not answer: {said}.", hint=hint)


def is_hopeless(error: Exception) -> bool:
    """Return whether another try would fail too: the host name does not exist, or its certificate is not trusted."""
    return any(
        isinstance(one, ssl.SSLError)
        or (isinstance(one, socket.gaierror) and one.errno != socket.EAI_AGAIN)
        or isinstance(one, httpx2.UnsupportedProtocol)
        for one in _causes(error)
    )


def _reason(error: Exception) -> tuple[str, str]:
    for one in _causes(error):
        if isinstance(one, ConnectionRefusedError):
            return "nothing listens there", f"Start it (on this computer: `trainyard up`), or {OTHER}."
        if isinstance(one, ssl.SSLCertVerificationError):
            hint = (
                "See that its certificate is made for this name, and that this computer trusts who made it."
            )
            return f"its certificate is not to be trusted ({one.verify_message})", hint
        if isinstance(one, ssl.SSLError):
            return "it does not speak https there", f"See that the address is right, or {OTHER}."
        if isinstance(one, socket.gaierror):
            return "its name is not known here", f"See that the name is right, and a VPN is on, or {OTHER}."
    if isinstance(error, httpx2.ConnectTimeout):
        hint = f"See that a VPN is on and that no firewall is between, or {OTHER}."
        return f"there was no connection within {_limit(error, 'connect')} s", hint
    if isinstance(error, httpx2.TimeoutException):
        said = f"it was silent for {_limit(error, 'read')} s"
        return said, "Try again in a moment; its administrator sees in its log what it does."
    said = str(error).rstrip(".") or type(error).__name__
    return said, f"See that it runs and that the address is right, or {OTHER}."


def _limit(error: httpx2.HTTPError, kind: str) -> str:
    """How long was waited, in seconds."""
    return format(error.request.extensions.get("timeout", {}).get(kind) or 0, "g")


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__
