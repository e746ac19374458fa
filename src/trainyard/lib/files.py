"""Local files: atomic write, private ones, advisory locks. Files on machines are `transport/`'s and `runtime/paths.py`'s matter."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def write_atomic(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace `path` with `text`; readers see the old or the new content, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)  # noqa: PTH101  # beside os.replace, on the same name
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def open_append(path: Path) -> int:
    """A descriptor for appending to a file; a new one is for this account alone."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def open_private(path: Path) -> TextIO:
    """Open a file for appending; a new one is for this account alone."""
    return os.fdopen(open_append(path), "a")


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive advisory lock; waits for it. The kernel frees it when we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
