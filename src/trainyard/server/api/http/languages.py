"""Which language the reader of an answer wants: that of the header Accept-Language, else English."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import Scope

from trainyard.messages.text import accepted_language


def language_of(connection: HTTPConnection) -> str:
    """The language of a request's answer."""
    return accepted_language(connection.headers.get("accept-language", ""))


def language_of_scope(scope: Scope) -> str:
    """The same, before there is a request."""
    found = (value for name, value in scope.get("headers", ()) if name == b"accept-language")
    return accepted_language(next(found, b"").decode("latin-1"))
