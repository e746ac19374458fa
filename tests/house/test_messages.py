"""Sentences are for people: no line of src compares a message, or looks for words in one, to decide what to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
# What a program could mistake for a code: the sentence of an error, of an event or of a record.
SENTENCES = frozenset({"message", "hint", "sentence", "strerror", "verify_message"})
ERRORS = frozenset({"error", "exc", "err", "failure", "problem", "exception", "refusal", "cause"})
SEARCHES = frozenset(
    {"startswith", "endswith", "find", "index", "count", "partition", "rpartition", "split", "removeprefix", "search"}
    | {"match", "fullmatch", "finditer", "findall"}
)  # fmt: skip
# Words of other programs, where they have no code. Each with why.
OTHERS = {
    (
        "trainyard/backends/aliyun/api/errors.py",
        "_explain",
    ): "the provider has one code for no quota and a used-up one",
    (
        "trainyard/transport/ssh_connect.py",
        "_is_locked",
    ): "asyncssh raises one class for all keys that it cannot read",
    ("trainyard/spec/document.py", "_read_toml"): "tomllib tells the line of a mistake in its sentence alone",
}


def is_sentence(node: ast.expr) -> bool:
    """Whether an expression is the text of a message: `error.message`, `str(error)`, `error.args[0]`, `f"{error}"`."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "str" and len(node.args) == 1:
            return is_error(node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"lower", "casefold", "strip", "upper"}:
            return is_sentence(node.func.value)
        return False
    if isinstance(node, ast.Attribute):
        return node.attr in SENTENCES and not is_module(node.value)
    if isinstance(node, ast.Subscript):
        value = node.value
        return isinstance(value, ast.Attribute) and value.attr == "args" and is_error(value.value)
    if isinstance(node, ast.JoinedStr):
        inside = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return any(is_error(one) or is_sentence(one) for one in inside)
    return False


def is_error(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ERRORS


def is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"event_streams", "wire"}


def decisions(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions that compare a message, or search it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            several = [node.left, *node.comparators]
            texts = [one for one in several if is_sentence(one)]
            # To see whether there is a message at all is no look at its words.
            others = [one for one in several if one not in texts]
            if texts and not all(isinstance(one, ast.Constant) and one.value in {"", None} for one in others):
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # `" ".join(text.split())` only puts it on one line.
            is_search = node.func.attr in SEARCHES and not (node.func.attr == "split" and not node.args)
            if is_search and (is_sentence(node.func.value) or any(is_sentence(one) for one in node.args)):
                yield node
        elif isinstance(node, ast.Match) and is_sentence(node.subject):
            yield node.subject


def places(path: Path) -> Iterator[tuple[str, int, str]]:
    """Where a file does so: in which function, on which line, and what it says there."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = [one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for found in decisions(tree):
        around = [one for one in functions if one.lineno <= found.lineno <= (one.end_lineno or 0)]
        name = max(around, key=lambda one: one.lineno).name if around else ""
        yield name, found.lineno, ast.unparse(found)


def test_nothing_in_src_decides_by_the_words_of_a_message():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for function, line, text in places(path):
            if (name, function) not in OTHERS:
                found.append(f"{name}:{line}: {text}")
    assert not found, "give it a code:\n" + "\n".join(found)


def test_every_exception_is_still_needed():
    used = {
        (name, function)
        for name in {file for file, _ in OTHERS}
        for function, _, _ in places(SOURCE / name)
    }  # fmt: skip
    assert set(OTHERS) <= used


@pytest.mark.parametrize(
    "line",
    [
        'if error.message == "x": pass', 'if "quota" in str(error): pass', 'record.message.startswith("Held")',
        "pattern.search(error.message)", 're.match("x", str(exc))', 'if error.args[0] == "x": pass',
        "if step.message != other: pass", 'f" {error} ".find("x")', 'if "x" in error.message.lower(): pass',
    ],
)  # fmt: skip
def test_a_look_into_a_message_is_seen(line):
    assert list(decisions(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        'if error.message == "": pass',
        'if record.reason == "paused": pass',
        "print(error.message)",
        'x = f"{error.message}."',
    ],
)
def test_what_only_shows_a_message_is_let_through(line):
    assert not list(decisions(ast.parse(line)))
