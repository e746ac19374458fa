"""Reads the YAML of `#cloud-config` with the library that cloud-init reads it with. What the values mean is `userdata.py`'s matter."""

from __future__ import annotations

import json
from typing import TypeAlias

import yaml

Content: TypeAlias = "str | int | float | bool | list[Content] | dict[str, Content] | None"


class NotUnderstoodError(ValueError):
    """The text is no YAML."""


def parse(text: str) -> Content:
    """The value of a document; NotUnderstoodError with the number of the line where it cannot be read."""
    try:
        return _json(text)
    except (ValueError, RecursionError):
        return _yaml(text)


def _json(text: str) -> Content:
    """JSON is YAML too, and programs that write cloud-config often write it so."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    value: Content = json.loads("\n".join(lines))
    return value


def _yaml(text: str) -> Content:
    try:
        value: Content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotUnderstoodError(f"line {mark.line + 1 if mark else 1}: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotUnderstoodError(f"line {line}: a character that YAML forbids") from error
    # PyYAML lets these through where a value is not of the type that it looks like, such as the date 2026-99-99.
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise NotUnderstoodError(f"a line has a value that cannot be read: {error}") from error
    return value
