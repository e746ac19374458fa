"""Specs as JSON text and back. What equals its default is left out, so that rows stay small.

A key that this version does not know is passed over: the row may have been written by a newer one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache, lru_cache, partial
from typing import Any, TypeVar

from sqlalchemy import Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from trainyard.spec.job_fields import JobField, fields_of
from trainyard.spec.workload import WorkloadSpec

_Job = TypeVar("_Job", bound=WorkloadSpec)

# Jobs of one kind are often alike but for their names; the loops read the same ones again and again.
REMEMBERED = 4096


def encode(spec: WorkloadSpec) -> dict[str, Any]:
    """A spec as plain data for a JSON column."""
    # The roles stay, whatever their default is: SQL looks into them.
    return {**_differing(spec), "roles": [_differing(role) for role in spec.roles]}


@lru_cache(REMEMBERED)
def decode(text: str) -> WorkloadSpec:
    """A spec from the text of its column. The same text gives the same, frozen, spec."""
    return spec_of(json.loads(text))


def spec_of(data: Mapping[str, Any]) -> WorkloadSpec:
    """A spec from plain data that `encode` made."""
    return spec_with(WorkloadSpec, data)


def spec_with(job: type[_Job], data: Mapping[str, Any]) -> _Job:
    """The same for a class of jobs with fields of its own."""
    return job(**_known(job, {"roles": (), **data}))


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    readers = _readers(kind)
    return {
        name: value if (read := readers[name]) is None or value is None else read(value)
        for name, value in data.items()
        if name in readers
    }


@cache
def _readers(kind: type) -> Mapping[str, Callable[[Any], object] | None]:
    """What makes the value of a field from plain data; None where that is the value already."""
    return {one.name: _reader(one) for one in fields_of(kind).values()}


def _reader(one: JobField) -> Callable[[Any], object] | None:
    if one.part is not None:
        make = partial(_part, one.part)
        return (lambda given: tuple(map(make, given))) if one.is_several else make
    return one.choices or (tuple if one.is_several else None)


def _part(kind: type, data: Mapping[str, Any]) -> object:
    return kind(**_known(kind, data))


class tag_of(FunctionElement[str]):  # noqa: N801  # reads as the function that it is in SQL
    """The value of a tag in a column of specs, as SQL. Any key is taken as it is: paths into JSON would have to be quoted."""

    inherit_cache = True
    name = "tag_of"
    type = Text()


@compiles(tag_of, "sqlite")
def _tag_in_sqlite(element: tag_of, compiler: SQLCompiler, **options: Any) -> str:
    column, key = (compiler.process(part, **options) for part in element.clauses)
    return f"(SELECT value FROM json_each({column}, '$.tags') WHERE key = {key})"  # noqa: S608  # compiled parts


@compiles(tag_of, "postgresql")
def _tag_in_postgresql(element: tag_of, compiler: SQLCompiler, **options: Any) -> str:
    column, key = (compiler.process(part, **options) for part in element.clauses)
    return f"(({column} -> 'tags') ->> {key})"


def _differing(part: object) -> dict[str, Any]:
    """What of a job, or of a part of one, is not its default."""
    found = {}
    kind: type = type(part)
    for name, default in _defaults(kind):
        own = getattr(part, name)
        if own != default:
            found[name] = _plain(own)
    return found


@cache
def _defaults(kind: type) -> tuple[tuple[str, object], ...]:
    return tuple(
        (one.name, _REQUIRED if one.is_required else one.default) for one in fields_of(kind).values()
    )


_REQUIRED = object()  # equal to nothing: what has no default is always written


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value):
        return _differing(value)
    return value.value if isinstance(value, StrEnum) else value
