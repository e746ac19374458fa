"""Decodes JSON values into the frozen dataclasses of schemas.py by their annotations. Unknown keys are skipped.

A newer server may say more than this client knows; it must not say less.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from trainyard.lib.errors import UnreachableError

T = TypeVar("T")


def decode(shape: type[T], value: object) -> T:
    """Build a `shape` from a JSON value. Raises UnreachableError if the value does not have that shape."""
    try:
        result: T = _decode(shape, value)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UnreachableError(
            f"The server's answer is no {shape.__name__}: {error}.",
            hint="See that the address is that of a Trainyard server, and that its version suits this program.",
        ) from error
    return result


@cache
def _wakeups(shape: type) -> dict[str, Any]:
    return get_type_hints(shape)


def _decode(shape: Any, value: Any) -> Any:
    origin = get_origin(shape)
    if origin in {Union, types.UnionType}:
        kinds = [kind for kind in get_args(shape) if kind is not type(None)]
        return None if value is None else _decode(kinds[0], value)
    if origin is tuple:
        inner = get_args(shape)[0]
        return tuple(_decode(inner, each) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        inner = get_args(shape)[1]
        return {key: _decode(inner, each) for key, each in value.items()}
    if isinstance(shape, type):
        return _plain(shape, value)
    return value


def _plain(shape: type, value: Any) -> Any:
    if is_dataclass(shape):
        wakeups = _wakeups(shape)
        return shape(
            **{each.name: _decode(wakeups[each.name], value[each.name]) for each in fields(shape)
               if each.name in value or (each.default is MISSING and each.default_factory is MISSING)}
        )  # fmt: skip
    if shape is datetime:
        return datetime.fromisoformat(value)
    if issubclass(shape, Enum):
        return shape(value)
    if shape is float:
        return float(value)
    if shape in {int, str, bool} and not isinstance(value, shape):
        raise TypeError(f"{value!r} is no {shape.__name__}")
    return value
