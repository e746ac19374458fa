"""Identifiers: short, sortable by time, safe in file names, host names and shell words."""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
import time

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


def new_id(prefix: str = "") -> str:
    """Nine characters of milliseconds, then six random ones: later ids sort later."""
    millis = time.time_ns() // 1_000_000
    digits = ""
    while millis:
        millis, rest = divmod(millis, 36)
        digits = _ALPHABET[rest] + digits
    return prefix + digits.rjust(9, "0") + "".join(secrets.choice(_ALPHABET) for _ in range(6))


class Serials:
    """Ids of 13 characters that go up: eight of milliseconds, then five that begin at random and count up.

    Two made by one process never meet, however many it makes at once; two made by two processes hardly ever do.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def new(self, prefix: str = "") -> str:
        """The next one."""
        with self._lock:
            now = time.time_ns() // 1_000_000 * 36**5 + secrets.randbelow(36**5 // 2)
            self._last = number = max(now, self._last + 1)
        digits = ""
        while number:
            number, rest = divmod(number, 36)
            digits = _ALPHABET[rest] + digits
        return prefix + digits.rjust(13, "0")


def short_hash(text: str, length: int = 5) -> str:
    """Stable lower-case letters and digits for a text; used in automatic names. Not a secret."""
    digest = hashlib.md5(text.encode(errors="surrogateescape"), usedforsecurity=False).digest()
    return base64.b32encode(digest).decode().lower()[:length]
