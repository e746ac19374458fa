"""Sends calls to the platform's DLC API, signed or with a token. Uses only the standard library, to start fast."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.lib import acs3
from trainyard.lib.errors import DeniedError, Error, InvalidError, UnreachableError
from trainyard.lib.files import write_atomic

VERSION = "2020-12-03"
TIMEOUT = 60.0
# A request that surely was not taken is sent again so often; with its key it happens once.
TRIES = 4


class FailedError(Error):
    """The platform said no."""

    code = "failed"

    def __init__(self, status: int, message: str, request_id: str) -> None:
        super().__init__(f"code: {status}, {message} request id: {request_id}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Account:
    """What ~/.dlc/config holds."""

    endpoint: str = ""
    protocol: str = "http"
    region: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    access_id: str = ""
    access_key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)  # what the password was traded for


def load_account(path: Path) -> Account:
    """Read the file; one that is not there is empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Account()
    except OSError as error:
        raise InvalidError(
            f"Cannot read {path}: {error.strerror}.", hint="Run `dlc config` again."
        ) from error
    values = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
    known = asdict(Account())
    return Account(**{name.strip(): value.strip() for name, value in values.items() if name.strip() in known})


def save_account(path: Path, account: Account) -> None:
    """Write the file, for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = [f"{name}={value}" for name, value in asdict(account).items() if value]
    write_atomic(path, "\n".join(lines) + "\n", mode=0o600)


class Connection:
    """One platform, as one account."""

    def __init__(self, account: Account, path: Path | None) -> None:
        if not account.endpoint:
            raise InvalidError(
                "dlc is not configured.",
                hint="Run `dlc config --username NAME --password … --endpoint HOST:PORT`.",
            )
        self._account = account
        self._path = path  # where a new token is kept; None: nowhere
        endpoint = account.endpoint.removeprefix("http://").removeprefix("https://").rstrip("/")
        scheme = "https" if account.endpoint.startswith("https://") else account.protocol or "http"
        self._base = f"{scheme}://{endpoint}"

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        *,
        key: str = "",
    ) -> dict[str, Any]:
        """One call; FailedError with what the platform said."""
        pairs = [(name, str(value)) for name, value in (query or {}).items() if value not in {None, ""}]
        if not self._account.access_id and not self._account.token:
            self.sign_in()
        try:
            return self._send(method, path, pairs, body, key)
        except FailedError as error:
            if error.status != 401 or self._account.access_id or not self._account.password:
                raise
        self.sign_in()  # the token has run out
        return self._send(method, path, pairs, body, key)

    def sign_in(self) -> None:
        """Trade the password for a token, and keep that."""
        account = self._account
        if not account.username:
            raise DeniedError("dlc has neither a user nor an access key.", hint="Run `dlc config` first.")
        data = {"username": account.username, "password": account.password, "kind": "token", "name": "dlc"}
        answer = self._exchange("POST", "/api/v1/session", [], json.dumps(data).encode(), dict)
        self._account = replace(account, token=str(answer.get("token", "")))
        if self._path is not None:
            save_account(self._path, self._account)

    def _send(
        self, method: str, path: str, pairs: list[tuple[str, str]], body: object, key: str
    ) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        host = urllib.parse.urlsplit(self._base).netloc
        plain = {"host": host, "x-acs-version": VERSION}
        if key:
            plain["idempotency-key"] = key

        def headers() -> dict[str, str]:
            if self._account.access_id:
                return plain | self._signature(method, path, pairs, plain, data)
            return {**plain, "authorization": f"Bearer {self._account.token}"}

        return self._exchange(method, path, pairs, data, headers)

    def _signature(
        self, method: str, path: str, pairs: list[tuple[str, str]], headers: Mapping[str, str], data: bytes
    ) -> dict[str, str]:
        added = {
            "x-acs-date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "x-acs-signature-nonce": secrets.token_hex(16),
            "x-acs-content-sha256": hashlib.sha256(data).hexdigest(),
        }
        names = sorted({"host", "x-acs-version", *added})
        signature = acs3.sign(
            self._account.access_key, method, path, pairs, {**headers, **added}, names, body=data
        )
        credential = f"Credential={self._account.access_id},SignedHeaders={';'.join(names)}"
        return {**added, "authorization": f"{acs3.SCHEME} {credential},Signature={signature}"}

    def _exchange(
        self,
        method: str,
        path: str,
        pairs: list[tuple[str, str]],
        data: bytes,
        headers: Callable[[], dict[str, str]],
    ) -> dict[str, Any]:
        """Send, and send again what was not taken. `headers` is asked each time: a signature is good for one request."""
        address = self._base + path + (f"?{acs3.canonical_query(pairs)}" if pairs else "")
        for attempt in range(TRIES):
            request = urllib.request.Request(  # noqa: S310  # http or https, as configured
                address,
                method=method,
                data=data or None,
                headers={**headers(), "content-type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310  # same
                    return _object(answer.read())
            except urllib.error.HTTPError as error:
                if error.code in {429, 503} and attempt < TRIES - 1:
                    time.sleep(2**attempt)
                    continue
                raise _failure(error) from error
            except (urllib.error.URLError, OSError) as error:
                reason = getattr(error, "reason", error)
                is_refused = isinstance(reason, ConnectionRefusedError) and not sys.stderr.isatty()
                if is_refused and attempt < TRIES - 2:
                    time.sleep(0.5 * 2**attempt)  # it may be starting again; who looks on is told at once
                    continue
                raise UnreachableError(
                    f"The platform at {self._base} does not answer: {reason}.",
                    hint="Check the endpoint with `dlc config`.",
                ) from error
        raise AssertionError  # pragma: no cover  # the loop returns or raises


def _object(data: bytes) -> dict[str, Any]:
    found = json.loads(data) if data else {}
    return found if isinstance(found, dict) else {}


def _failure(error: urllib.error.HTTPError) -> FailedError:
    try:
        data = _object(error.read())
    except ValueError:
        data = {}
    message = str(data.get("Message") or data.get("message") or error.reason)
    return FailedError(
        error.code, message, str(data.get("RequestId") or error.headers.get("x-request-id") or "")
    )
