"""A record as the fields of its REST shape: what has the same name in both needs no line of its own.

A shape is a dataclass of client/*schemas.py, and the one definition of a noun of REST. Which records there are, and what
differs from them by name or value, is views.py's and the routes'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

Data = dict[str, Any]
Change = Callable[[Any], object]


class _Plan(NamedTuple):
    """How one shape is filled: worked out once for each shape and each choice of own values."""

    empty: Data  # every name, in the order of the shape
    names: tuple[str, ...]
    read: Callable[[object], tuple[object, ...]]
    changes: tuple[tuple[str, Change], ...]  # for values that JSON has otherwise


@lru_cache(maxsize=4096)  # lists show the same times again and again, and this is most of what a list costs
def when(seconds: float | None) -> str | None:
    """RFC 3339 in UTC, to the millisecond."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def shape_view(shape: type, record: object, **own: object) -> Data:
    """Plain data with every field of the shape: of the record by its name, or as `own` says."""
    plan = _plan(shape, tuple(own))
    shown = plan.empty.copy()
    shown.update(zip(plan.names, plan.read(record), strict=True))
    for name, change in plan.changes:
        value = shown[name]
        if value is not None:
            shown[name] = change(value)
    shown.update(own)
    return shown


@cache
def _plan(shape: type, own: tuple[str, ...]) -> _Plan:
    if not is_dataclass(shape):
        raise TypeError(f"{shape.__name__} is no shape")
    hints = get_type_hints(shape)
    every = tuple(each.name for each in fields(shape))
    foreign = set(own) - set(every)
    if foreign:
        raise TypeError(f"{shape.__name__} has no {', '.join(sorted(foreign))}")
    names = tuple(name for name in every if name not in own)
    changes = ((name, _change(hints[name])) for name in names)
    return _Plan(
        dict.fromkeys(every),
        names,
        _reader(names),
        tuple((name, change) for name, change in changes if change),
    )


def _reader(names: Sequence[str]) -> Callable[[object], tuple[object, ...]]:
    if len(names) == 1:  # NB: attrgetter would give the value alone
        return lambda record: (getattr(record, names[0]),)
    return attrgetter(*names) if names else lambda _record: ()


def _change(kind: Any) -> Change | None:
    """How a value of this type becomes plain; None where it is already."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return _change(next(each for each in arguments if each is not type(None)))  # None stays None
    if kind is datetime:
        return when
    if origin is tuple:
        inner = _change(arguments[0])
        return partial(_several, inner) if inner else list
    if isinstance(origin, type) and issubclass(origin, Mapping):
        inner = _change(arguments[1])
        return partial(_table, inner) if inner else dict
    return partial(shape_view, kind) if isinstance(kind, type) and is_dataclass(kind) else None


def _several(change: Change, values: Iterable[Any]) -> object:
    return [change(value) for value in values]


def _table(change: Change, values: Mapping[str, Any]) -> object:
    return {name: change(value) for name, value in values.items()}
