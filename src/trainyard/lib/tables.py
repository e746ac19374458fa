"""Text for terminals, whose widths count cells so that 中文 lines up, and JSON for programs."""

from __future__ import annotations

import json
import unicodedata


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


def to_json(value: object) -> str:
    """JSON for programs: stable order, unescaped 中文."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _cells_of(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me", "Cf"}:  # drawn onto the one before, or not at all
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
