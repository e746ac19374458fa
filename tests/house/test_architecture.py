"""The map agrees with the land: the picture is current, and every file, module and function that a page names is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tree import ROOT, SOURCES, files, short

DOCS = ROOT / "docs"
PAGES = ("docs/architecture.md", "docs/contributing/how-to-add.md")
PATH = re.compile(r"`((?:src|tests|docs|scripts)/[\w./-]+|\.importlinter|mkdocs\.yml)`")
FUNCTION = re.compile(r"`(\w+)\(\)`")
MODULE_FILE = re.compile(r"`([\w./-]+\.py)`")
BARE_FILE = re.compile(r"[\w./-]+\.py\b")  # also in the drawings of design notes
FOLDER = re.compile(r"`((?:[\w.-]+/)+)`")
DOTTED = re.compile(r"\btrainyard(?:\.[a-z_]\w*)+")
# A paragraph, an item of a list, a row of a table.
BLOCK = re.compile(r"\n\n|\n(?=\* |\d+\. |\| )")
# Folders on machines.
OF_MACHINES = frozenset({"home/", "tmp/", "lines/", "uploads/"})
# Programs of users, in examples.
NOT_OURS = re.compile(r"^(?:[\w-]*train[\w-]*|evaluate|setup|job|script|main|src/trainyard/a/b)\.py$")


@pytest.mark.slow  # reads the imports of every module
def test_the_picture_of_the_packages_is_current():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "architecture", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@cache
def defined_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_function_that_the_map_names_is_there(page):
    missing = []
    for block in BLOCK.split((ROOT / page).read_text(encoding="utf-8")):
        named = [ROOT / name for name in PATH.findall(block)]
        missing += [short(path) for path in named if not path.exists()]
        modules = [path for path in named if path.suffix == ".py" and path.exists()]
        there = frozenset().union(*(defined_in(path) for path in modules))
        missing += [
            f"{name}() beside {[path.name for path in modules]}"
            for name in FUNCTION.findall(block)
            if name not in there
        ]
    assert not missing


def test_the_table_of_contributing_covers_every_package():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    parts = [path for path in (SOURCES / "trainyard").iterdir() if not path.name.startswith("__")]
    names = [
        f"{path.name}/" if path.is_dir() else path.name
        for path in parts
        if path.is_dir() or path.suffix == ".py"
    ]
    rooms = [path for path in (SOURCES / "trainyard" / "server").iterdir() if (path / "__init__.py").exists()]
    names += [f"server/{path.name}/" for path in rooms]
    assert not sorted(name for name in names if f"`{name}`" not in table)


def pages() -> list[Path]:
    return [path for path in (*files(DOCS, ".md"), *ROOT.glob("*.md")) if path.name != "CHANGELOG.md"]


@cache
def known_files() -> frozenset[str]:
    """Every module of the tree, by every end of its path."""
    found = set()
    for folder in (SOURCES, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples"):
        for path in files(folder, ".py"):
            parts = path.relative_to(ROOT).parts
            found |= {"/".join(parts[at:]) for at in range(len(parts))}
    return frozenset(found)


@cache
def known_folders() -> frozenset[str]:
    """Every folder of the tree, by every end of its path."""
    found = set()
    for folder in (SOURCES, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples", DOCS):
        for path in files(folder):
            parts = path.relative_to(ROOT).parts[:-1]
            found |= {
                "/".join(parts[at:length]) + "/"
                for length in range(1, len(parts) + 1)
                for at in range(length)
            }
    return frozenset(found)


@pytest.mark.parametrize("path", pages(), ids=short)
def test_every_module_that_a_page_names_is_there(path):
    text = path.read_text(encoding="utf-8")
    is_design = path.parent.name == "design"
    missing = [
        name
        for name in (BARE_FILE if is_design else MODULE_FILE).findall(text)
        if name not in known_files() and not NOT_OURS.match(name) and f'title="{name}"' not in text
    ]
    missing += [name for name in DOTTED.findall(text) if not is_module_or_attribute(name)]
    if is_design:
        missing += [name for name in FOLDER.findall(text) if name not in known_folders() | OF_MACHINES]
    assert not missing


def is_module_or_attribute(name: str) -> bool:
    """Whether a dotted name is a module, or something named in one; names of other things that begin so are no modules."""
    words = name.split(".")
    for length in range(len(words), 1, -1):
        path = SOURCES.joinpath(*words[:length])
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if source.exists():
            rest = words[length:]
            return not rest or re.search(rf"\b{rest[0]}\b", source.read_text(encoding="utf-8")) is not None
    return words[1] not in {
        "server",
        "runtime",
        "backends",
        "transport",
        "engines",
        "scheduling",
        "cli",
        "client",
        "lib",
    }
