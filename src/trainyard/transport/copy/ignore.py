"""Decides which files are not copied: ignore files in gitignore's syntax in each folder, and patterns from options."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from typing import Protocol

from trainyard.lib.errors import InvalidError
from trainyard.transport.copy.api import CopyOptions

LONGEST_FILE = 1024 * 1024


class _Result(Protocol):
    @property
    def include(self) -> bool | None: ...


class _Spec(Protocol):
    def check_file(self, file: str) -> _Result: ...


class Rules:
    """The ignore rules of one tree. Call `enter` for each folder. The deepest ignore file with a matching rule decides."""

    def __init__(self, options: CopyOptions) -> None:
        names = [options.ignore_file] if options.ignore_file else []
        if options.use_gitignore:
            names.insert(0, ".gitignore")  # ours is read after it, so ours wins
        self._files = frozenset(os.fsencode(name) for name in names)
        self._order = [os.fsencode(name) for name in names]
        self._specs: dict[str, list[_Spec]] = {}
        self._exclude = _compile(options.exclude) if options.exclude else None

    def enter(self, folder: str, path: bytes, names: Iterable[bytes]) -> None:
        """Read the ignore files of `folder` (relative, '' for the top), which lies at `path` and holds `names`."""
        if self._files.isdisjoint(names):
            return
        present = [name for name in self._order if name in names]
        specs = [_compile(_lines(path + b"/" + name)) for name in present]
        self._specs[folder] = specs[::-1]

    @property
    def is_empty(self) -> bool:
        """Whether the folders entered so far have no rules."""
        return not self._specs and self._exclude is None

    def ignores(self, name: str, *, is_folder: bool) -> bool:
        """Return whether `name` (relative to the top) is ignored. The caller checks its parents while it descends."""
        path = name + "/" if is_folder else name
        if self._exclude is not None and self._exclude.check_file(path).include:
            return True
        folder = name
        while folder:
            folder = folder.rpartition("/")[0]
            below = path[len(folder) + 1 :] if folder else path
            for spec in self._specs.get(folder, ()):
                verdict = spec.check_file(below).include
                if verdict is not None:
                    return verdict
        return False

    def ignores_deep(self, name: str, *, is_folder: bool) -> bool:
        """Like `ignores`, for a name whose parents have not been checked."""
        if self.is_empty:
            return False
        parts = name.split("/")
        parents = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        return any(self.ignores(parent, is_folder=True) for parent in parents) or self.ignores(
            name, is_folder=is_folder
        )


def _lines(path: bytes) -> list[str]:
    """Return the lines of an ignore file; none if it is not a plain file but, for example, a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            return []
        if facts.st_size > LONGEST_FILE:
            raise InvalidError(
                f"{os.fsdecode(path)!r} is too long for an ignore file: over {LONGEST_FILE:,} bytes",
                hint="Shorten it, or name another file of patterns.",
            )
        return file.read().decode("utf-8", "surrogateescape").splitlines()


def _compile(patterns: Sequence[str]) -> _Spec:
    from pathspec import GitIgnoreSpec  # noqa: PLC0415  # 141 M instructions, paid by those who ignore something

    # Without this, an installed google-re2 would be used, and it supports only names in UTF-8.
    return GitIgnoreSpec.from_lines(patterns, backend="simple")
