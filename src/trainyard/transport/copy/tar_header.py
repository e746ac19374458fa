"""Reads one header of a tar stream, with the records of long names and attributes before it. Any deviation from the
format is an InvalidError, because the stream comes from a machine that is not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainyard.lib.errors import InvalidError

NO_ARCHIVE = "the machine sent something that is no archive"
RECORDS = b"LKxg"  # kinds of members that only describe the next one
LARGEST = 2**63 - 1
LATEST = 2**34  # seconds: the year 2514, which every file system here can store or clip
_CONTENT = b"07\0" + RECORDS
_OCTAL = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_DECIMAL = re.compile(rb"([0-9]{1,19})")
_TIME = re.compile(rb"(-?[0-9]{1,15})(?:\.[0-9]*)?")
_LENGTH = re.compile(rb"([1-9][0-9]{0,6}) ")


class Member:
    """One header, with the long names and attributes that came before it."""

    def __init__(self, header: bytes, long: Mapping[str, bytes]) -> None:
        if _octal(header[148:156]) != sum(header[:148]) + sum(header[156:]) + 256:
            raise InvalidError(NO_ARCHIVE)
        self.kind = header[156:157]
        name = _text(header[:100])
        if header[257:263] == b"ustar\0" and header[345] and self.kind not in RECORDS:
            name = _text(header[345:500]) + b"/" + name
        self.name = long.get("path", name)
        self.link = long.get("linkpath", _text(header[157:257]))
        self.mode = _number(header[100:108]) & 0o777
        self.size = 0
        if self.kind in _CONTENT:
            self.size = int(_found(_DECIMAL, long["size"])) if "size" in long else _number(header[124:136])
        if not 0 <= self.size <= LARGEST:
            raise InvalidError(NO_ARCHIVE)
        time = int(_found(_TIME, long["mtime"])) if "mtime" in long else _number(header[136:148])
        self.mtime = max(-LATEST, min(time, LATEST))

    @property
    def clean_name(self) -> bytes:
        """Without dots and slashes that mean nothing."""
        return clean(self.name)


def clean(name: bytes) -> bytes:
    """Without dots and slashes that mean nothing."""
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def remember(kind: bytes, text: bytes, long: dict[str, bytes]) -> None:
    """Take a record of `kind` into account for the member that follows it."""
    if kind == b"L":
        long["path"] = _text(text)
    elif kind == b"K":
        long["linkpath"] = _text(text)
    elif kind == b"x":
        at = 0
        while at < len(text):
            found = _LENGTH.match(text, at)
            end = at + int(found[1]) if found else 0
            if found is None or not found.end() < end <= len(text):
                raise InvalidError(NO_ARCHIVE)
            key, _, value = text[found.end() : end - 1].partition(b"=")
            if key in (b"path", b"linkpath", b"size", b"mtime"):
                long[key.decode()] = value
            at = end


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # GNU's binary form for what eleven octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:  # the same for times before 1970
        return int.from_bytes(field, "big", signed=True) if len(field) == 12 else 0
    return _octal(field)


def _octal(field: bytes) -> int:
    return int(_found(_OCTAL, field) or b"0", 8)


def _found(shape: re.Pattern[bytes], text: bytes) -> bytes:
    match = shape.fullmatch(text)
    if match is None:
        raise InvalidError(NO_ARCHIVE)
    return bytes(match[1])
