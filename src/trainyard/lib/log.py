"""Secrets out of text: everything we print, log or raise may pass through `redact`."""

from __future__ import annotations

import re

_ASSIGNMENT = re.compile(
    r"(?i)\b([A-Z0-9_]*(?:SECRET|TOKEN|PASSWORD|PASSWD|ACCESS_KEY|API_KEY|PRIVATE_KEY)[A-Z0-9_]*)(\s*[=:]\s*)"
    r"('[^']*'|\"[^\"]*\"|[^\s'\"]+)"
)


def redact(text: str) -> str:
    """`API_TOKEN=abc` → `API_TOKEN=***`. For what is shown; what is run is never changed."""
    return _ASSIGNMENT.sub(r"\1\2***", text)
