"""Records to JSON and back, by their annotations: no class needs to know how it is saved."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
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


def decode(kind: Any, value: Any, *, strict: bool = False) -> Any:
    """The record of class `kind` that `encode` made `value` of.

    A field that is missing takes its default, one that is unknown is passed over: states of other versions load.
    `strict` is for what people write: TypeError where a name is unknown or a value of another kind.
    """
    return _decoder(kind, strict)(value)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


@cache
def _decoder(kind: Any, strict: bool) -> Decode:
    if is_dataclass(kind):
        return _record(kind, strict)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        inner = _decoder(next(one for one in arguments if one is not type(None)), strict)
        return lambda value: None if value is None else inner(value)
    if origin is list:
        item = _decoder(arguments[0], strict)
        return lambda value: [item(one) for one in value]
    if origin is dict:
        item = _decoder(arguments[1], strict)
        return lambda value: {key: item(one) for key, one in value.items()}
    if kind is datetime:
        return datetime.fromisoformat
    if kind is Decimal:
        return _decimal
    return _checked(kind) if strict else lambda value: value


def _decimal(value: Any) -> Decimal:
    try:
        return Decimal(str(value))
    except InvalidOperation as error:
        raise TypeError(f"{value!r} is no amount of money") from error


def _checked(kind: Any) -> Decode:
    allowed = {float: (int, float)}.get(kind, kind)

    def check(value: Any) -> Any:
        # NB: True is an int for Python, but nobody means 1 second by it.
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value

    return check


def _record(kind: Any, strict: bool) -> Decode:
    wakeups = typing.get_type_hints(kind)
    decoders = {name: _decoder(wakeups[name], strict) for name in _names(kind)}

    def read(value: Any) -> Any:
        unknown = [name for name in value if name not in decoders]
        if strict and unknown:
            raise TypeError(f"there is no {unknown[0]}")
        return kind(**{name: decoders[name](one) for name, one in value.items() if name in decoders})

    return read
