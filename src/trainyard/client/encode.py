"""Encodes dataclasses as JSON values. Default values are left out, so that an older server need not know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any


def encode(value: object, *, whole: bool = False) -> Any:
    """A JSON value; with `whole`, defaults too."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: encode(getattr(value, each.name), whole=whole)
            for each in fields(value)
            if whole or not _is_default(each, getattr(value, each.name))
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {str(key): encode(each, whole=whole) for key, each in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return [encode(each, whole=whole) for each in value]
    return value


def _is_default(each: Field[Any], value: object) -> bool:
    if each.default is not MISSING:
        return bool(value == each.default)
    if each.default_factory is not MISSING:
        return bool(value == each.default_factory())
    return False
