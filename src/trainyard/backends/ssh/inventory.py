"""The inventory: a TOML file with all hosts. Users write it, and `trainyard hosts` edits it.

Edits change text, not data, so that comments and the order of other hosts stay as their author left them.
Facts about a host are in `cache.py`. The lease is on the host itself, see `lease.py`.
"""

from __future__ import annotations

import difflib
import json
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType

from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError
from trainyard.lib.files import lock, write_atomic
from trainyard.spec.names import check_name

# World-writable and kept over a reboot, because two people with two accounts must see each other's leases.
LEASE_DIR = "/var/tmp/trainyard/leases"

_HEADER = re.compile(r"\s*\[.*\]\s*(#.*)?\Z")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_WORD = re.compile(r"[^\s\x00-\x20-][^\s\x00-\x20]*\Z")  # an option of ssh begins with '-', a host must not


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One `[hosts.NAME]` table. Empty and zero mean: as ssh's own configuration says."""

    name: str
    address: str = ""  # an IP address, a DNS name, or any name of ~/.ssh/config; empty: the host's own name
    user: str = ""
    port: int = 0
    key: tuple[str, ...] = ()
    jump: tuple[str, ...] = ()
    private_address: str = ""  # where the other hosts reach it, when that is not found out by itself
    lease_dir: str = LEASE_DIR
    type: str = ""
    tags: tuple[str, ...] = ()
    ssh_config: str = ""  # instead of ~/.ssh/config
    known_hosts: str = ""  # instead of ~/.ssh/known_hosts

    @property
    def target(self) -> str:
        """What ssh is asked to connect to."""
        return self.address or self.name


@dataclass(frozen=True, slots=True)
class Inventory:
    """All hosts, in the order of the file."""

    path: Path
    hosts: Mapping[str, Host] = field(default_factory=lambda: MappingProxyType({}))

    def host(self, name: str) -> Host:
        """The host called `name`; NotFoundError with the nearest name where there is none."""
        if name in self.hosts:
            return self.hosts[name]
        near = difflib.get_close_matches(name, self.hosts, n=1)
        hint = f"Did you mean {near[0]}?" if near else "Run `trainyard hosts ls` to see which there are."
        raise NotFoundError(f"there is no host {name!r} in {self.path}", hint=hint)


def load(path: Path) -> Inventory:
    """Read the file; one that is missing holds no hosts. InvalidError names file, line and key."""
    return Inventory(path, MappingProxyType(_parse(_read(path), path)))


def add(path: Path, host: Host, *, replace: bool = False) -> None:
    """Append a host. Adding the same twice is adding once; another host of that name is a ConflictError."""
    _validate(host)
    with _editing(path):
        text = _read(path)
        hosts = _parse(text, path)
        if hosts.get(host.name) == host:
            return
        if host.name in hosts:
            if not replace:
                raise ConflictError(
                    f"the host {host.name!r} is in {path} already",
                    hint=f"Remove it first with `trainyard hosts rm {host.name}`, or choose another name.",
                )
            text = _without(text, host.name)
        joint = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        hosts.pop(host.name, None)
        _write(path, text + joint + emit(host), {**hosts, host.name: host})


def remove(path: Path, name: str) -> None:
    """Take a host out; NotFoundError where it is not in."""
    with _editing(path):
        text = _read(path)
        hosts = _parse(text, path)
        Inventory(path, hosts).host(name)
        del hosts[name]
        _write(path, _without(text, name), hosts)


def emit(host: Host) -> str:
    """The host as a TOML table; what is default is left out."""
    header = host.name if _BARE_KEY.match(host.name) else json.dumps(host.name)
    lines = [f"[hosts.{header}]"]
    for each in fields(Host):
        value = getattr(host, each.name)
        if each.name != "name" and value != each.default:
            lines.append(f"{each.name} = {_emit_value(value)}")
    return "\n".join(lines) + "\n"


def _emit_value(value: str | int | tuple[str, ...]) -> str:
    # JSON's strings are TOML's basic strings, but for DEL, which TOML wants escaped.
    if isinstance(value, tuple):
        return f"[{', '.join(map(_emit_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _editing(path: Path) -> AbstractContextManager[None]:
    return lock(path.with_name(f".{path.name}.lock"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(
            f"{path} cannot be read: {error}", hint="Make it a readable UTF-8 text file."
        ) from error


def _write(path: Path, text: str, expected: Mapping[str, Host]) -> None:
    """Write what has been checked to mean exactly `expected`; unusual layouts are left to their author."""
    by_hand = InvalidError(
        f"{path} is laid out in a way that cannot be edited safely",
        hint="Edit it by hand: one [hosts.NAME] table for each host.",
    )
    try:
        if _parse(text, path) != dict(expected):
            raise by_hand
    except InvalidError as error:
        raise by_hand from error
    target = path.resolve()  # a link to a shared file stays a link
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
    write_atomic(target, text, mode=mode)


def _parse(text: str, path: Path) -> dict[str, Host]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(
            f"{path} is not valid TOML: {error}", hint='Correct that line, e.g. key = "value".'
        ) from error
    for key in document:
        if key != "hosts":
            raise _unknown(key, ["hosts"], f"{path}:{_line_of(text, key)}")
    tables = document.get("hosts", {})
    if not isinstance(tables, dict):
        raise InvalidError(
            f"{path}: hosts is not a table", hint="Write one [hosts.NAME] table for each host."
        )
    return {name: _parse_host(name, table, text, path) for name, table in tables.items()}


def _validate(host: Host) -> None:
    """Refuse a host that could not be read back."""
    check_name(host.name, "host name")
    for key, (check, wanted) in _CHECKS.items():
        value = getattr(host, key)
        if value and check(list(value) if isinstance(value, tuple) else value) is None:
            raise InvalidError(f"{value!r} is not {wanted}", hint=f"Correct the {key} of host {host.name}.")


def _parse_host(name: str, table: object, text: str, path: Path) -> Host:
    # Lines are looked for only where something is wrong: among hundreds of hosts that takes longer than reading them.
    try:
        check_name(name, "host name")
    except InvalidError as error:
        raise InvalidError(f"{_where(text, path, name)}: {error.message}", hint=error.hint) from error
    if not isinstance(table, dict):
        raise InvalidError(
            f"{_where(text, path, name)}: {name} is not a table", hint=f"Write [hosts.{name}]."
        )
    values: dict[str, str | int | tuple[str, ...]] = {}
    for key, value in table.items():
        if key not in _CHECKS:
            raise _unknown(key, _CHECKS, f"{_where(text, path, name, key)}: host {name}")
        check, wanted = _CHECKS[key]
        checked = check(value)
        if checked is None:
            raise InvalidError(
                f"{_where(text, path, name, key)}: host {name}: {key} = {value!r} is not {wanted}",
                hint=f"Correct {key} in {path}.",
            )
        values[key] = checked
    return Host(name=name, **values)  # type: ignore[arg-type]  # _CHECKS gives each key its type


def _where(text: str, path: Path, name: str, key: str = "") -> str:
    """`FILE:LINE` of a host's table, or of a key in it."""
    section = _section(text, name)
    first = section[0] + 1 if section else 1
    return f"{path}:{_line_of(text, key, section) if key else first}"


def _unknown(key: str, known: Mapping[str, object] | list[str], where: str) -> InvalidError:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Use one of: {', '.join(known)}."
    return InvalidError(f"{where}: there is no key {key!r}", hint=hint)


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and _WORD.match(value) else None


def _words(value: object) -> tuple[str, ...] | None:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(_word(item) for item in items):
        return None
    return tuple(items)


def _paths(value: object) -> tuple[str, ...] | None:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(_path(item) for item in items):
        return None
    return tuple(items)


def _path(value: object) -> str | None:
    return value if isinstance(value, str) and value and "\0" not in value else None


def _directory(value: object) -> str | None:
    return value if isinstance(value, str) and value.startswith(("/", "~/")) and "\0" not in value else None


def _port(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536 else None


_Check = Callable[[object], str | int | tuple[str, ...] | None]
_CHECKS: Mapping[str, tuple[_Check, str]] = MappingProxyType(
    {
        "address": (_word, "an address or a name"),
        "user": (_word, "a user name"),
        "port": (_port, "a port number"),
        "key": (_paths, "the path of a key file, or a list of them"),
        "jump": (_words, "a host to go through, or a list of them"),
        "private_address": (_word, "an address or a name"),
        "lease_dir": (_directory, "an absolute path, or one that begins with ~/"),
        "type": (_word, "the name of a machine type"),
        "tags": (_words, "a list of words"),
        "ssh_config": (_path, "the path of a file"),
        "known_hosts": (_path, "the path of a file"),
    }
)


def _section(text: str, name: str) -> tuple[int, int] | None:
    """First line (counted from 0) and the line after the last of `[hosts.NAME]`; None where it has no header."""
    lines = text.split("\n")
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    for place, number in enumerate(headers):
        if _header_path(lines[number]) != ["hosts", name]:
            continue
        end = headers[place + 1] if place + 1 < len(headers) else len(lines)
        if end < len(lines):
            while end > number + 1 and lines[end - 1].lstrip().startswith("#"):
                end -= 1  # comments right above the next header are about the next
        return number, end
    return None


def _header_path(line: str) -> list[str]:
    """`[hosts."a.b"]` → ["hosts", "a.b"], read by the TOML parser itself; [] for what is no header."""
    try:
        document: object = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return []
    keys = []
    while isinstance(document, dict) and len(document) == 1:
        [(key, document)] = document.items()
        keys.append(key)
    return keys


def _line_of(text: str, key: str, section: tuple[int, int] | None = None) -> int:
    """The line (counted from 1) that sets `key`; the section's first where it cannot be told."""
    lines = text.split("\n")
    first, last = section or (0, len(lines))
    setting = re.compile(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[=.\]]""")
    found = (number for number in range(first, last) if setting.match(lines[number]))
    return next(found, first) + 1


def _without(text: str, name: str) -> str:
    """The text without a host's table and the comments right above it (but never the head of the file)."""
    section = _section(text, name)
    if section is None:
        return text
    first, end = section
    lines = text.split("\n")
    top = first
    while top > 0 and lines[top - 1].lstrip().startswith("#"):
        top -= 1
    if top > 0:
        first = top
    kept = "\n".join(lines[:first] + lines[end:])
    return kept.rstrip("\n") + "\n" if kept.strip() else ""
