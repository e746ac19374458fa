"""Rows → text or JSON, with no third-party import. Widths count terminal cells, so 中文 lines up."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence


def cells(text: str) -> int:
    """How many terminal cells a text takes."""
    return sum(map(_cells_of, text))


def clip(text: str, width: int) -> str:
    """Cut to `width` cells, with an ellipsis where something was left out."""
    if cells(text) <= width:
        return text
    if width < 1:
        return ""
    kept, room = "", width - 1
    for char in text:
        room -= _cells_of(char)
        if room < 0:
            break
        kept += char
    return kept + "…"


def render(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int = 0,
    right: frozenset[int] = frozenset(),
    shrink: Sequence[int] = (),
    separator: str = "  ",
) -> str:
    """Columns sized to their longest cell; where `width` is exceeded, the `shrink` columns give way in turn."""
    table = [list(map(_printable, header)), *[list(map(_printable, row)) for row in rows]]
    widths = [max(cells(row[i]) for row in table) for i in range(len(header))]
    excess = sum(widths) + len(separator) * (len(widths) - 1) - width if width else 0
    for column in shrink:
        if excess <= 0:
            break
        given = min(excess, max(0, widths[column] - max(8, cells(table[0][column]))))
        widths[column] -= given
        excess -= given
    lines = []
    for row in table:
        padded = [_pad(clip(cell, widths[i]), widths[i], i in right) for i, cell in enumerate(row)]
        lines.append(separator.join(padded).rstrip())
    return "\n".join(lines)


def to_json(value: object) -> str:
    """JSON for programs: stable order, unescaped 中文."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _cells_of(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me", "Cf"}:  # drawn onto the one before, or not at all
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - cells(text))
    return space + text if right else text + space


def _printable(text: str) -> str:
    """Control characters would move the cursor: show them instead."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
