"""A job as a document, YAML or TOML, becomes a WorkloadSpec. What is wrong is told with its line, and the nearest key.

A job of one role needs no `roles`: what belongs to the role may stand at the top. The ranges of numbers are checked where
jobs are taken in. The params files of `dlc` are another door's.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import cache, partial
from importlib import import_module
from typing import Protocol, TypeVar

from trainyard.lib.errors import InvalidError
from trainyard.lib.units import parse_duration, parse_mebibytes
from trainyard.spec.job_fields import JobField, Unit, fields_of, part_of
from trainyard.spec.sweep import Axis, axis_between, axis_of
from trainyard.spec.workload import WorkloadSpec

_Job = TypeVar("_Job", bound=WorkloadSpec)

YAML, TOML = "yaml", "toml"
# A document is written by a person: more than this is an attack by aliases, or a mistake.
MOST_VALUES = 20_000
DEEPEST = 20
MOST_BRACKETS = 200  # open at once, those inside texts too
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a document, with where it stands. `data` is a scalar, a list of Values or a dict of them."""

    data: object
    line: int
    text: str = ""  # of a scalar, as it was written


@dataclass(slots=True)
class Problems:
    """What is wrong with a document, in the order of finding."""

    source: str
    found: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, line: int, sentence: str, hint: str = "") -> None:
        """Note one."""
        self.found.append((line, sentence, hint))

    def check(self) -> None:
        """Raise all that were noted as one InvalidError."""
        if not self.found:
            return
        self.found.sort(key=lambda one: one[0])
        told = [f"{self.source}:{line}: {sentence}" for line, sentence, _hint in self.found[:SHOWN]]
        more = len(self.found) - SHOWN
        text = "; ".join(told) + (f"; and {more} more" if more > 0 else "") + "."
        raise InvalidError(text, hint=next((hint for *_, hint in self.found if hint), ""))


def parse(text: str, format: str = YAML, *, source: str = "document") -> WorkloadSpec:  # noqa: A002  # says what it is
    """Read a job. InvalidError names every line that is wrong, and the key that was probably meant."""
    spec, axes = parse_with_sweep(text, format, source=source)
    if axes:
        raise InvalidError(f"{source} is a sweep of many jobs.", hint="Leave `sweep` out for one job.")
    return spec


def parse_with_sweep(
    text: str,
    format: str = YAML,  # noqa: A002  # as above
    *,
    source: str = "document",
) -> tuple[WorkloadSpec, tuple[Axis, ...]]:
    """The same for a document that may have a `sweep`, or Apulis' `hyperparametername` and its range."""
    return parse_fields(WorkloadSpec, text, format, source=source)


def parse_fields(
    job: type[_Job],
    text: str,
    format: str = YAML,  # noqa: A002  # as above
    *,
    source: str = "document",
) -> tuple[_Job, tuple[Axis, ...]]:
    """The same for a class of jobs with fields of its own: what is read is what its table says."""
    problems = Problems(source)
    if _brackets(text) > MOST_BRACKETS:  # the parsers would take minutes to find out
        raise InvalidError(f"{source} is too deep.", hint="Write one job.")
    if format == YAML:
        root = _read_yaml(text, problems)
    elif format == TOML:
        root = _read_toml(text, problems)
    else:
        raise InvalidError(f"There are no documents in {format!r}.", hint=f"Write {YAML} or {TOML}.")
    problems.check()
    if root is None or not isinstance(root.data, dict):
        raise InvalidError(
            f"{source} is not a table of keys and values.", hint="Write `name: …` in the first line."
        )
    axes = _axes(root.data, problems)
    spec = _spec(
        job,
        Value({name: one for name, one in root.data.items() if name not in _SWEEP_KEYS}, root.line),
        problems,
    )
    problems.check()
    return spec, axes


def _brackets(text: str) -> int:
    """How many brackets are open at once at most."""
    deepest = depth = 0
    for letter in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if letter in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


# -- values to specs


def _string(value: Value) -> str:
    if isinstance(value.data, (dict, list)):
        raise TypeError("is not a text")
    return "" if value.data is None else value.text


def _whole(value: Value) -> int:
    if isinstance(value.data, bool) or not isinstance(value.data, int):
        raise TypeError(f"is {_shown(value)}, not a whole number")
    return value.data


def _number(value: Value) -> float:
    if isinstance(value.data, bool) or not isinstance(value.data, int | float):
        raise TypeError(f"is {_shown(value)}, not a number")
    return float(value.data)


def _flag(value: Value) -> bool:
    if not isinstance(value.data, bool):
        raise TypeError(f"is {_shown(value)}, not true or false")
    return value.data


def _seconds(value: Value) -> int:
    if isinstance(value.data, str):
        return round(parse_duration(value.data).total_seconds())
    return _whole(value)


def _mebibytes(value: Value) -> int:
    if isinstance(value.data, str):
        return parse_mebibytes(value.data)
    return _whole(value)


def _size(value: Value) -> int:
    if not isinstance(value.data, str):
        if isinstance(value.data, bool) or not isinstance(value.data, int | float):
            raise TypeError(f"is {_shown(value)}, not a size; write 64MiB or 2GiB")
        if value.data:
            raise TypeError(f"is {value.text}, without a unit; write {value.text}GiB or {value.text}MiB")
    return _mebibytes(value)


def _words(value: Value) -> tuple[str, ...]:
    if isinstance(value.data, str):
        return (value.data,)
    if not isinstance(value.data, list):
        raise TypeError("is not a list")
    return tuple(_string(one) for one in value.data)


def _table(value: Value) -> dict[str, str]:
    if value.data is None:
        return {}
    if not isinstance(value.data, dict):
        raise TypeError("is not a table of keys and values")
    return {name: _string(one) for name, one in value.data.items()}


def _choice(kind: type[StrEnum], value: Value) -> StrEnum:
    text = _string(value)
    try:
        return kind(text)
    except ValueError:
        raise TypeError(f"is {text!r}, not one of {', '.join(one for one in kind if one)}") from None


Reader = Callable[[Value], object]
_READERS: Mapping[object, Reader] = {str: _string, int: _whole, float: _number, bool: _flag}


@cache
def _readers(kind: type) -> Mapping[str, Reader]:
    """What reads each key of a part of a job, by the table of its fields; with the names that have a unit in the text."""
    found: dict[str, Reader] = {}
    for one in fields_of(kind).values():
        found[one.name] = _reader(one)
        if one.also:
            found[one.also] = _size
    return found


def _reader(one: JobField) -> Reader:
    if one.unit is Unit.SECONDS:
        return _seconds
    if one.unit is Unit.MEBIBYTES:
        return _mebibytes
    if one.part is not None:
        return partial(_parts if one.is_several else _optional_part, one.part)
    if one.choices is not None:
        return partial(_choice, one.choices)
    if one.is_mapping:
        return _table
    if one.is_several:
        return _words
    plain = _READERS[one.one]
    return partial(_optional, plain) if one.is_optional else plain


def _optional(reader: Reader, value: Value) -> object:
    return None if value.data is None else reader(value)


def _aliases(kind: type) -> dict[str, str]:
    """What people write, and the field that it is."""
    return {one.also: one.name for one in fields_of(kind).values() if one.also}


def _part(kind: type, value: Value) -> object:
    """A part of a job: a table, or one text that stands for the key of this part that may stand alone."""
    known = fields_of(kind)
    if isinstance(value.data, str):
        return kind(**{one.name: value.data for one in known.values() if one.alone})
    if not isinstance(value.data, dict):
        raise TypeError("is neither a text nor a table")
    readers = _readers(kind)
    values = {}
    for name, one in value.data.items():
        if name not in readers:
            raise TypeError(f"has no key {name!r}{_nearest(name, tuple(readers))}")
        try:
            values[name] = readers[name](one)
        except TypeError as error:
            raise TypeError(f"has a wrong {name!r}: it {error}") from None
    missing = next((one.name for one in known.values() if one.is_required and one.name not in values), None)
    if missing is not None:
        raise TypeError(f"has no {missing!r}")
    return kind(**values)


def _optional_part(kind: type, value: Value) -> object:
    return None if value.data is None else _part(kind, value)


def _parts(kind: type, value: Value) -> tuple[object, ...]:
    if value.data is None:
        return ()
    return tuple(_part(kind, one) for one in (value.data if isinstance(value.data, list) else [value]))


_APULIS_SWEEP = (
    "hyperparametername",
    "hyperparameterstartvalue",
    "hyperparameterendvalue",
    "hyperparameterstep",
)
_SWEEP_KEYS = frozenset({"sweep", *_APULIS_SWEEP})


def _axes(given: Mapping[str, Value], problems: Problems) -> tuple[Axis, ...]:
    """The parameters of a sweep: a table of lists, of texts like `1..5`, or of single values."""
    found: list[Axis] = []
    table = given.get("sweep")
    if table is not None and not isinstance(table.data, dict):
        problems.add(table.line, "`sweep` is not a table of parameters", "Write `sweep: {lr: [0.1, 0.01]}`.")
    for name, value in _mapping(table).items() if table is not None else ():
        try:
            found.append(axis_of(name, _axis_values(value)))
        except (InvalidError, TypeError) as error:
            problems.add(value.line, f"{name!r}: {str(error).rstrip('.')}")
    wanted = [given[key] for key in _APULIS_SWEEP if key in given]
    if wanted and not all(key in given for key in _APULIS_SWEEP[:3]):
        problems.add(
            wanted[0].line,
            "a range needs hyperparametername, hyperparameterstartvalue and hyperparameterendvalue",
        )
    elif wanted:
        words = [_string(one) for one in wanted]
        try:
            found.append(axis_between(*words))
        except InvalidError as error:
            problems.add(wanted[0].line, str(error).rstrip("."))
    return tuple(found)


def _axis_values(value: Value) -> list[str]:
    if isinstance(value.data, list):
        return [_string(one) for one in value.data]
    return _string(value).split(",")


def _spec(job: type[_Job], root: Value, problems: Problems) -> _Job:
    table: type = job
    given, role = _mapping(root), part_of(table, "roles")
    own = {name: reader for name, reader in _readers(table).items() if name != "roles"}
    # What may stand at the top of a job of one role.
    short_keys = tuple(name for name in _readers(role) if name not in own)
    known = (*own, "roles", *short_keys)
    values = _convert(job, {name: one for name, one in given.items() if name in own}, problems)
    for name, value in given.items():
        if name not in known:
            problems.add(value.line, f"there is no key {name!r}{_nearest(name, known)}", _listed(name, known))
    if "name" not in given:
        problems.add(root.line, "the job has no name", "Add `name: …`.")
    short = {name: one for name, one in given.items() if name in short_keys}
    if "roles" in given:
        for name, value in short.items():
            problems.add(value.line, f"{name!r} stands beside `roles`", "Move it into a role.")
        values["roles"] = tuple(_roles(role, given["roles"], problems))
    elif short:
        values["roles"] = (role(**_convert(role, short, problems)),)
    if problems.found:
        return job(name="")
    return job(**values)  # type: ignore[arg-type]  # each was converted to its field's type


def _roles(role: type, value: Value, problems: Problems) -> Iterator[object]:
    """A list of roles, or a table of them by name."""
    roles: Sequence[tuple[str | None, Value]] = ()
    if isinstance(value.data, dict):
        roles = list(value.data.items())
    elif isinstance(value.data, list):
        roles = [(None, one) for one in value.data]
    if not roles:
        problems.add(
            value.line, "`roles` is neither a list of roles nor a table of them", "Write `- name: worker`."
        )
    known = tuple(_readers(role))
    for name, one in roles:
        if not isinstance(one.data, dict):
            problems.add(one.line, "a role is not a table of keys and values", "Write `name: worker`.")
            continue
        given = _mapping(one)
        for key, each in given.items():
            if key not in known:
                problems.add(
                    each.line, f"a role has no key {key!r}{_nearest(key, known)}", _listed(key, known)
                )
        values = _convert(role, {key: each for key, each in given.items() if key in known}, problems)
        if name is not None:
            values.setdefault("name", name)
        yield role(**values)


def _convert(kind: type, given: Mapping[str, Value], problems: Problems) -> dict[str, object]:
    readers, aliases = _readers(kind), _aliases(kind)
    found: dict[str, object] = {}
    for name, value in given.items():
        try:
            converted = readers[name](value)
            if aliases.get(name) in given:
                raise TypeError(f"stands beside {aliases[name]!r}")
            found[aliases.get(name, name)] = converted
        except (TypeError, ValueError) as error:
            sentence = str(error)
            problems.add(
                value.line,
                f"{name!r} {sentence}" if isinstance(error, TypeError) else f"{name!r}: {sentence}",
            )
    return found


def _mapping(value: Value) -> dict[str, Value]:
    return value.data if isinstance(value.data, dict) else {}


def _nearest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _listed(name: str, known: Sequence[str]) -> str:
    return "" if _nearest(name, known) else f"There are: {', '.join(sorted(known))}."


def _shown(value: Value) -> str:
    if isinstance(value.data, dict):
        return "a table"
    return "a list" if isinstance(value.data, list) else repr(value.text)


# -- YAML


class _Mark(Protocol):
    line: int


class _Node(Protocol):
    """What the parser makes of a piece of text: `id` is scalar, sequence or mapping."""

    id: str
    value: object
    start_mark: _Mark


class _Loader(Protocol):
    def construct_object(self, node: _Node) -> object: ...


def _items(node: _Node) -> list[_Node]:
    return node.value if isinstance(node.value, list) else []


def _pairs(node: _Node) -> list[tuple[_Node, _Node]]:
    return node.value if isinstance(node.value, list) else []


def _read_yaml(text: str, problems: Problems) -> Value | None:
    yaml = import_module("yaml")  # only where a document is YAML
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        left = [MOST_VALUES]
        return None if node is None else _yaml_value(loader, node, problems, left, 0)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        problems.add(line, f"this is not YAML: {error.problem or error.context}")
    except RecursionError:
        problems.add(1, "the document is too deep")
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        problems.add(line, "there is a character that no document can have")
    return None


def _scalar(loader: _Loader, node: _Node) -> object:
    try:
        return loader.construct_object(node)
    except ValueError:  # looks like a date, and is none
        return str(node.value)


def _yaml_value(loader: _Loader, node: _Node, problems: Problems, left: list[int], depth: int) -> Value:
    line = node.start_mark.line + 1
    left[0] -= 1
    if left[0] < 0 or depth > DEEPEST:
        problems.add(line, "the document is too large or too deep", "Write it without aliases.")
        problems.check()
    if node.id == "scalar":
        return Value(_scalar(loader, node), line, str(node.value))
    if node.id == "sequence":
        return Value([_yaml_value(loader, one, problems, left, depth + 1) for one in _items(node)], line)
    found: dict[str, Value] = {}
    for key, one in _pairs(node):
        name = str(key.value) if key.id == "scalar" else "?"
        if name in found:
            problems.add(key.start_mark.line + 1, f"the key {name!r} is there twice")
        value = _yaml_value(loader, one, problems, left, depth + 1)
        found[name] = Value(value.data, key.start_mark.line + 1, value.text)
    return Value(found, line)


# -- TOML

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?\Z")
_KEY = re.compile(
    r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*="""
)
_PART = re.compile(r"""\s*("[^"]*"|'[^']*'|[^.\s]+)\s*""")


def _read_toml(text: str, problems: Problems) -> Value | None:
    try:
        data = tomllib.loads(text)
    except RecursionError:
        problems.add(1, "the document is too deep")
        return None
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+)", str(error))
        line = int(at[1]) if at else text.count("\n") + 1
        problems.add(line, f"this is not TOML: {str(error).partition(' (at')[0]}")
        return None
    return _toml_value(data, (), 1, _toml_lines(text))


def _toml_value(
    data: object, path: tuple[str, ...], line: int, lines: Mapping[tuple[str, ...], int]
) -> Value:
    line = lines.get(path, line)
    if isinstance(data, dict):
        return Value({name: _toml_value(one, (*path, name), line, lines) for name, one in data.items()}, line)
    if isinstance(data, list):
        return Value(
            [_toml_value(one, (*path, str(number)), line, lines) for number, one in enumerate(data)], line
        )
    text = str(data).lower() if isinstance(data, bool) else str(data)
    return Value(data, line, text)


def _toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """Where each key stands. The parser does not tell, so the lines are looked at: headers, keys, and long strings."""
    found: dict[tuple[str, ...], int] = {}
    counts: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    closing = ""
    for number, line in enumerate(text.split("\n"), 1):
        if closing:
            if closing in line:
                closing = ""
            continue
        header = _HEADER.match(line)
        key = _KEY.match(line)
        if header:
            table = _path(header[2])
            if header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, str(counts[table]))
            found.setdefault(table, number)
        elif key:
            found.setdefault((*table, *_path(key[1])), number)
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2:
                closing = quotes
    return found


def _path(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(text))
