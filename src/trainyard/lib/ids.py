"""Identifiers: short, sortable by time, safe in file names, host names and shell words."""

from __future__ import annotations

import base64
import hashlib
import secrets
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


def short_hash(text: str, length: int = 5) -> str:
    """Stable lower-case letters and digits for a text; used in automatic names. Not a secret."""
    digest = hashlib.md5(text.encode(errors="surrogateescape"), usedforsecurity=False).digest()
    return base64.b32encode(digest).decode().lower()[:length]
