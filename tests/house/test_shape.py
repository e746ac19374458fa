"""How long and how knotted files and functions may be. A file that is too long is split by noun, not squeezed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tree import ROOT, SOURCES, files, short

from longest_files import LONGEST

FILE_LINES = 600
FUNCTION_LINES = 60
COMPLEXITY = 12
NESTING = 5  # blocks inside a function; more is a function of its own

# Tables of data are as long as the world is; each is named here.
DATA: frozenset[str] = frozenset()

BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in files(SOURCES, ".py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, FUNCTIONS):
                yield path, node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def depth(node: ast.AST) -> int:
    """How deep blocks stand in blocks; `elif` is no deeper than its `if`, an inner function begins anew."""
    deepest = 0
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
                continue
            is_elif = isinstance(node, ast.If) and name == "orelse" and isinstance(child, ast.If)
            deepest = max(deepest, depth(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def test_files_stay_readable_when_they_grow():
    texts = [path for path in files(SOURCES, ".py", ".sh") if short(path) not in DATA]
    long = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in texts}
    assert not {name: lines for name, lines in long.items() if lines > FILE_LINES}


def test_functions_stay_readable_when_they_grow():
    long = {f"{short(path)}:{node.lineno} {node.name}": body_lines(node) for path, node in functions()}
    assert not {name: lines for name, lines in long.items() if lines > FUNCTION_LINES}


def test_functions_stay_flat_when_they_grow():
    deep = {f"{short(path)}:{node.lineno} {node.name}": depth(node) for path, node in functions()}
    assert not {name: blocks for name, blocks in deep.items() if blocks > NESTING}


def test_functions_stay_simple_when_they_grow():
    limit = f"lint.mccabe.max-complexity={COMPLEXITY}"
    ruff = Path(sys.executable).parent / "ruff"
    command = [
        ruff,
        "check",
        "--isolated",
        "--no-cache",
        "--select=C901",
        "--config",
        limit,
        "--output-format=json",
    ]
    done = subprocess.run([*command, SOURCES], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in {0, 1}, done.stderr
    assert not [f"{short(Path(each['filename']))}: {each['message']}" for each in json.loads(done.stdout)]


def test_every_module_says_what_lives_in_it():
    silent = [
        short(path)
        for path in files(SOURCES, ".py")
        if path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent


def test_test_modules_have_names_of_their_own():
    """Tests are no packages, so two modules of one name cannot be collected in one run."""
    names: dict[str, list[str]] = {}
    for path in files(ROOT / "tests", ".py"):
        if path.name != "conftest.py":
            names.setdefault(path.name, []).append(short(path))
    assert not {name: places for name, places in names.items() if len(places) > 1 and name != "__init__.py"}


def test_files_that_begin_first_are_there():
    found = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(LONGEST) - found == set()
    assert len(set(LONGEST)) == len(LONGEST)
