"""One job for every combination of some parameters: how they are written, and the jobs that come of them. Pure.

Who submits them, and keeps them together, is the server.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from trainyard.lib.errors import InvalidError
from trainyard.spec.workload import RoleSpec, WorkloadSpec

MOST_JOBS = 1000
MOST_VALUES = 1000  # of one parameter
MOST_AXES = 16
LONGEST_NAME = 200  # of a job
LONGEST_TAG = 256
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\Z")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?\Z")
TAG = "sweep."  # and the name of the parameter: what a job of a sweep is found by


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter, and the values that it takes."""

    name: str
    values: tuple[str, ...]


def parse_axis(text: str) -> Axis:
    """`lr=0.1,0.01`, `seed=1..5` or `rate=0..1..0.25`; ranges have both ends, and may stand among values."""
    name, equals, values = text.partition("=")
    if not equals:
        raise InvalidError(f"{text!r} is no parameter of a sweep.", hint="Write lr=0.1,0.01 or seed=1..5.")
    return axis_of(name.strip(), values.split(","))


def axis_of(name: str, values: Iterable[object]) -> Axis:
    """A parameter from its values; a text `1..5` among them is a range."""
    if not NAME.match(name):
        raise InvalidError(
            f"{name[:80]!r} cannot be the name of a parameter.", hint="Use letters, digits and _."
        )
    found: list[str] = []
    for value in values:
        text = _text(value).strip()
        found += _range(name, text) if ".." in text else [text]
        if len(found) > MOST_VALUES:
            raise InvalidError(f"{name} has more than {MOST_VALUES} values.", hint="Take fewer.")
    found = list(dict.fromkeys(found))
    if not found or (found == [""]):
        raise InvalidError(f"{name} has no values.", hint=f"Write {name}=1,2,3.")
    return Axis(name, tuple(found))


def axis_between(name: str, start: object, end: object, step: object = 1) -> Axis:
    """A parameter from its first value to its last, as Apulis has it: `hyperparameterstartvalue` and so on."""
    return axis_of(name, [f"{_text(start)}..{_text(end)}..{_text(step)}"])


def count(axes: Sequence[Axis]) -> int:
    """How many jobs these make."""
    number = 1
    for axis in axes:
        number *= len(axis.values)
    return number


def expand(spec: WorkloadSpec, axes: Sequence[Axis]) -> list[WorkloadSpec]:
    """One job for every combination, the last parameter changing fastest.

    Each has the values as variables of the parameters' names, as tags, and in place of `{name}` in the name, the
    command, the working folder and the values of variables. Other braces stay as they are.
    """
    _check(axes)
    names = [axis.name for axis in axes]
    return [
        _one(spec, dict(zip(names, values, strict=True)))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def join_words(words: Sequence[str], axes: Sequence[Axis]) -> str:
    """Words as one line of a shell, in which `{name}` can be replaced: as it is where all values are single words, else
    by the variable of the same name, which no value can break.
    """
    plain = {axis.name: all(shlex.quote(value) == value for value in axis.values) for axis in axes}
    places = re.compile("({(?:" + "|".join(map(re.escape, plain)) + ")})")

    def joined(word: str) -> str:
        pieces = places.split(word)  # every second one is a place
        if len(pieces) == 1:
            return shlex.quote(word)
        for at, piece in enumerate(pieces):
            if at % 2 == 0:
                pieces[at] = shlex.quote(piece) if piece else ""
            elif not plain[piece[1:-1]]:
                pieces[at] = f'"${piece[1:-1]}"'
        return "".join(pieces)

    return " ".join(map(joined, words))


def _check(axes: Sequence[Axis]) -> None:
    if not 1 <= len(axes) <= MOST_AXES:
        raise InvalidError(f"A sweep has {len(axes)} parameters.", hint=f"Give 1 to {MOST_AXES}.")
    names = [axis.name for axis in axes]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise InvalidError(f"The parameter {twice} is there twice.", hint="Join its values.")
    for axis in axes:
        axis_of(axis.name, axis.values)
    number = count(axes)
    if number > MOST_JOBS:
        raise InvalidError(f"This sweep makes {number} jobs.", hint=f"Make at most {MOST_JOBS} at once.")


def _one(spec: WorkloadSpec, values: Mapping[str, str]) -> WorkloadSpec:
    pattern = re.compile("|".join(re.escape(f"{{{name}}}") for name in values))

    def filled(text: str) -> str:
        return pattern.sub(lambda found: values[found[0][1:-1]], text)

    def filled_role(role: RoleSpec) -> RoleSpec:
        env = {name: filled(value) for name, value in role.env.items() if name not in values}
        return replace(role, command=filled(role.command), env=env)

    name = filled(spec.name)
    if name == spec.name:
        name = f"{name} " + " ".join(f"{key}={value}" for key, value in values.items())
    return replace(
        spec,
        name=name[:LONGEST_NAME],
        command=filled(spec.command),
        working_dir=filled(spec.working_dir),
        env={**{key: filled(value) for key, value in spec.env.items()}, **values},
        roles=tuple(filled_role(role) for role in spec.roles),
        tags={**spec.tags, **{TAG + key: value[:LONGEST_TAG] for key, value in values.items()}},
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _range(name: str, text: str) -> list[str]:
    """The numbers of `1..5` or `0..1..0.25`; a text with dots that is no range, such as a path, is itself."""
    parts = text.split("..")
    if len(parts) not in {2, 3} or not all(_NUMBER.match(part.strip()) for part in parts):
        return [text]
    try:
        start, end, *rest = (Decimal(part.strip()) for part in parts)
    except InvalidOperation:
        return [text]
    step = rest[0] if rest else Decimal(1 if end >= start else -1)
    if step == 0 or (end - start) * step < 0:
        raise InvalidError(
            f"{name}: {text} leads nowhere.",
            hint="Write start..end or start..end..step with a step towards the end.",
        )
    number = int((end - start) / step) + 1
    if number > MOST_VALUES:
        raise InvalidError(f"{name}: {text} has {number} values.", hint=f"Take at most {MOST_VALUES}.")
    return [_plain(start + step * place) for place in range(number)]


def _plain(number: Decimal) -> str:
    """0.10 as 0.1, 1E-5 as 0.00001: what programs read everywhere."""
    text = format(number.normalize(), "f")
    return "0" if text in {"-0", "0"} else text


__all__ = ["MOST_JOBS", "Axis", "axis_between", "axis_of", "count", "expand", "parse_axis"]
