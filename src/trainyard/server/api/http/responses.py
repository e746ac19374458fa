"""How answers are made and described: bytes that were rendered once, pages with a cursor, ETags.

FastAPI's own validation of answers is left out: what is shown is built by views.py, and a test compares it with the
shapes that OpenAPI is told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from trainyard.client.schemas import Problem
from trainyard.server.api.http.errors import JSON, PreconditionError
from trainyard.server.api.http.response_cache import CachedResponse
from trainyard.server.api.http.routing import PageOf

LIMIT = 100
LARGEST_PAGE = 1000
STRICT = {"extra": "forbid"}  # a misspelt key in a body is an error


def answer(value: object, status: int = 200, *, version: int | None = None, location: str = "") -> Response:
    """Plain data as JSON; with a version, as its ETag."""
    headers = {}
    if version is not None:
        headers["ETag"] = f'"{version}"'
    if location:
        headers["Location"] = location
    return Response(to_json(value), status, headers=headers, media_type=JSON)


def nothing() -> Response:
    """Done, and there is nothing to say."""
    return Response(status_code=204)


def page(items: Sequence[object], following: str | int | None = None) -> dict[str, Any]:
    """A page; `next` is the cursor of the one after it."""
    return {"items": items, "next": None if following is None else str(following)}


def rendered(items: Sequence[object], following: str | int | None = None) -> tuple[bytes, str]:
    """A page as bytes, with an ETag of its content."""
    body = to_json(page(items, following))
    return body, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def kept(request: Request, found: CachedResponse) -> Response:
    """Bytes that were rendered before; nothing but 304 for a caller who has them already."""
    headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=JSON)


def if_match(request: Request) -> int | None:
    """The version that the caller has read, from If-Match; None: any."""
    text = request.headers.get("if-match", "").strip()
    if text in {"", "*"}:
        return None
    bare = text.removeprefix("W/").strip('"')
    if not (bare.isascii() and bare.isdigit() and len(bare) < 10):
        raise PreconditionError(
            f"If-Match: {text[:40]!r} is no version.", hint="Send the ETag as it was answered."
        )
    return int(bare)


def page_of(shape: type) -> PageOf:
    """The shape of a page of these, for OpenAPI."""
    return PageOf(shape)


def described(shape: Any = None, status: int = 200, text: str = "", media: str = "") -> dict[int | str, Any]:
    """What a route answers with, for OpenAPI; all errors have one shape."""
    good: dict[str, Any] = {"description": text or "Done."}
    if shape is not None:
        good["model"] = shape
    if media:
        good["content"] = {media: {"schema": {"type": "string"}}}
    return {status: good, "4XX": {"model": Problem, "description": "The request was refused."}, "5XX": FAILED}


FAILED = {"model": Problem, "description": "The server could not answer."}
