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
from importlib import import_module
from typing import Protocol, TypeVar

from trainyard.lib.errors import InvalidError
from trainyard.lib.units import parse_duration, parse_mebibytes
from trainyard.spec.sweep import Axis, axis_between, axis_of
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

_T = TypeVar("_T", RoleSpec, WorkloadSpec, CodeSpec, MountSpec, NeedSpec, SecretSpec)

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
        Value({name: one for name, one in root.data.items() if name not in _SWEEP_KEYS}, root.line), problems
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


def _optional_whole(value: Value) -> int | None:
    return None if value.data is None else _whole(value)


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


def _choice(kind: type[StrEnum]) -> Callable[[Value], StrEnum]:
    def convert(value: Value) -> StrEnum:
        text = _string(value)
        try:
            return kind(text)
        except ValueError:
            raise TypeError(f"is {text!r}, not one of {', '.join(one for one in kind if one)}") from None

    return convert


_ROLE_KEYS: Mapping[str, Callable[[Value], object]] = {
    "name": _string, "replicas": _whole, "minimum": _optional_whole, "command": _string, "cpu": _number,
    "memory_mib": _mebibytes, "shared_memory_mib": _mebibytes, "memory": _size, "shared_memory": _size, "disk_mib": _mebibytes, "disk": _size, "device": _string, "devices": _whole, "image": _string,
    "env": _table, "labels": _table, "nodes": _words, "tolerations": _words, "after": _words,
}  # fmt: skip
# What people write, and the field that it is.
_ALIASES = {"memory": "memory_mib", "shared_memory": "shared_memory_mib", "disk": "disk_mib"}
_CODE_KEYS: Mapping[str, Callable[[Value], object]] = {
    "source": _string, "url": _string, "branch": _string, "commit": _string, "target": _string,
}  # fmt: skip
_MOUNT_KEYS: Mapping[str, Callable[[Value], object]] = {
    "source": _string, "target": _string, "path": _string, "read_only": _flag,
}  # fmt: skip
_SECRET_KEYS: Mapping[str, Callable[[Value], object]] = {
    "name": _string,
    "variable": _string,
    "file": _string,
}
_NEED_KEYS: Mapping[str, Callable[[Value], object]] = {"job": _string, "condition": _choice(Condition)}


def _part(kind: type[_T], keys: Mapping[str, Callable[[Value], object]], short: str, value: Value) -> _T:
    """A part of a job: a table, or one text that stands for the key `short`."""
    if isinstance(value.data, str):
        return _make(kind, {short: value.data})
    if not isinstance(value.data, dict):
        raise TypeError("is neither a text nor a table")
    values = {}
    for name, one in value.data.items():
        if name not in keys:
            raise TypeError(f"has no key {name!r}{_nearest(name, tuple(keys))}")
        try:
            values[name] = keys[name](one)
        except TypeError as error:
            raise TypeError(f"has a wrong {name!r}: it {error}") from None
    if short not in values and kind is not CodeSpec:
        raise TypeError(f"has no {short!r}")
    return _make(kind, values)


def _code(value: Value) -> CodeSpec | None:
    return None if value.data is None else _part(CodeSpec, _CODE_KEYS, "url", value)


def _several(value: Value) -> list[Value]:
    if value.data is None:
        return []
    return value.data if isinstance(value.data, list) else [value]


def _mounts(value: Value) -> tuple[MountSpec, ...]:
    return tuple(_part(MountSpec, _MOUNT_KEYS, "source", one) for one in _several(value))


def _needs(value: Value) -> tuple[NeedSpec, ...]:
    return tuple(_part(NeedSpec, _NEED_KEYS, "job", one) for one in _several(value))


def _secrets(value: Value) -> tuple[SecretSpec, ...]:
    return tuple(_part(SecretSpec, _SECRET_KEYS, "name", one) for one in _several(value))


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


_JOB_KEYS: Mapping[str, Callable[[Value], object]] = {
    "name": _string, "command": _string, "workspace": _string, "kind": _string, "working_dir": _string, "env": _table,
    "priority": _whole, "preemptible": _flag, "max_run_seconds": _seconds, "grace_seconds": _seconds,
    "restart": _choice(Restart), "max_retries": _whole, "success": _choice(Success), "retain_seconds": _seconds,
    "retain": _choice(Retain), "tags": _table, "needs_approval": _flag, "command_on": _choice(CommandOn),
    "launcher": _choice(Launcher), "processes": _whole, "ready_seconds": _seconds, "hang_seconds": _seconds,
    "grow_seconds": _seconds,
    "code": _code, "mounts": _mounts, "requirements": _words, "requirements_dir": _string, "after": _needs,
    "secrets": _secrets,
}  # fmt: skip
# What may stand at the top of a job of one role.
_SHORT_KEYS = tuple(name for name in _ROLE_KEYS if name not in _JOB_KEYS)


def _spec(root: Value, problems: Problems) -> WorkloadSpec:
    given = _mapping(root)
    known = (*_JOB_KEYS, "roles", *_SHORT_KEYS)
    values = _convert({name: one for name, one in given.items() if name in _JOB_KEYS}, _JOB_KEYS, problems)
    for name, value in given.items():
        if name not in known:
            problems.add(value.line, f"there is no key {name!r}{_nearest(name, known)}", _listed(name, known))
    if "name" not in given:
        problems.add(root.line, "the job has no name", "Add `name: …`.")
    short = {name: one for name, one in given.items() if name in _SHORT_KEYS}
    if "roles" in given:
        for name, value in short.items():
            problems.add(value.line, f"{name!r} stands beside `roles`", "Move it into a role.")
        values["roles"] = tuple(_roles(given["roles"], problems))
    elif short:
        values["roles"] = (_make(RoleSpec, _convert(short, _ROLE_KEYS, problems)),)
    if problems.found:
        return WorkloadSpec(name="")
    return _make(WorkloadSpec, values)


def _roles(value: Value, problems: Problems) -> Iterator[RoleSpec]:
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
    for name, role in roles:
        if not isinstance(role.data, dict):
            problems.add(role.line, "a role is not a table of keys and values", "Write `name: worker`.")
            continue
        given = _mapping(role)
        for key, one in given.items():
            if key not in _ROLE_KEYS:
                known = tuple(_ROLE_KEYS)
                problems.add(
                    one.line, f"a role has no key {key!r}{_nearest(key, known)}", _listed(key, known)
                )
        values = _convert({key: one for key, one in given.items() if key in _ROLE_KEYS}, _ROLE_KEYS, problems)
        if name is not None:
            values.setdefault("name", name)
        yield _make(RoleSpec, values)


def _convert(
    given: Mapping[str, Value], keys: Mapping[str, Callable[[Value], object]], problems: Problems
) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in given.items():
        try:
            converted = keys[name](value)
            if _ALIASES.get(name) in given:
                raise TypeError(f"stands beside {_ALIASES[name]!r}")
            found[_ALIASES.get(name, name)] = converted
        except (TypeError, ValueError) as error:
            sentence = str(error)
            problems.add(
                value.line,
                f"{name!r} {sentence}" if isinstance(error, TypeError) else f"{name!r}: {sentence}",
            )
    return found


def _make(kind: type[_T], values: Mapping[str, object]) -> _T:
    return kind(**values)  # type: ignore[arg-type]  # each was converted to its field's type


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
