"""Words and environments for POSIX sh, quoted so that any text stays one word. Property-tested against real shells."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quote(text: str) -> str:
    """One shell word that stands for exactly `text`. NUL cannot be in a word: ValueError."""
    if "\0" in text:
        raise ValueError("a shell word cannot hold a NUL character")
    return shlex.quote(text)


def join(words: Iterable[str]) -> str:
    """Words → one command line."""
    return " ".join(quote(word) for word in words)


def exports(env: Mapping[str, str]) -> str:
    """`export A=1; export B='x y'; ` in front of a script; empty for an empty mapping."""
    for name in env:
        if not _NAME.match(name):
            raise ValueError(f"{name!r} is not a name for an environment variable")
    return "".join(f"export {name}={quote(value)}; " for name, value in env.items())


def home_path(path: str) -> str:
    """A path as the family writes it → a shell word: `~` and relative paths mean the home directory."""
    if path == "~" or path.startswith("~/"):
        path = path[1:].lstrip("/")
    elif path.startswith("/"):
        return quote(path)
    return f'"$HOME"/{quote(path)}' if path else '"$HOME"'
