"""Every error in one shape: {"code", "reason", "message", "hint", "fields"}, with the status that goes with its class.

The errors themselves are lib/errors.py's and auth's; nothing of the server's insides is ever told.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from trainyard.lib import errors
from trainyard.lib.errors import Error, InvalidError
from trainyard.messages.catalogue import CATALOGUE, error_in
from trainyard.messages.text import EN
from trainyard.server.api.http.languages import language_of

log = logging.getLogger("trainyard.server.api")

JSON = "application/json"


class PreconditionError(InvalidError):
    """A header that the request needs is missing or is wrong."""

    code = "precondition"


# The nearest class of an error's ancestors decides.
STATUSES: dict[type[Error], int] = {
    errors.InvalidError: 422,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.DeniedError: 403,
    errors.UnsupportedError: 405,
    errors.CapacityError: 503,
    errors.QuotaError: 409,
    errors.UnreachableError: 502,
    errors.DiskFullError: 507,
    errors.StillRunningError: 504,
}
# Codes of what HTTP itself refuses.
HTTP_CODES = {
    400: "invalid",
    401: "unauthenticated",
    403: "denied",
    404: "not_found",
    405: "unsupported",
    408: "too_slow",
    413: "too_large",
    415: "invalid",
    429: "too_many",
}
HTTP_TEXTS = {404: "nothing_here", 405: "wrong_method"}


def status_of(error: Error) -> int:
    """The HTTP status of an error."""
    if own := getattr(error, "http_status", None):
        return int(own)
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def problem(
    status: int,
    code: str,
    message: str,
    *,
    hint: str = "",
    fields: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    reason: str = "",
) -> Response:
    """An error as an answer."""
    body = body_of(code, message, hint, fields=fields, reason=reason)
    return Response(to_json(body), status, headers=dict(headers or {}), media_type=JSON)


def body_of(
    code: str, message: str, hint: str, *, fields: Mapping[str, str] | None = None, reason: str = ""
) -> dict[str, Any]:
    """What an error says."""
    return {"code": code, "reason": reason, "message": message, "hint": hint, "fields": dict(fields or {})}


def problem_of(error: Error, language: str = EN) -> Response:
    """One of our own errors as an answer."""
    status = status_of(error)
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="trainyard"'
    if (wait := getattr(error, "retry_after", None)) is not None:
        headers["Retry-After"] = str(max(1, math.ceil(wait)))
    if status == 500:
        log.error("an error without a status reached the API: %s", type(error).__name__)
    fields = getattr(error, "fields", None)
    message, hint = error_in(error, language)
    return problem(
        status, error.code, message, hint=hint, fields=fields, headers=headers, reason=error.reason
    )


def internal(request_id: str) -> Response:
    """An error that nobody foresaw. What it was is in the server's log under the same id."""
    return problem(
        500,
        "internal",
        f"The server failed to answer request {request_id}.",
        hint="Try again; tell the administrator this id if it stays.",
    )


def install(app: FastAPI) -> None:
    """Have the application answer errors in our shape."""

    async def ours(request: Request, error: Exception) -> Response:
        return problem_of(error, language_of(request)) if isinstance(error, Error) else internal("")

    async def refused(request: Request, error: Exception) -> Response:
        return _refusal(error, language_of(request)) if isinstance(error, HTTPException) else internal("")

    async def invalid(_request: Request, error: Exception) -> Response:
        return _invalid(error.errors()) if isinstance(error, RequestValidationError) else internal("")

    app.add_exception_handler(Error, ours)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)


def _refusal(error: HTTPException, language: str) -> Response:
    status = 422 if error.status_code in {400, 415} else error.status_code
    known = HTTPStatus(error.status_code).phrase
    detail = error.detail if error.detail and error.detail != known else ""
    code = HTTP_TEXTS.get(error.status_code, "")
    text = CATALOGUE.get(code)
    message = (text.sentence(language, {}) if text is not None else None) or detail or known
    return problem(
        status,
        HTTP_CODES.get(error.status_code, "error"),
        message if text is not None else f"{message.rstrip('.')}.",
        hint=(text.hint(language, {}) or "") if text is not None else "",
        headers=error.headers,
        reason=code,
    )


def _invalid(found: Sequence[Mapping[str, Any]]) -> Response:
    fields: dict[str, str] = {}
    for each in found:
        words = [str(word) for word in each.get("loc", ())]
        place = ".".join(words[1:] if words[:1] in (["body"], ["query"], ["path"], ["header"]) else words)
        fields.setdefault(place or "body", str(each.get("msg", "is wrong")))
    first, text = next(iter(fields.items()), ("body", "is wrong"))
    more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
    return problem(
        422,
        "invalid",
        f"{first}: {text}{more}.",
        hint="Correct the fields that are named, and send it again.",
        fields=fields,
    )
