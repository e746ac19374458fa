"""Imports asyncssh without its slow search for optional libraries.

asyncssh asks `ctypes.util.find_library` for liboqs and libnettle. If a library is missing, that runs ldconfig, gcc and
ld twice: 45 of the 180 ms that `import asyncssh` takes. The loader's cache gives the same answer at once. A library that
is only in LD_LIBRARY_PATH is not found; then asyncssh uses other algorithms.
"""

from __future__ import annotations

import ctypes.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOADER_CACHE = Path("/etc/ld.so.cache")


@contextmanager
def _quick_search() -> Iterator[None]:
    search: Callable[[str], str | None] = ctypes.util.find_library
    try:
        cache = LOADER_CACHE.read_bytes()
    except OSError:  # another system, or another C library
        yield
        return

    def find(name: str) -> str | None:
        return search(name) if f"lib{name}.so".encode() in cache else None

    ctypes.util.find_library = find  # only during this import
    try:
        yield
    finally:
        ctypes.util.find_library = search  # type: ignore[assignment]  # and back


with _quick_search():
    import asyncssh as asyncssh  # noqa: PLC0414  # its users import it from here
