"""Authenticates calls as the OpenAPI gateway does: access keys and sessions, signature, clock and nonce."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard.emulators.aliyun.api.problems import Problem, not_found
from trainyard.emulators.aliyun.api.signature import Claim, read_claim, verify
from trainyard.emulators.aliyun.api.wire import Request

SKEW = timedelta(minutes=15)
NONCE_KEPT = timedelta(minutes=31)
ACCOUNT = "1234567890123456"
USER = "trainyard"
LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An access key; one with a token is a session's and ends."""

    id: str
    secret: str
    account: str = ACCOUNT
    arn: str = f"acs:ram::{ACCOUNT}:user/{USER}"
    kind: str = "RAMUser"
    principal: str = ""
    token: str = ""
    expires: str = ""
    """In ISO form."""
    active: bool = True


class Gateway:
    """The keys there are, and the nonces that were used."""

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._nonces: dict[tuple[str, str], datetime] = {}

    @property
    def main_key(self) -> Key:
        """The key that the emulator hands to its user."""
        return next(key for key in self._keys.values() if not key.token)

    def ensure_key(self) -> None:
        """Make the user's key where there is none. Random: whoever has it can run programs as the emulator's user."""
        if not any(not key.token for key in self._keys.values()):
            self._add(Key(id=_word("LTAI", 20), secret=_word("", 30), principal=_digits(18)))

    def open_session(self, *, arn: str, principal: str, expires: datetime) -> Key:
        """A key that ends."""
        key = Key(
            id=_word("STS.", 25),
            secret=_word("", 44),
            arn=arn,
            kind="AssumedRoleUser",
            principal=principal,
            token=_word("CAIS", 96),
            expires=expires.isoformat(),
        )
        self._add(key)
        return key

    def set_active(self, key_id: str, *, active: bool) -> None:
        """Disable a key, or enable it again."""
        if key_id not in self._keys:
            raise not_found("InvalidAccessKeyId.NotFound", f"There is no key {key_id}.")
        self._add(Key(**{**asdict(self._keys[key_id]), "active": active}))

    def identify(self, request: Request, *, real_now: datetime, now: datetime) -> Key:
        """The key that signed the request; Problem where something about it is not right."""
        claim = read_claim(request)
        key = self._find(claim, now)
        _check_date(claim.date, real_now)
        verify(request, claim, key.secret)
        self._use_nonce(claim, real_now)
        return key

    def _find(self, claim: Claim, now: datetime) -> Key:
        key = self._keys.get(claim.access_key_id)
        if key is None:
            raise not_found("InvalidAccessKeyId.NotFound", "Specified access key is not found.")
        if not key.active:
            raise Problem("InvalidAccessKeyId.Inactive", "Specified access key is disabled.")
        if claim.security_token != key.token:
            raise Problem("InvalidSecurityToken.Malformed", "Specified SecurityToken is malformed.")
        if key.expires and datetime.fromisoformat(key.expires) <= now:
            raise Problem("InvalidSecurityToken.Expired", "Specified SecurityToken is expired.")
        return key

    def _use_nonce(self, claim: Claim, now: datetime) -> None:
        used = (claim.access_key_id, claim.nonce)
        if used in self._nonces and self._nonces[used] + NONCE_KEPT > now:
            raise Problem("SignatureNonceUsed", "Specified signature nonce was used already.")
        self._nonces.pop(used, None)
        self._nonces[used] = now
        while (oldest := next(iter(self._nonces))) != used and self._nonces[oldest] + NONCE_KEPT <= now:
            del self._nonces[oldest]

    def _add(self, key: Key) -> None:
        self._keys[key.id] = key

    def save(self, now: datetime) -> list[dict[str, Any]]:
        """For the store: the keys that have not ended."""
        return [
            asdict(key)
            for key in self._keys.values()
            if not key.expires or datetime.fromisoformat(key.expires) > now
        ]

    def load(self, saved: Iterable[dict[str, Any]]) -> None:
        """From the store."""
        self._keys = {one["id"]: Key(**one) for one in saved}


def _check_date(date: str, now: datetime) -> None:
    try:
        stamp = datetime.strptime(date, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise Problem("InvalidTimeStamp.Format", "Specified time stamp is not well formatted.") from error
    if abs(stamp - now) > SKEW:
        raise Problem("InvalidTimeStamp.Expired", "Specified time stamp or date value is expired.")


def _word(prefix: str, length: int) -> str:
    return prefix + "".join(secrets.choice(LETTERS) for _ in range(length))


def _digits(length: int) -> str:
    return "2" + "".join(secrets.choice(string.digits) for _ in range(length - 1))
