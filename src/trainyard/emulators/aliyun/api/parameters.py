"""Flat parameters of the wire (`Tag.1.Key`, `SystemDisk.Size`) to nested, typed ones, by the schema in schema.json.

The schema is made from the vendor's own clients by scripts/emulator-schema. In strict mode a parameter that the action
does not have is refused, which finds misspelt ones; the provider is said to pass them over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from trainyard.emulators.aliyun.api.call import Value
from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.api.signature import V1_PARAMETERS

Tree: TypeAlias = dict[str, Any]

VERSIONS = {"2014-05-26": "ecs", "2016-04-28": "vpc", "2017-06-26": "nas", "2015-04-01": "sts"}
# Every action takes these: the older clients send RegionId with all calls, and may send the four owners'.
COMMON = frozenset(
    {"RegionId", "OwnerId", "OwnerAccount", "ResourceOwnerId", "ResourceOwnerAccount", "SourceIp"}
)
TRUTH = {"true": True, "false": False}
LONGEST_LIST = 1000  # an index beyond it is a mistake, and must not make a list of that length


@cache
def schema() -> dict[str, dict[str, dict[str, Tree]]]:
    """Product → action → request and response."""
    found: dict[str, dict[str, dict[str, Tree]]] = json.loads(
        Path(__file__).with_name("schema.json").read_text("utf-8")
    )
    return found


def has_action(product: str, action: str) -> bool:
    """Whether the provider has such an action, as far as we know."""
    return action in schema().get(product, {})


def takes_token(product: str, action: str) -> bool:
    """Whether the action takes a ClientToken."""
    return has_action(product, action) and "ClientToken" in schema()[product][action]["request"]


def read_parameters(
    product: str, action: str, pairs: Iterable[tuple[str, str]], *, strict: bool = True
) -> dict[str, Value]:
    """The parameters of a call; Problem where one is unknown, of the wrong kind, or missing."""
    tree = _named(schema()[product][action]["request"])
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in V1_PARAMETERS and name not in tree:
            continue
        if name in COMMON and name not in tree:
            found[name] = value
            continue
        path = name.split(".")
        try:
            kind = _kind(tree, path, name)
        except KeyError:
            if strict:
                raise _unknown(action, name, tree) from None
            continue
        if value or kind == "str":
            _put(found, tree, path, _typed(kind, value, name))
    return _finish(found, schema()[product][action]["request"], "")


def _named(tree: Tree) -> Tree:
    return {name.removesuffix("*"): kind for name, kind in tree.items()}


def _kind(tree: Any, path: list[str], name: str) -> str:
    """The kind of the value at this place; KeyError where the schema has no such place."""
    if isinstance(tree, list):
        if not path or not path[0].isdigit():
            raise KeyError(name)
        if not 0 < int(path[0]) <= LONGEST_LIST:
            raise _invalid(name)
        return _kind(tree[0], path[1:], name)
    if isinstance(tree, dict):
        if not path:
            raise KeyError(name)
        return _kind(_named(tree)[path[0]], path[1:], name)
    if path:
        raise KeyError(name)
    return str(tree)


def _put(found: dict[Any, Any], tree: Any, path: list[str], value: Value) -> None:
    """Put a value at a place that `_kind` has found to be one; members of lists stand under their numbers."""
    key = int(path[0]) if isinstance(tree, list) else path[0]
    if len(path) == 1:
        found[key] = value
        return
    inner = tree[0] if isinstance(tree, list) else _named(tree)[path[0]]
    _put(found.setdefault(key, {}), inner, path[1:], value)


def _typed(kind: str, value: str, name: str) -> Value:
    try:
        if kind == "int":
            return int(value)
        if kind == "float":
            return float(value)
        if kind == "bool":
            return TRUTH[value.lower()]
        if kind == "json":
            loaded: Value = json.loads(value)
            return loaded
    except (ValueError, KeyError) as error:
        raise _invalid(name) from error
    return value


def _finish(found: Mapping[str, Any], tree: Tree, prefix: str) -> dict[str, Value]:
    """Indexed members to lists, and a look for what is required."""
    finished: dict[str, Value] = {name: value for name, value in found.items() if name in COMMON}
    for marked, kind in tree.items():
        name = marked.removesuffix("*")
        # An empty text is as good as none, but for the value of a tag and its like.
        if marked.endswith("*") and (name not in found or (found[name] == "" and not prefix)):
            raise _missing(prefix + name)
        if name not in found:
            continue
        value = found[name]
        if isinstance(kind, list):
            ordered = [value[index] for index in sorted(value)]
            if isinstance(kind[0], dict):
                ordered = [
                    _finish(one, kind[0], f"{prefix}{name}.{place}.") for place, one in enumerate(ordered, 1)
                ]
            finished[name] = ordered
        elif isinstance(kind, dict):
            finished[name] = _finish(value, kind, f"{prefix}{name}.")
        else:
            finished[name] = value
    return finished


def _unknown(action: str, name: str, tree: Tree) -> Problem:
    near = get_close_matches(name.partition(".")[0], tree, n=1, cutoff=0.6)
    meant = f" Did you mean {near[0]}?" if near and near[0] != name else ""
    return Problem("UnknownParameter", f"The action {action} has no parameter {name}.{meant}")


def _invalid(name: str) -> Problem:
    return Problem("InvalidParameter", f'The specified parameter "{name}" is not valid.')


def _missing(name: str) -> Problem:
    return Problem(
        "MissingParameter",
        f'The input parameter "{name}" that is mandatory for processing this request is not supplied.',
    )


def strange_fields(product: str, action: str, body: Mapping[str, Value]) -> list[str]:
    """Fields of an answer that the provider's own clients do not know, or of a kind that they do not expect."""
    return sorted(_strange(body, schema()[product][action]["response"], ""))


def _strange(value: Any, kind: Any, where: str) -> Iterable[str]:
    if value is None:
        return
    if isinstance(kind, dict):
        if not isinstance(value, Mapping):
            yield f"{where} is no object"
            return
        for name, inner in value.items():
            if name not in kind:
                yield f"{where}{name} is unknown"
            else:
                yield from _strange(inner, kind[name], f"{where}{name}.")
    elif isinstance(kind, list):
        if not isinstance(value, list | tuple):
            yield f"{where} is no list"
            return
        for inner in value:
            yield from _strange(inner, kind[0], where)
    elif not _fits(value, kind):
        yield f"{where} is {type(value).__name__}, not {kind}"


def _fits(value: object, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, str) or kind == "json"
