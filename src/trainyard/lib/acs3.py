"""ACS3-HMAC-SHA256, the signature of Alibaba's clients over a request. Pure: no clock, no keys, no nonces."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from urllib.parse import quote

SCHEME = "ACS3-HMAC-SHA256"


def percent_encode(text: str) -> str:
    """RFC 3986: only letters, digits and -_.~ stay."""
    return quote(text, safe="-_.~")


def canonical_query(pairs: Iterable[tuple[str, str]]) -> str:
    """Sorted by name, then value, encoded again: the wire may write a blank as +, the signed string never does."""
    return "&".join(f"{percent_encode(name)}={percent_encode(value)}" for name, value in sorted(pairs))


def sign(
    secret: str,
    method: str,
    path: str,
    pairs: Iterable[tuple[str, str]],
    headers: Mapping[str, str],
    signed_headers: Iterable[str],
    *,
    body: bytes = b"",
    body_digest: str = "",
) -> str:
    """The signature over the method, path, query, the named headers and the body, of which its SHA-256 is enough."""
    names = sorted(signed_headers)
    canonical_headers = "".join(f"{name}:{headers.get(name, '').strip()}\n" for name in names)
    canonical = "\n".join(
        [
            method,
            path or "/",
            canonical_query(pairs),
            canonical_headers,
            ";".join(names),
            body_digest or hashlib.sha256(body).hexdigest(),
        ]
    )
    text = f"{SCHEME}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
