"""Quantities for people, both ways: memory, durations, ages."""

from __future__ import annotations

import re
from datetime import timedelta

_SIZES = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12,
          "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}  # fmt: skip
_TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")


def parse_size(text: str) -> int:
    """`16GiB` → bytes. A bare number is bytes."""
    match = _QUANTITY.match(text)
    if not match or match[2].lower() not in _SIZES:
        raise ValueError(f"{text!r} is not a size; write it like 512MB or 16GiB")
    factor = _SIZES[match[2].lower()]
    # Whole numbers stay exact beyond 2**53; 4.35k is 4350 though 4.35 * 1000 is a little less.
    return int(match[1]) * factor if match[1].isdigit() else round(float(match[1]) * factor)


def parse_mebibytes(text: str) -> int:
    """`16GiB` → MiB, rounded up. A bare number is refused: bytes are never meant, and MB or GB would be a guess."""
    count = parse_size(text)
    if count and text.strip()[-1].isdigit():
        number = text.strip()
        raise ValueError(f"{text!r} has no unit; write {number}GiB or {number}MiB")
    return -(-count // 2**20)


def parse_duration(text: str) -> timedelta:
    """`30m` → timedelta. A bare number is seconds."""
    match = _QUANTITY.match(text)
    if not match or match[2].lower() not in _TIMES:
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 30m, 2h or 1d")
    try:
        return timedelta(seconds=float(match[1]) * _TIMES[match[2].lower()])
    except OverflowError:
        raise ValueError(f"{text[:40]!r} is longer than anything lasts") from None


def format_size(count: float) -> str:
    """Bytes → `1.5 GB`, three significant figures at most."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_duration(span: timedelta) -> str:
    """`3d 4h`, `2h 5m`, `45s`: the two largest units."""
    seconds = max(0, int(span.total_seconds()))
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"
