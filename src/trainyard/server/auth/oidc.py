"""An identity provider, by OpenID Connect: where people are sent, and what its signed answer says of them.

The code flow with PKCE and a nonce; the answer's signature, issuer, audience and time are checked. What an account is
made of that is services/federation.py's. Imported only where a provider is set.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from trainyard.lib.clock import Clock
from trainyard.lib.errors import DeniedError, InvalidError, UnreachableError

ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "ES256",
    "ES384",
    "EdDSA",
)  # never none, never a shared secret
SCOPE = "openid profile email"
TIMEOUT_SECONDS = 10.0
KEEP_SECONDS = 3600.0  # what the provider says of itself
NEW_KEYS_SECONDS = 60.0  # a signature by an unknown key makes us look again, but not more often
LEEWAY_SECONDS = 60
LARGEST_ANSWER = 1 << 20
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Challenge:
    """What one sign-in keeps secret until its end."""

    state: str
    nonce: str
    verifier: str


def new_challenge() -> Challenge:
    """Fresh secrets for one sign-in."""
    return Challenge(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48))


class Provider:
    """One identity provider."""

    def __init__(self, issuer: str, client_id: str, client_secret: str, clock: Clock) -> None:
        self._issuer = issuer.rstrip("/")
        self._client_id = client_id
        self._client_secret = client_secret
        self._clock = clock
        self._metadata: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None

    async def authorization_url(self, challenge: Challenge, redirect_uri: str) -> str:
        """Where to send the browser."""
        metadata = await self._discover()
        digest = hashlib.sha256(challenge.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": SCOPE,
            "state": challenge.state,
            "nonce": challenge.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        endpoint = str(metadata["authorization_endpoint"])
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def claims(self, code: str, challenge: Challenge, redirect_uri: str) -> Mapping[str, Any]:
        """Trade the code that the browser brought for what the provider says of the person, checked."""
        metadata = await self._discover()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": challenge.verifier,
        }
        answer = await self._request(
            "POST", str(metadata["token_endpoint"]), data=form, auth=(self._client_id, self._client_secret)
        )
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise DeniedError("The identity provider did not say who it is.", hint="Try again.")
        return await self._checked(token, challenge.nonce)

    async def _checked(self, token: str, nonce: str) -> Mapping[str, Any]:
        try:
            decoded = jwt.decode(token, await self._key_set(), algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            try:  # the provider may have changed its keys
                decoded = jwt.decode(token, await self._key_set(fresh=True), algorithms=ALGORITHMS)
            except (JoseError, ValueError) as error:
                raise _refused("its signature is wrong") from error
        claims = dict(decoded.claims)
        try:
            jwt.JWTClaimsRegistry(
                now=int(self._clock.now().timestamp()),
                leeway=LEEWAY_SECONDS,
                iss={"essential": True, "value": (await self._discover())["issuer"]},
                aud={"essential": True, "value": self._client_id},
                sub={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
            ).validate(claims)
        except JoseError as error:
            raise _refused(f"{error.error}") from error
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (several or "azp" in claims) and claims.get("azp") != self._client_id:
            raise _refused("it is for another program")
        if not secrets.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise _refused("it belongs to another sign-in")
        if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
            raise _refused("it names nobody")
        return claims

    async def _discover(self) -> Mapping[str, Any]:
        now = self._clock.monotonic()
        if self._metadata is not None and now - self._metadata[0] < KEEP_SECONDS:
            return self._metadata[1]
        found = await self._request("GET", f"{self._issuer}/.well-known/openid-configuration")
        needed = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
        if any(not isinstance(found.get(name), str) for name in needed):
            raise InvalidError(
                f"{self._issuer} is no identity provider.", hint="Check the setting oidc_issuer."
            )
        if found["issuer"].rstrip("/") != self._issuer:
            raise InvalidError(
                f"{self._issuer} says that it is {found['issuer']}.", hint="Set oidc_issuer to exactly that."
            )
        for name in needed[1:]:
            _check_url(found[name])
        self._metadata = (now, found)
        return found

    async def _key_set(self, *, fresh: bool = False) -> KeySet:
        now = self._clock.monotonic()
        if self._keys is not None and now - self._keys[0] < (NEW_KEYS_SECONDS if fresh else KEEP_SECONDS):
            return self._keys[1]
        metadata = await self._discover()
        found = await self._request("GET", str(metadata["jwks_uri"]))
        try:
            keys = KeySet.import_key_set({"keys": [key for key in found["keys"] if key.get("kty") != "oct"]})
        except (JoseError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreachableError(
                "The identity provider's keys cannot be read.", hint="Try again later."
            ) from error
        self._keys = (now, keys)
        return keys

    async def _request(self, method: str, url: str, **options: Any) -> Mapping[str, Any]:
        _check_url(url)
        try:
            async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
                answer = await client.request(method, url, headers={"Accept": "application/json"}, **options)
            if answer.status_code in {400, 401, 403}:
                raise DeniedError(
                    "The identity provider refused the sign-in.", hint="Try again from the beginning."
                )
            if answer.status_code != 200 or len(answer.content) > LARGEST_ANSWER:
                raise UnreachableError(
                    f"The identity provider answered with {answer.status_code}.", hint="Try again later."
                )
            found = answer.json()
        except (httpx2.HTTPError, ValueError) as error:
            if isinstance(error, DeniedError | UnreachableError):
                raise
            raise UnreachableError(
                "The identity provider does not answer.", hint="Try again later."
            ) from error
        if not isinstance(found, dict):
            raise UnreachableError("The identity provider's answer cannot be read.", hint="Try again later.")
        return found


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise InvalidError(f"The identity provider's address {url} is not https.", hint="Check oidc_issuer.")


def _refused(why: str) -> DeniedError:
    return DeniedError(f"The identity provider's answer cannot be trusted: {why}.", hint="Sign in again.")
