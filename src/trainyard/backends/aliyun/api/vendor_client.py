"""The vendor's generic client: the only module that knows `alibabacloud_tea_openapi` and what it raises.

Importing this costs 0.3 s and 40 MB, so `client.py` does it when the first call is made. The synchronous client is used,
in threads: it keeps connections alive, where the asynchronous one opens a new one, with a new TLS context, for each call.
Its own retries stay off: it cannot tell a call that may be repeated from one that may not.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from alibabacloud_credentials.exceptions import CredentialException
from alibabacloud_credentials.provider import CLIProfileCredentialsProvider
from alibabacloud_tea_openapi.client import Client
from alibabacloud_tea_openapi.exceptions import AlibabaCloudException
from alibabacloud_tea_openapi.utils_models import Config, OpenApiRequest, Params
from darabonba.core import DaraCore
from darabonba.exceptions import UnretryableException
from darabonba.runtime import RuntimeOptions

from trainyard.backends.aliyun.api.errors import Refused, Unanswered
from trainyard.backends.aliyun.api.wire import Answer, Endpoint, Keys, Request
from trainyard.lib.errors import DeniedError

# With DEBUG=sdk in the environment the vendor's logger prints all headers, a security token among them. Never.
logging.getLogger("darabonba-core").setLevel(logging.WARNING)

_EMULATOR = re.compile(r"http://(localhost\b|127\.|\[::1\])")
# All products here speak the same style: parameters in a form, the answer in JSON.
_STYLE = {"pathname": "/", "method": "POST", "style": "RPC", "req_body_type": "formData", "body_type": "json"}
# What the HTTP library raises before the first byte of a request has left.
_UNSENT = frozenset(
    {"NewConnectionError", "ConnectTimeoutError", "ConnectTimeout", "NameResolutionError", "ProxyError"}
)
_REASONS = {
    "NameResolutionError": "there is no such name",
    "NewConnectionError": "the connection was refused",
    "ConnectTimeoutError": "the connection was not answered in time",
    "ProxyError": "the proxy could not be reached",
    "SSLError": "its certificate cannot be verified",
    "ReadTimeoutError": "it took too long",
    "ReadTimeout": "it took too long",
    "RemoteDisconnected": "the connection was closed",
    "ConnectionResetError": "the connection was cut",
    "ProtocolError": "the connection was cut",
}


_make_adapter = DaraCore.get_adapter


def _adapter(*words: Any, **named: Any) -> Any:
    """What the vendor's client sends by. Calls to the emulator go straight to it, and not to HTTP_PROXY.

    The client has no setting for that, and NO_PROXY means nothing to it.
    """
    adapter = _make_adapter(*words, **named)
    send_anywhere = adapter.send

    def send_straight(prepared: Any, **options: Any) -> Any:
        if _EMULATOR.match(prepared.url):
            options["proxies"] = {}
        return send_anywhere(prepared, **options)

    adapter.send = send_straight
    return adapter


DaraCore.get_adapter = staticmethod(_adapter)


def send(request: Request) -> Answer:
    """Sign and send once; blocks. Raises Refused or Unanswered, both free of secrets."""
    params = Params(
        **_STYLE,
        action=request.action,
        version=request.version,
        protocol=request.endpoint.protocol,
        auth_type="AK" if request.keys else "Anonymous",
    )
    options = RuntimeOptions(
        connect_timeout=round(request.connect_seconds * 1000), read_timeout=round(request.read_seconds * 1000)
    )
    client = _client(request.endpoint, request.keys)
    failure: Refused | Unanswered
    try:
        # In the body, not the address: user data is long, and addresses are written into logs on the way.
        answer = client.call_api(params, OpenApiRequest(body=dict(request.form)), options)
    except AlibabaCloudException as error:
        failure = _refused(error, request.keys)
    except UnretryableException as error:
        failure = _unanswered(error.inner_exception, request.keys)
    else:
        body = answer.get("body")
        if isinstance(body, dict):
            return body
        failure = Unanswered("the answer is not an object", is_sent=True)
    raise failure  # outside of the handler: the vendor's exception holds the signed request, and is let go here


def profile_keys(profile: str, file: str) -> Keys:
    """Keys of a profile of the aliyun command line that signs in by browser or by a program of its own; blocks."""
    try:
        found = CLIProfileCredentialsProvider(profile_name=profile, profile_file=file).get_credentials()
    except CredentialException:
        # NB: without its text, which may quote what a program printed.
        raise DeniedError(
            f"the profile {profile} of {file} gives no keys",
            hint="Run `aliyun configure`, and sign in again.",
        ) from None
    return Keys(
        access_key_id=found.get_access_key_id(),
        access_key_secret=found.get_access_key_secret(),
        security_token=found.get_security_token() or "",
        source=f"the profile {profile} in {file}",
    )


@lru_cache(maxsize=64)
def _client(endpoint: Endpoint, keys: Keys | None) -> Client:
    config = Config(endpoint=endpoint.host, protocol=endpoint.protocol, user_agent="trainyard")
    if keys:
        config.access_key_id = keys.access_key_id
        config.access_key_secret = keys.access_key_secret
        config.security_token = keys.security_token or None
    return Client(config)


def _refused(error: AlibabaCloudException, keys: Keys | None) -> Refused:
    data: dict[str, Any] = error.data if isinstance(error.data, dict) else {}
    detail = error.access_denied_detail if hasattr(error, "access_denied_detail") else None
    message = str(data.get("Message") or data.get("message") or error.message or "")
    return Refused(
        str(error.code or ""),
        keys.scrub(message) if keys else message,
        status=int(error.status_code or 400),
        request_id=str(data.get("RequestId") or data.get("requestId") or ""),
        recommend=str(data.get("Recommend") or ""),
        retry_after_seconds=(error.retry_after or 0) / 1000,
        denied_action=str(detail.get("AuthAction") or "") if isinstance(detail, dict) else "",
    )


def _unanswered(inner: BaseException | None, keys: Keys | None) -> Unanswered:
    names = [type(each).__name__ for each in _chain(inner)]
    reason = next((_REASONS[name] for name in names if name in _REASONS), "")
    if not reason:
        text = str(getattr(inner, "message", "") or inner or "no reason was given")
        reason = "what came is not an answer of the API" if "json" in text else text
        reason = keys.scrub(reason) if keys else reason
    is_certificate = "SSLError" in names or "SSLCertVerificationError" in names
    is_sent = not (is_certificate or _UNSENT.intersection(names))
    return Unanswered(reason, is_sent=is_sent, is_final=is_certificate)


def _chain(error: BaseException | None) -> list[BaseException]:
    """The exception, what it wraps and what it was raised from, innermost first."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, BaseException) or each in found:
            continue
        found.append(each)
        waiting += [each.__context__, each.__cause__, getattr(each, "reason", None), *each.args]
    return found[::-1]
