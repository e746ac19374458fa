"""What the house tests look at: the files of this project, by folder, without what is built or installed here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
SKIPPED = frozenset(
    {"__pycache__", "build", "dist", "site", "demo-output", "node_modules"}
)  # and what begins with a dot, but for .ci and .importlinter
KEPT_DOTS = frozenset({".ci", ".importlinter", ".gitignore"})


def files(folder: Path = ROOT, *suffixes: str) -> Iterator[Path]:
    """Every file below `folder`, or those that end with one of the suffixes."""
    for path in sorted(folder.iterdir()):
        if path.name in SKIPPED or (path.name.startswith(".") and path.name not in KEPT_DOTS):
            continue
        if path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            yield from files(path, *suffixes)
        elif not suffixes or path.suffix in suffixes:
            yield path


def short(path: Path) -> str:
    """The path as people write it."""
    return path.relative_to(ROOT).as_posix()
