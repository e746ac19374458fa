"""What one field of a job says of itself: its unit, its checks, its flag, its names for `dlc`, its text in the reference.

The table itself is the classes of workload.py: each field carries one `entry`. Documents, checks, rows of the database,
REST, `dlc`, the flags of `jobs submit` and the page of job fields follow from it; all of them take the class of the job,
so that a class with one more field is read, checked and shown with it.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from functools import cache
from re import Pattern
from typing import Union, get_args, get_origin, get_type_hints

KEY = "job_field"


class Unit(Enum):
    """What a number counts, where that is not its own matter."""

    COUNT = ""
    SECONDS = "seconds"  # a text such as 30m is taken as well
    MEBIBYTES = "MiB"  # under another name, a text with a unit such as 16GiB


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `least` to `most`."""

    least: float
    most: float
    hint: str = ""  # instead of "Give a number from … to …."


@dataclass(frozen=True, slots=True, kw_only=True)
class Printable:
    """Text that can be shown, of a bounded length."""

    longest: int
    empty: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """A text, or every one of several, that matches `pattern`; `problem` has {value} for what was given."""

    pattern: Pattern[str]
    problem: str
    hint: str
    shown: int = 40  # letters of what was given


class Check(Enum):
    """Checks that take more than a number or a pattern, in the words of the reference; server/validation.py has them."""

    COMMAND = "at most 100 kB"
    VARIABLES = "at most 100 kB together"
    LABELS = "at most 64 labels"
    TAINTS = "at most 64 taints"
    TAGS = "at most 64 tags"
    FOLDER = "a folder, without `..`"


Rule = Between | Printable | Matches | Check


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of `jobs submit`. What it takes follows from the type of its field."""

    spellings: str  # with blanks between them
    value: str  # as its help calls it
    text: str
    option: str = ""  # its name in the program; empty: the field's
    least: int | None = None  # instead of the check's


@dataclass(frozen=True, slots=True)
class DlcName:
    """What a field is called by the clients of DLC."""

    path: str  # in a request, or in a role of one: Settings.Tags
    key: str = (
        ""  # in params files, and as a flag of `dlc`, of a role behind the role's name; empty: it has none
    )
    text: str = ""  # what `dlc` says of the key
    _: KW_ONLY
    by_table: bool = True  # False: how it is translated is told by code of its own
    minutes: bool = False  # instead of seconds
    default: int | float | None = None  # instead of the field's own
    choices: Mapping[str, str] = field(default_factory=dict)  # their words → ours


@dataclass(frozen=True, slots=True, kw_only=True)
class JobField:
    """One field of a job, of a role, or of another part of a job."""

    name: str = ""  # in REST, rows and documents
    annotation: object = None  # its type
    default: object = None
    is_required: bool = False  # it has no default
    text: str
    chinese: str
    unit: Unit = Unit.COUNT
    also: str = ""  # another name in documents: `memory` with a unit for `memory_mib`
    rules: tuple[Rule, ...] = ()
    flags: tuple[Flag, ...] = ()
    dlc: DlcName | None = None
    alone: bool = False  # a text instead of the whole part is this field of it

    @property
    def is_optional(self) -> bool:
        """Whether it may be None."""
        return get_origin(self.annotation) in {Union, types.UnionType}

    @property
    def is_mapping(self) -> bool:
        """Whether it is a table of texts."""
        return _is_a(get_origin(self.annotation), Mapping)

    @property
    def is_several(self) -> bool:
        """Whether it is a list, as a tuple."""
        return get_origin(self.annotation) is tuple

    @property
    def one(self) -> object:
        """The type of one value: of a list, that of its items; of what may be None, that of the rest."""
        if self.is_several or self.is_optional:
            return next(kind for kind in get_args(self.annotation) if kind is not type(None))
        return self.annotation

    @property
    def part(self) -> type | None:
        """The class with fields of its own that it holds; None of a plain value."""
        return self.one if isinstance(self.one, type) and is_dataclass(self.one) else None

    @property
    def choices(self) -> type[StrEnum] | None:
        """The words that it may be; None where any may stand there."""
        return self.one if isinstance(self.one, type) and issubclass(self.one, StrEnum) else None


def entry(
    text: str,
    chinese: str,
    *,
    unit: Unit = Unit.COUNT,
    also: str = "",
    rules: Sequence[Rule] = (),
    flags: Sequence[Flag] = (),
    dlc: DlcName | None = None,
    alone: bool = False,
) -> dict[str, object]:
    """The metadata of a field: everything that is said of it beside its name, its type and its default."""
    found = JobField(
        text=text, chinese=chinese, unit=unit, also=also, rules=tuple(rules), flags=tuple(flags), dlc=dlc, alone=alone
    )  # fmt: skip
    return {KEY: found, "description": f"{text}."}


@cache
def fields_of(kind: type) -> Mapping[str, JobField]:
    """The fields of a job, of a role or of another part, by name and in order. TypeError where one has no entry."""
    if not is_dataclass(kind):
        raise TypeError(f"{kind.__name__} has no fields")
    hints = get_type_hints(kind)
    return types.MappingProxyType(
        {each.name: _field_of(kind, each, hints[each.name]) for each in fields(kind)}
    )


def part_of(kind: type, name: str) -> type:
    """The class of one field that has fields of its own: the roles' of a job."""
    found = fields_of(kind)[name].part
    if found is None:
        raise TypeError(f"{kind.__name__}.{name} has no fields of its own")
    return found


def _field_of(kind: type, each: Field[object], hint: object) -> JobField:
    said = each.metadata.get(KEY)
    if not isinstance(said, JobField):
        raise TypeError(f"{kind.__name__}.{each.name} has no entry")
    made = None if each.default_factory is MISSING else each.default_factory()
    default = made if each.default is MISSING else each.default
    is_required = each.default is MISSING and each.default_factory is MISSING
    return replace(said, name=each.name, annotation=hint, default=default, is_required=is_required)


def _is_a(kind: object, wanted: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, wanted)
