"""JSON of strangers: what the standard library lets through and nothing behind it can take is refused here.

That are numbers that are not finite, texts with a NUL or half a letter in them, and nesting that has no end.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

# Escapes of a NUL and of halves of letters: without one of them nothing need be looked at.
_SUSPECT = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
HIGH, LOW, AFTER = 0xD800, 0xDC00, 0xE000  # where the halves of letters begin, and where they end


def parse(text: str | bytes) -> Any:
    """The data; ValueError, with a sentence's end, where there is none that a database and a terminal could take."""
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if bad := bad_letter(raw):
        raise ValueError(f"has {bad} in a text")
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def bad_letter(body: bytes) -> str:
    """What a text in this JSON has that no text may have: a NUL or half a letter; empty: nothing."""
    if not _SUSPECT.search(body):
        return ""
    half_ends = -1  # where the first half of a letter has ended, and the second has to begin
    for found in _ESCAPE.finditer(body):
        code = int(found[1], 16) if found[1] else 1
        is_second = LOW <= code < AFTER
        if (half_ends >= 0) != is_second or (is_second and found.start() != half_ends):
            return "half a letter"
        if code == 0:
            return "a NUL"
        half_ends = found.end() if HIGH <= code < LOW else -1
    return "half a letter" if half_ends >= 0 else ""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"has {constant}, which is no number")


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"has {text[:40]}, which is too large")
    return found
