"""The table of job fields as rows of text, for the reference: names in English and 中文, types, limits, flags, `dlc`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from trainyard.spec.job_fields import Between, JobField, Matches, Printable, Rule, Unit, fields_of

HEAD = ("Field", "中文", "Type", "Default", "Limits", "Flag", "`dlc`", "Meaning")
_TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def parts_of(kind: type) -> Iterator[type]:
    """The class of a job, and those of its parts, each once."""
    yield kind
    for one in fields_of(kind).values():
        if one.part is not None:
            yield from parts_of(one.part)


def rows_of(kind: type) -> Iterator[Sequence[str]]:
    """One row for each field, under HEAD."""
    for one in fields_of(kind).values():
        spellings = [spelling for flag in one.flags for spelling in flag.spellings.split()]
        yield (
            ", ".join(f"`{name}`" for name in (one.name, one.also) if name),
            one.chinese,
            _type_of(one),
            _default_of(one),
            "; ".join(text for text in map(_limit_of, one.rules) if text),
            ", ".join(f"`{spelling}`" for spelling in spellings),
            _dlc_name_of(one),
            f"{one.text}.",
        )


def _type_of(one: JobField) -> str:
    if one.unit is Unit.SECONDS:
        return "seconds, or a text such as `30m`"
    if one.unit is Unit.MEBIBYTES:
        return f"MiB; `{one.also}` with a unit: `16GiB`"
    if one.part is not None:
        name = one.part.__name__
        return f"{'list of ' if one.is_several else ''}[{name}](#{name.lower()})"
    if one.choices is not None:
        return ", ".join(f"`{each.value}`" for each in one.choices if each)
    if one.is_mapping:
        return "table of texts"
    return "list of texts" if one.is_several else _TYPES.get(one.one, "") if isinstance(one.one, type) else ""


def _default_of(one: JobField) -> str:
    if one.is_required:
        return "has to be given"
    value = one.default
    if value is None or value in ("", (), {}) or one.part is not None:
        return ""
    shown = value.value if isinstance(value, StrEnum) else value
    return f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


def _limit_of(rule: Rule) -> str:
    if isinstance(rule, Between):
        return f"{rule.least:g} to {rule.most:.0f}"
    if isinstance(rule, Printable):
        return f"at most {rule.longest} characters"
    return "" if isinstance(rule, Matches) else rule.value


def _dlc_name_of(one: JobField) -> str:
    if one.dlc is None:
        return ""
    return f"`{one.dlc.path}`" + (f", `{one.dlc.key}`" if one.dlc.key else "")
