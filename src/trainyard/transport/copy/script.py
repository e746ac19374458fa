"""Loads the shell scripts beside this file and puts their variables in front."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from trainyard.lib.shell import quote

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./,:=@+")


def compose(*names: str, **variables: str | bytes | int) -> str:
    """The scripts `names` in a row, after an assignment of each variable. Bytes may be anything but NUL."""
    lines = [_assign(name, value) for name, value in variables.items()]
    return "".join(lines) + "".join(_text(name) for name in names)


def machine_path(path: str) -> bytes:
    """A path as people write it → absolute, or relative to the home directory with `./` in front."""
    if path == "~":
        path = ""
    path = path.removeprefix("~/")
    if not path.startswith("/"):
        path = f"./{path}"
    raw = path.encode("utf-8", "surrogateescape")
    return raw.rstrip(b"/") or b"/"


@cache
def _text(name: str) -> str:
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines(keepends=True)
    # Comments need not travel.
    return "".join(line for line in lines if not line.lstrip().startswith("#"))


def _assign(name: str, value: str | bytes | int) -> str:
    if isinstance(value, int):
        return f"{name}={value}\n"
    raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    try:
        return f"{name}={quote(raw.decode())}\n"
    except UnicodeDecodeError:
        # A transport sends text; other bytes are made there. The x keeps newlines at the end from being stripped.
        octal = "".join(chr(byte) if byte in _SAFE else f"\\{byte:03o}" for byte in raw)
        return f"{name}=$(printf '{octal}x')\n{name}=${{{name}%x}}\n"
