"""Specs as JSON text and back. What equals its default is left out, so that rows stay small.

A key that this version does not know is passed over: the row may have been written by a newer one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from trainyard.spec.workload import (
    CodeSpec,
    CommandOn,
    Condition,
    Launcher,
    MountSpec,
    NeedSpec,
    Restart,
    Retain,
    RoleSpec,
    SecretSpec,
    Success,
    WorkloadSpec,
)

_Part = TypeVar("_Part", CodeSpec, MountSpec, NeedSpec, SecretSpec)

# Jobs of one kind are often alike but for their names; the loops read the same ones again and again.
REMEMBERED = 4096

_ENUMS = {
    "restart": Restart, "retain": Retain, "success": Success, "command_on": CommandOn, "launcher": Launcher,
    "condition": Condition,
}  # fmt: skip
_TUPLES = frozenset({"nodes", "tolerations", "after", "requirements"})


def _defaults(kind: type[Any]) -> dict[str, Any]:
    """Every field with its default; MISSING where it has to be given."""
    return {
        one.name: one.default_factory() if one.default_factory is not MISSING else one.default
        for one in fields(kind)
    }


_WORKLOAD = _defaults(WorkloadSpec)
_ROLE = _defaults(RoleSpec)
_PARTS = {kind: _defaults(kind) for kind in (CodeSpec, MountSpec, NeedSpec, SecretSpec)}


def encode(spec: WorkloadSpec) -> dict[str, Any]:
    """A spec as plain data for a JSON column."""
    data = _differing(spec, _WORKLOAD)
    data["roles"] = [_differing(role, _ROLE) for role in spec.roles]
    return data


@lru_cache(REMEMBERED)
def decode(text: str) -> WorkloadSpec:
    """A spec from the text of its column. The same text gives the same, frozen, spec."""
    return spec_of(json.loads(text))


def spec_of(data: Mapping[str, Any]) -> WorkloadSpec:
    """A spec from plain data that `encode` made."""
    known = _known(data, _WORKLOAD)
    known["roles"] = tuple(_role_of(role) for role in data.get("roles", ()))
    known["mounts"] = tuple(_part_of(MountSpec, one) for one in data.get("mounts", ()))
    known["after"] = tuple(_part_of(NeedSpec, one) for one in data.get("after", ()))
    known["secrets"] = tuple(_part_of(SecretSpec, one) for one in data.get("secrets", ()))
    if data.get("code") is not None:
        known["code"] = _part_of(CodeSpec, data["code"])
    return WorkloadSpec(**known)


def _role_of(data: Mapping[str, Any]) -> RoleSpec:
    return RoleSpec(**_known(data, _ROLE))


def _part_of(kind: type[_Part], data: Mapping[str, Any]) -> _Part:
    return kind(**_known(data, _PARTS[kind]))


def _known(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in data.items() if name in defaults}
    for name in _TUPLES & known.keys():
        known[name] = tuple(known[name])
    for name in _ENUMS.keys() & known.keys():
        known[name] = _ENUMS[name](known[name])
    return known


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


def _differing(value: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, default in defaults.items():
        own = getattr(value, name)
        if own != default:
            found[name] = _plain(own)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, CodeSpec | MountSpec | NeedSpec | SecretSpec):
        return _differing(value, _PARTS[type(value)])
    return value.value if isinstance(value, StrEnum) else value
