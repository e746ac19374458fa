"""Both signatures of the OpenAPI gateway, computed and verified: RPC v1 (HMAC-SHA1) and ACS3-HMAC-SHA256.

Pure: no clock, no store of keys or nonces; those are `gateway.py`'s.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.api.wire import Request
from trainyard.lib import acs3

V3 = acs3.SCHEME
V1_PARAMETERS = frozenset(
    {
        "AccessKeyId",
        "Action",
        "Format",
        "SecurityToken",
        "Signature",
        "SignatureMethod",
        "SignatureNonce",
        "SignatureType",
        "SignatureVersion",
        "Timestamp",
        "Version",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who a request says it comes from, and the proof."""

    scheme: str
    access_key_id: str
    security_token: str
    signature: str
    date: str
    nonce: str
    signed_headers: tuple[str, ...] = ()


def sign_v1(secret: str, method: str, pairs: Iterable[tuple[str, str]]) -> str:
    """The v1 signature over all parameters, those of the address and of the form together."""
    query = acs3.canonical_query((name, value) for name, value in pairs if name != "Signature")
    text = f"{method}&{acs3.percent_encode('/')}&{acs3.percent_encode(query)}"
    digest = hmac.new(f"{secret}&".encode(), text.encode(), hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


def read_claim(request: Request) -> Claim:
    """Who signed this request, by either scheme; Problem where it is not signed at all."""
    authorization = request.headers.get("authorization", "")
    if authorization:
        return _read_v3(authorization, request.headers)
    values = dict(request.query_pairs() + request.form_pairs())
    for name in ("AccessKeyId", "Signature", "SignatureMethod", "SignatureNonce", "Timestamp"):
        if not values.get(name):
            raise Problem(f"Missing{name}", f"{name} is mandatory for this action.")
    if values["SignatureMethod"] != "HMAC-SHA1":
        raise Problem("InvalidSignatureMethod", "Specified parameter SignatureMethod is not valid.")
    return Claim(
        scheme="v1",
        access_key_id=values["AccessKeyId"],
        security_token=values.get("SecurityToken", ""),
        signature=values["Signature"],
        date=values["Timestamp"],
        nonce=values["SignatureNonce"],
    )


def verify(request: Request, claim: Claim, secret: str) -> None:
    """Problem where the signature is not the one that this secret makes."""
    if claim.scheme == "v1":
        expected = sign_v1(secret, request.method, request.query_pairs() + request.form_pairs())
    else:
        _check_coverage(request, claim)
        expected = acs3.sign(
            secret,
            request.method,
            request.path,
            request.query_pairs(),
            request.headers,
            claim.signed_headers,
            body=request.body,
        )
    if not hmac.compare_digest(expected.encode(), claim.signature.encode()):
        raise _mismatch("Specified signature is not matched with our calculation.")


def _read_v3(authorization: str, headers: Mapping[str, str]) -> Claim:
    scheme, _, rest = authorization.partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    if scheme != V3 or not fields.get("Credential") or not fields.get("Signature"):
        raise Problem("IncompleteSignature", f"The Authorization header is not a {V3} signature.")
    for name in ("x-acs-date", "x-acs-signature-nonce"):
        if not headers.get(name):
            raise Problem(f"Missing{name}", f"The header {name} is mandatory.")
    return Claim(
        scheme=V3,
        access_key_id=fields["Credential"],
        security_token=headers.get("x-acs-security-token", ""),
        signature=fields["Signature"],
        date=headers["x-acs-date"],
        nonce=headers["x-acs-signature-nonce"],
        signed_headers=tuple(fields.get("SignedHeaders", "").split(";")),
    )


def _check_coverage(request: Request, claim: Claim) -> None:
    """What steers a call must be signed, or anybody on the way could change it."""
    needed = {name for name in request.headers if name.startswith("x-acs-")} | {"host"}
    if "content-type" in request.headers and request.body:
        needed.add("content-type")
    if left_out := sorted(needed - set(claim.signed_headers)):
        raise _mismatch(f"These headers must be signed: {', '.join(left_out)}.")
    stated = request.headers.get("x-acs-content-sha256", "")
    if stated != hashlib.sha256(request.body).hexdigest():
        raise _mismatch("The header x-acs-content-sha256 is not the hash of the body.")


def _mismatch(message: str) -> Problem:
    return Problem("SignatureDoesNotMatch", message)
