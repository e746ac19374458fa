"""Records to JSON and back, by their annotations: no class needs to know how it is saved."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any

Decode = Callable[[Any], Any]


def encode(value: object) -> Any:
    """What JSON can hold of `value`."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): encode(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [encode(one) for one in value]
    if is_dataclass(value):
        return {name: encode(getattr(value, name)) for name in _names(value.__class__)}
    raise TypeError(f"{type(value).__name__} cannot be saved.")


def decode(kind: Any, value: Any) -> Any:
    """The record of class `kind` that `encode` made `value` of.

    A field that is missing takes its default, one that is unknown is passed over: states of other versions load.
    """
    return _decoder(kind)(value)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


@cache
def _decoder(kind: Any) -> Decode:
    if is_dataclass(kind):
        return _record(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        inner = _decoder(next(one for one in arguments if one is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is list:
        item = _decoder(arguments[0])
        return lambda value: [item(one) for one in value]
    if origin is dict:
        item = _decoder(arguments[1])
        return lambda value: {key: item(one) for key, one in value.items()}
    if kind is datetime:
        return datetime.fromisoformat
    if kind is Decimal:
        return Decimal
    return lambda value: value


def _record(kind: Any) -> Decode:
    hints = typing.get_type_hints(kind)
    decoders = {name: _decoder(hints[name]) for name in _names(kind)}

    def read(value: Any) -> Any:
        return kind(**{name: decoders[name](one) for name, one in value.items() if name in decoders})

    return read
