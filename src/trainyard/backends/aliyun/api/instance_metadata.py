"""Reads the metadata service of an Alibaba Cloud machine: its role's keys, and a notice that it will be taken back.

Plain HTTP to an address of the link; never through a proxy. Blocking functions, called in threads.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from trainyard.lib.errors import InvalidError, UnreachableError

ADDRESS = "http://100.100.100.200"
TIMEOUT_SECONDS = 2.0  # it is one hop away
TOKEN_SECONDS = 21600
_VENDOR_FILE = Path("/sys/class/dmi/id/sys_vendor")


def is_on_cloud() -> bool:
    """Whether this computer says that it is a machine of Alibaba Cloud; costs no time-out where it is not."""
    try:
        return "Alibaba" in _VENDOR_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The metadata service."""

    url: str = ADDRESS
    is_token_needed: bool = False

    def read(self, path: str) -> str | None:
        """The text at `latest/meta-data/<path>`; None where there is none. UnreachableError where nobody answers."""
        headers = {}
        if token := self._token():
            headers["X-aliyun-ecs-metadata-token"] = token
        return fetch(f"{self.url.rstrip('/')}/latest/meta-data/{path}", headers=headers)

    def _token(self) -> str:
        headers = {"X-aliyun-ecs-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        token = fetch(f"{self.url.rstrip('/')}/latest/api/token", method="PUT", headers=headers) or ""
        if self.is_token_needed and not token:
            raise UnreachableError(
                "the metadata service gives no token",
                hint="Unset ALIBABA_CLOUD_IMDSV1_DISABLED, or set keys.",
            )
        return token


def fetch(url: str, *, method: str = "GET", headers: dict[str, str] | None = None) -> str | None:
    """One small text over HTTP, past any proxy; None for an answer with an error status."""
    if not url.startswith(("http://", "https://")):
        raise InvalidError(f"{url!r} is not an http address", hint="Begin it with http:// or https://.")
    request = urllib.request.Request(url, method=method, headers=headers or {})  # noqa: S310  # checked above
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return str(answer.read().decode("utf-8", errors="replace"))
    except urllib.error.HTTPError as error:
        error.close()
        return None
    except OSError as error:
        host = url.split("/")[2]
        raise UnreachableError(
            f"{host} does not answer", hint="Set keys in the environment instead."
        ) from error
