"""Signing in through an identity provider: from its word to an account of ours, and a session."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, DeniedError
from trainyard.lib.ids import new_id
from trainyard.server import validation
from trainyard.server.auth.actor import Actor
from trainyard.server.auth.authentication import Authentication, NewToken
from trainyard.server.auth.oidc import Challenge, Provider, new_challenge
from trainyard.server.records.audit import AuditRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.service_context import Context
from trainyard.server.store import audit, settings
from trainyard.server.store.people import users

SIGN_IN_SECONDS = 600.0
_KEY = "oidc_cookie_key"


@dataclass(frozen=True, slots=True)
class LoginStart:
    """Where to send the browser, and what it has to bring back, in a cookie that scripts cannot read."""

    url: str
    cookie: str
    seconds: float  # so long it is good for


class OidcLogin:
    """`services.oidc_login`; None where no provider is set."""

    def __init__(
        self,
        context: Context,
        authentication: Authentication,
        provider: Provider,
        *,
        name_claim: str,
        creates_users: bool,
    ) -> None:
        self._context = context
        self._authentication = authentication
        self._provider = provider
        self._name_claim = name_claim
        self._creates_users = creates_users

    async def begin(self, redirect_uri: str) -> LoginStart:
        """Begin a sign-in that comes back to `redirect_uri`."""
        challenge = new_challenge()
        url = await self._provider.authorization_url(challenge, redirect_uri)
        return LoginStart(url, await self._seal(challenge), SIGN_IN_SECONDS)

    async def finish(
        self, *, code: str, state: str, cookie: str, redirect_uri: str, address: str = ""
    ) -> tuple[NewToken, Actor]:
        """End a sign-in with what the browser brought back. The same browser must have begun it."""
        challenge = await self._open(cookie)
        if not hmac.compare_digest(challenge.state.encode(), state.encode(errors="replace")):
            raise DeniedError("This sign-in was begun elsewhere.", hint="Sign in again from the beginning.")
        claims = await self._provider.claims(code, challenge, redirect_uri, wanted=self._name_claim)
        subject = f"{claims['iss']} {claims['sub']}"
        found = await self._context.db.write(lambda c: self._account(c, subject, claims, address))
        if not found.is_active:
            raise DeniedError(f"The account {found.name!r} is closed.", hint="Ask an administrator.")
        return await self._authentication.open_session(found, address=address)

    def _account(
        self, connection: Connection, subject: str, claims: Mapping[str, Any], address: str
    ) -> UserRecord:
        """The account of this subject; a new one where there is none and they may be made.

        NB: never one of the same name that was made otherwise: whoever names people at the provider would own it.
        """
        known = users.find_by_subject(connection, subject)
        if known is not None:
            return known
        if not self._creates_users:
            raise DeniedError("You have no account here.", hint="Ask an administrator for one.")
        name = _name_of(str(claims.get(self._name_claim) or claims.get("email") or claims["sub"]))
        if users.find_by_name(connection, name) is not None:
            raise ConflictError(
                f"There is an account {name!r} already that does not belong to this identity.",
                hint="Ask an administrator to connect the two.",
            )
        now = self._context.now()
        record = UserRecord(
            id=new_id("u"),
            name=name,
            created_at=now,
            display_name=_text(claims.get("name"), 200),
            email=_text(claims.get("email"), 254),
            oidc_subject=subject,
        )
        users.insert_user(connection, record)
        entry = AuditRecord(
            time=now, actor=name, address=address, action="users.create_by_oidc", subject=name
        )
        audit.append(connection, entry)
        return record

    # -- what the browser keeps meanwhile

    async def _seal(self, challenge: Challenge) -> str:
        until = self._context.now() + SIGN_IN_SECONDS
        body = json.dumps([challenge.state, challenge.nonce, challenge.verifier, until]).encode()
        return f"{_encode(body)}.{_encode(_sign(await self._key(), body))}"

    async def _open(self, cookie: str) -> Challenge:
        body_text, _dot, signature = cookie.partition(".")
        try:
            body, given = _decode(body_text), _decode(signature)
        except ValueError:
            body, given = b"", b""
        if not hmac.compare_digest(_sign(await self._key(), body), given):
            raise DeniedError("This sign-in was not begun here.", hint="Sign in again from the beginning.")
        state, nonce, verifier, until = json.loads(body)
        if self._context.now() > until:
            raise DeniedError("This sign-in took too long.", hint="Sign in again from the beginning.")
        return Challenge(state, nonce, verifier)

    async def _key(self) -> bytes:
        """One for all servers of the platform."""
        fresh = secrets.token_hex(32)
        found = await self._context.db.write(lambda c: settings.ensure(c, _KEY, fresh))
        return bytes.fromhex(found)


def _name_of(text: str) -> str:
    """A name as accounts have it, from whatever the provider calls somebody."""
    name = re.sub(r"[^A-Za-z0-9._@-]+", "-", text).strip("-._@")[:64]
    validation.check_user_name(name)
    return name


def _text(value: object, longest: int) -> str:
    return (
        "".join(letter for letter in value if letter.isprintable())[:longest]
        if isinstance(value, str)
        else ""
    )


def _sign(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, b"oidc:" + body, hashlib.sha256).digest()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii", errors="strict"))
