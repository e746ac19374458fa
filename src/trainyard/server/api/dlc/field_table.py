"""The fields of a DLC request that mean one field of a job each: read by the table of job fields. Pure.

What takes more than its own value, such as a machine type that stands for four amounts, is translate.py's and job_options.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.lib.errors import InvalidError
from trainyard.server.api.dlc.field_types import (
    mapping,
    number,
    parse_memory,
    switch,
    text,
    texts,
    whole,
    words,
)
from trainyard.spec.job_fields import Between, DlcName, JobField, Unit, fields_of


def fields_by_table(kind: type, body: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Values by the names that a job, or a role of one, has for them; InvalidError names the key that is wrong."""
    return {
        one.name: _read(one, one.dlc, body, where)
        for one in fields_of(kind).values()
        if one.dlc is not None and one.dlc.by_table
    }


def _read(one: JobField, dlc: DlcName, body: Mapping[str, Any], where: str) -> object:
    *folders, key = dlc.path.split(".")
    for folder in folders:
        body, where = mapping(body, folder), f"{where}.{folder}" if where else ""
    if dlc.choices:
        return _choice(one, dlc, text(body, key, where))
    if one.unit is Unit.MEBIBYTES:
        return parse_memory(body.get(key), f"{where}.{key}" if where else key)
    if dlc.minutes:
        return int(number(body, key, 0, where) * 60)
    if one.is_mapping:
        return words(body, key)
    if one.is_several:
        return texts(body, key, where)
    return _plain(one, dlc, body, key, where)


def _plain(one: JobField, dlc: DlcName, body: Mapping[str, Any], key: str, where: str) -> object:
    if one.one is bool:
        return switch(body, key, where)
    if one.one is not int and one.one is not float:
        return text(body, key, where)
    default = one.default if dlc.default is None else dlc.default
    least = default if isinstance(default, int | float) else 0
    found = whole(body, key, int(least), where) if one.one is int else number(body, key, least, where)
    for rule in one.rules:
        if isinstance(rule, Between) and not rule.least <= found <= rule.most:
            name = f"{where}.{key}" if where else key
            raise InvalidError(
                f"{name} {found} is not between {rule.least:g} and {rule.most:.0f}.",
                hint=rule.hint or f"Give a number from {rule.least:g} to {rule.most:.0f}.",
            )
    return found


def _choice(one: JobField, dlc: DlcName, given: str) -> object:
    key = dlc.path.rpartition(".")[2]
    if given and given not in dlc.choices:
        raise InvalidError(f"{key} {given!r} is unknown.", hint=f"Choose one of {', '.join(dlc.choices)}.")
    if not given:
        return one.default
    return dlc.choices[given] if one.choices is None else one.choices(dlc.choices[given])
