"""Secrets out of text: everything we print, log or raise may pass through `redact`."""

from __future__ import annotations

import re

# What names a secret. Not tokenizer, max_tokens or token_count: those are what training is about.
_NAMES = (
    r"(?:[A-Z0-9_-]*(?:SECRET|PASSWORD|PASSWD|ACCESS_KEY|PRIVATE_KEY)[A-Z0-9_-]*"
    r"|(?:[A-Z0-9_-]*[_-])?(?:TOKEN|API[_-]?KEY))"
)
# One shell word: quoted and bare pieces in a row; a quote that is never closed reaches to the end.
_WORD = r"(?:'[^']*(?:'|\Z)|\"(?:\\.|[^\"\\])*(?:\"|\Z)|\\.|[^\s'\"\\;&|])+"
_SECRETS = (
    re.compile(rf"(?is)(\b{_NAMES}[\"']?\s*[=:]\s*){_WORD}"),  # NAME=x, NAME: x, "name": "x"
    re.compile(rf"(?is)(--{_NAMES}\s+)(?!-){_WORD}"),  # --token x
    re.compile(r"(?i)(\bBearer\s+)[^\s'\"]{8,}"),
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*:)[^\s/@'\"]+(?=@)"),  # https://user:x@server
)


def redact(text: str) -> str:
    """`API_TOKEN=abc` → `API_TOKEN=***`. For what is shown; what is run is never changed."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text
