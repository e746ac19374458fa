"""The front of the compatible door: which requests are for it, who signed them, and errors in its shape.

What the routes do is routes.py.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module

from starlette.requests import Request
from starlette.responses import Response

from trainyard.lib import acs3
from trainyard.lib.errors import DeniedError, Error, NotFoundError
from trainyard.messages.catalogue import error_in
from trainyard.messages.text import EN
from trainyard.server.api.dlc.job_ids import DLC_PREFIX, to_dlc, to_own
from trainyard.server.api.http.app_state import Parts
from trainyard.server.api.http.errors import status_of
from trainyard.server.api.http.guard_middleware import Asgi, Send
from trainyard.server.api.http.identity import address_of
from trainyard.server.api.http.request_bodies import Receive, Scope
from trainyard.server.auth.actor import Actor, UnauthenticatedError, check_own_password
from trainyard.server.auth.nonces import CLOCK_SECONDS

logger = logging.getLogger(__name__)

# Versions of the vendor's services that are answered here: DLC itself and the workspaces beside it.
VERSIONS = frozenset({b"2020-12-03", b"2021-02-04"})
BODY_LIMIT = 4 << 20
_JOB_PATH = "/api/v1/jobs/"
UNREAD = frozenset({401, 408, 413, 429})  # of requests whose body may not have been read


class DlcDispatch:
    """Sends requests of the vendor's clients to their own application, made for the first of them; all others to ours.

    People who submitted a job by `dlc` know its id as `dlc…`, so our own routes find it by that id, too.
    """

    def __init__(self, ours: Asgi, parts: Parts) -> None:
        self._ours = ours
        self._parts = parts

    @cached_property
    def _theirs(self) -> Asgi:
        app: Asgi = import_module("trainyard.server.api.dlc.routes").create_dlc(self._parts)
        return app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"x-acs-version" and value in VERSIONS:
                    await self._theirs(scope, receive, send)
                    return
        await self._ours(await self._with_own_id(scope), receive, send)

    async def _with_own_id(self, scope: Scope) -> Scope:
        """A request for a job by the id that DLC's clients know, as one for the same job by the platform's id."""
        path = scope.get("path", "")
        if not path.startswith(_JOB_PATH + DLC_PREFIX):
            return scope
        given, slash, rest = path.removeprefix(_JOB_PATH).partition("/")
        own = to_own(given)
        if own == given:
            return scope
        try:
            if await self._parts.services.jobs.is_known(given):
                return scope  # a job of an older version
        except Error:
            return scope  # the route meets the same error, and says so in its shape
        raw = scope.get("raw_path", b"")
        return {
            **scope,
            "path": _JOB_PATH + own + slash + rest,
            "raw_path": raw.replace(given.encode(), own.encode(), 1),
        }


class Identification:
    """Who signed: an access key by ACS3-HMAC-SHA256, or one of our tokens."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def actor(self, request: Request, body: bytes) -> Actor:
        """Who asks; UnauthenticatedError where the signature is not theirs."""
        authorization = request.headers.get("authorization", "")
        scheme, _, rest = authorization.partition(" ")
        if scheme.lower() == "bearer":
            authentication = self._parts.services.authentication
            actor = await authentication.authenticate(rest.strip(), address=address_of(request))
            check_own_password(actor)
            return actor
        if scheme != acs3.SCHEME:
            raise UnauthenticatedError("The request is not signed.", hint="Run `dlc config` first.")
        fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        return await self._signer(request, body, fields)

    async def _signer(self, request: Request, body: bytes, fields: Mapping[str, str]) -> Actor:
        """Who signed. Nothing is counted against a key, or kept for it, before its secret was shown."""
        services = self._parts.services
        key, signature = fields.get("Credential", ""), fields.get("Signature", "")
        signed = [name for name in fields.get("SignedHeaders", "").split(";") if name]
        self._check_coverage(request, signed, body)
        actor, secret = await services.keys.find(key, address=address_of(request))
        # NB: as they are signed, without blanks around: a nonce with a blank behind it is no other nonce.
        headers = {name.lower(): value.strip() for name, value in request.headers.items()}
        path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
        expected = acs3.sign(
            secret, request.method, path, request.query_params.multi_items(), headers, signed, body=body
        )
        if not hmac.compare_digest(expected.encode(), signature.encode()):
            services.authentication.note_stranger(address_of(request))
            raise UnauthenticatedError("The signature does not match.", hint="Check the access key's secret.")
        services.authentication.check_count(actor)
        await self._check_fresh(actor, headers)
        services.authentication.count(
            actor
        )  # only now: who sends again what they have overheard spends nothing of it
        return actor

    async def whose(self, request: Request) -> str:
        """Which user signed these headers. Nothing is counted: whether it was sent before, and the body, `actor` looks at."""
        scheme, _, rest = request.headers.get("authorization", "").partition(" ")
        if scheme != acs3.SCHEME:
            return (await self.actor(request, b"")).user_id
        fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        actor, secret = await self._parts.services.keys.find(
            fields.get("Credential", ""), address=address_of(request)
        )
        expected = acs3.sign(
            secret,
            request.method,
            request.scope.get("raw_path", request.url.path.encode()).decode("latin-1"),
            request.query_params.multi_items(),
            {name.lower(): value for name, value in request.headers.items()},
            [name for name in fields.get("SignedHeaders", "").split(";") if name],
            body_digest=request.headers.get("x-acs-content-sha256", ""),
        )
        if not hmac.compare_digest(expected.encode(), fields.get("Signature", "").encode()):
            raise UnauthenticatedError("The signature does not match.", hint="Check the access key's secret.")
        return actor.user_id

    @staticmethod
    def _check_coverage(request: Request, signed: list[str], body: bytes) -> None:
        """What steers a call must be signed, or anybody on the way could change it."""
        needed = {name for name in request.headers if name.startswith("x-acs-")} | {"host"}
        if needed - set(signed):
            raise UnauthenticatedError(
                "Not all headers that steer the call are signed.", hint="Use a newer client."
            )
        if request.headers.get("x-acs-content-sha256", "") != hashlib.sha256(body).hexdigest():
            raise UnauthenticatedError("The body is not the one that was signed.", hint="Send it again.")

    async def _check_fresh(self, actor: Actor, headers: Mapping[str, str]) -> None:
        try:
            at = datetime.strptime(headers.get("x-acs-date", ""), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError as error:
            raise UnauthenticatedError(
                "The request has no x-acs-date.", hint="Use a newer client."
            ) from error
        now = self._parts.services.clock.now()
        if abs((now - at).total_seconds()) > CLOCK_SECONDS:
            raise UnauthenticatedError("The request's time is not ours.", hint="Set this computer's clock.")
        nonce = headers.get("x-acs-signature-nonce", "")
        if not nonce:
            raise UnauthenticatedError("The request has no nonce.", hint="Use a newer client.")
        if not await self._parts.services.nonces.use(actor.token_id, nonce, at.timestamp()):
            raise UnauthenticatedError("The request was sent before.", hint="Sign it anew.")


def new_request_id() -> str:
    """As their clients print it."""
    return str(uuid.uuid4()).upper()


def answer(data: dict[str, object], *, status: int = 200) -> Response:
    """An answer in their shape; every one has a RequestId."""
    request_id = new_request_id()
    text = json.dumps({"RequestId": request_id, **data}, ensure_ascii=False)
    return Response(text, status, media_type="application/json", headers={"x-acs-request-id": request_id})


def problem(error: Error, language: str = EN) -> Response:
    """One of our errors in their shape."""
    status = status_of(error)
    if status == 422:
        status = 400
    code = {
        401: "InvalidAccessKeyId.NotFound",
        403: "Forbidden",
        404: "NotFound",
        400: "InvalidParameter",
        409: "OperationConflict",
        429: "Throttling.User",
    }.get(status, "InternalError" if status >= 500 else "InvalidParameter")
    if status == 409 and not isinstance(error, DeniedError | NotFoundError):
        status = 400  # as theirs: what a job's state does not allow is a wrong request
    said, hint = error_in(error, language)
    message = to_dlc(said if not hint else f"{said} {hint}")
    response = answer({"Code": code, "Message": message, "HttpStatusCode": status}, status=status)
    if status in UNREAD:
        response.headers["Connection"] = "close"
    return response
