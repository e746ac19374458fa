"""An identity provider, by OpenID Connect: where people are sent, and what its signed answer says of them.

The code flow with PKCE and a nonce; the answer's signature, issuer, audience and time are checked. What an account is
made of that is auth/oidc_login.py's. Imported only where a provider is set.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from trainyard.lib.clock import Clock
from trainyard.lib.errors import DeniedError, Error, InvalidError, UnreachableError

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
NEW_KEYS_SECONDS = 60.0  # a signature by an unknown key makes us look again at once, but not more often
LEEWAY_SECONDS = 60
LARGEST_ANSWER = 1 << 20
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
BASIC, POST = "client_secret_basic", "client_secret_post"
ERROR_CODE = re.compile(r"[a-z_]{1,64}")  # as the protocol has them; nothing else of theirs is repeated


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
        self._looked_again: float | None = None

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

    async def claims(
        self, code: str, challenge: Challenge, redirect_uri: str, *, wanted: str = ""
    ) -> Mapping[str, Any]:
        """Trade the code that the browser brought for what the provider says of the person, checked.

        Some providers sign only who it is, and tell the rest to whoever asks: they are asked where `wanted` is missing.
        """
        metadata = await self._discover()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": challenge.verifier,
        }
        answer = await self._request("POST", str(metadata["token_endpoint"]), **self._proof(metadata, form))
        token, access = answer.get("id_token"), answer.get("access_token")
        if not isinstance(token, str):
            raise DeniedError("The identity provider did not say who it is.", hint="Try again.")
        claims = await self._checked(token, challenge.nonce)
        endpoint = metadata.get("userinfo_endpoint")
        if wanted and not claims.get(wanted) and isinstance(endpoint, str) and isinstance(access, str):
            return {**await self._details(endpoint, access, claims["sub"]), **claims}
        return claims

    def _proof(self, metadata: Mapping[str, Any], form: Mapping[str, str]) -> dict[str, Any]:
        """This form with the client's password, in a way that the provider takes."""
        pair = self._client_id, self._client_secret
        name, password = (quote_plus(one) for one in pair)
        said = metadata.get("token_endpoint_auth_methods_supported")
        ways = said if isinstance(said, list) else [BASIC]  # what is meant where nothing is said
        # Signs in a password are escaped in a header by the standard, but not by everybody: a form has no such doubt.
        if POST in ways and (BASIC not in ways or (name, password) != pair):
            return {"data": {**form, "client_id": self._client_id, "client_secret": self._client_secret}}
        return {"data": dict(form), "auth": (name, password)}

    async def _details(self, endpoint: str, access: str, subject: str) -> Mapping[str, Any]:
        """What the provider says of the person when it is asked, with the key that it gave for that."""
        found = await self._request("GET", endpoint, bearer=access)
        if found.get("sub") != subject:
            raise _refused("it tells of somebody else")
        return found

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
        if fresh:
            is_kept = self._looked_again is not None and now - self._looked_again < NEW_KEYS_SECONDS
        else:
            is_kept = self._keys is not None and now - self._keys[0] < KEEP_SECONDS
        if is_kept and self._keys is not None:
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
        if fresh:
            self._looked_again = now
        return keys

    async def _request(self, method: str, url: str, *, bearer: str = "", **options: Any) -> Mapping[str, Any]:
        _check_url(url)
        headers = {"Accept": "application/json"}
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        try:
            async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
                answer = await client.request(method, url, headers=headers, **options)
        except (httpx2.HTTPError, ValueError) as error:
            raise _unanswered(error) from error
        if answer.status_code != 200:
            raise _unwilling(answer, url)
        found = _body(answer)
        if found is None:
            raise UnreachableError(
                "The identity provider's answer cannot be read.", hint="Check the setting oidc_issuer."
            )
        return found


def _body(answer: httpx2.Response) -> dict[str, Any] | None:
    """What it says, where that is what the protocol has."""
    if len(answer.content) > LARGEST_ANSWER:
        return None
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _unanswered(error: Exception) -> Error:
    """Why there is no answer."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UnreachableError(
                f"The identity provider's certificate is not to be trusted ({cause.verify_message}).",
                hint="Name its authority's file in the server's SSL_CERT_FILE.",
            )
        cause = cause.__cause__ or cause.__context__
    return UnreachableError("The identity provider does not answer.", hint="Try again later.")


def _unwilling(answer: httpx2.Response, url: str) -> Error:
    """Why the answer is none."""
    status = answer.status_code
    code = str((_body(answer) or {}).get("error", ""))
    if code in {"invalid_client", "unauthorized_client"}:
        # Nobody who signs in can help it: it is the platform that was refused.
        return InvalidError(
            "The identity provider does not take this platform's id and secret.",
            hint="Have an administrator check oidc_client_id and TRAINYARD_SERVER_OIDC_SECRET.",
        )
    if status in {400, 401, 403}:
        said = f": {code}" if ERROR_CODE.fullmatch(code) else ""
        return DeniedError(
            f"The identity provider refused the sign-in{said}.", hint="Try again from the beginning."
        )
    if status == 404:
        return InvalidError(f"There is no identity provider at {url}.", hint="Check the setting oidc_issuer.")
    return UnreachableError(f"The identity provider answered with {status}.", hint="Try again later.")


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise InvalidError(f"The identity provider's address {url} is not https.", hint="Check oidc_issuer.")


def _refused(why: str) -> DeniedError:
    return DeniedError(f"The identity provider's answer cannot be trusted: {why}.", hint="Sign in again.")
