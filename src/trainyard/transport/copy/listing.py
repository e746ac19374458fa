"""Lists the files of a download on the machine: one file, a folder with its tree, or the matches of a pattern.

The machine may lie. Its answer is checked field by field, and a match must fit the pattern component by component.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from trainyard.lib.errors import DeniedError, InvalidError, NotFoundError
from trainyard.lib.ids import new_id
from trainyard.transport.api import Transport
from trainyard.transport.copy.manifest import ROOT
from trainyard.transport.copy.script import compose
from trainyard.transport.copy.send import printable

MOST_BYTES = 512 * 1024 * 1024  # of a listing: five million files with names of a hundred characters
MOST_ENTRIES = 5_000_000  # each takes about 300 bytes here
WILDCARDS = "*?["

_LINE = re.compile(
    rb"([A-Za-z?]) ([0-7]{1,6}) ([0-9]{1,18}) (-?[0-9]{1,11})(?:\.([0-9]*))? (\.|\./.+)", re.DOTALL
)
_ROUGH = re.compile(rb"rough (file|folder) ([0-9]{1,15})")
_KINDS = (b"file", b"folder")


class Remote(NamedTuple):
    """A file, folder or link on the machine."""

    name: bytes
    kind: bytes
    mode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Listing:
    """The machine's answer. `matches` is set only for a pattern."""

    kind: str
    entries: Sequence[Remote] = ()
    matches: Sequence[bytes] | None = None
    rough_size: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether sizes and times are known. A machine without GNU find cannot report them."""
        return bool(self.entries)


async def list_source(transport: Transport, source: bytes, *, pattern: bool) -> Listing:
    """Ask the machine about `source`. NotFoundError where there is nothing."""
    mark = new_id("trainyard-")
    script = compose("listing.sh", mark=mark, source=source, pattern=int(pattern))
    completed = await transport.run(script)
    line, _, rest = completed.stdout.partition(mark.encode() + b" ")[2].partition(b"\n")
    shown = os.fsdecode(source.removeprefix(b"./"))
    if not line:
        reason = printable(completed.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        raise DeniedError(f"{shown!r} on the machine cannot be looked into: {reason}")
    if line == b"missing":
        raise NotFoundError(
            f"{shown!r} does not exist on the machine", hint="Relative paths start at its home."
        )
    if line == b"matches" and pattern:
        return Listing("", matches=[match for match in rest.split(b"\0") if match])
    if rough := _ROUGH.fullmatch(line):
        return Listing(rough[1].decode(), rough_size=int(rough[2]) * 1024)
    if line not in _KINDS:
        raise strange(shown)
    entries = [_remote(text, shown) for text in _lines(rest, shown)]
    if line == b"file" and [entry.name for entry in entries] != [ROOT]:
        raise strange(shown)
    return Listing(line.decode(), entries)


def strange(shown: str) -> InvalidError:
    """Return the error for an answer that our script never gives."""
    return InvalidError(
        f"the machine's answer about {shown!r} cannot be understood",
        hint="Look at the machine; it does not do what it was told.",
    )


def fits(pattern: bytes, match: bytes) -> bool:
    """Return whether the pattern can match this name. A hostile machine could name any other file."""
    wanted = [part for part in pattern.split(b"/") if part]
    found = [part for part in match.split(b"/") if part]
    return (
        len(wanted) == len(found)
        and pattern.startswith(b"/") == match.startswith(b"/")
        and all(_part_fits(*pair) for pair in zip(wanted, found, strict=True))
    )


def _part_fits(pattern: bytes, name: bytes) -> bool:
    if pattern == name:
        return True
    if name in (b".", b"..") or not any(char in os.fsdecode(pattern) for char in WILDCARDS):
        return False
    if name.startswith(b".") and not pattern.startswith(b"."):
        return False
    return fnmatchcase(name, pattern.replace(b"[^", b"[!"))


def _lines(packed: bytes, shown: str) -> Iterator[bytes]:
    """Yield the lines of a gzipped answer, and refuse one that is too long."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        text = unpacker.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise strange(shown) from error
    if unpacker.unconsumed_tail or text.count(b"\0") > MOST_ENTRIES:
        raise InvalidError(
            f"{shown!r} has more files than one download can bring ({MOST_ENTRIES:,} at most)",
            hint="Download its folders one by one, or pack it on the machine first.",
        )
    if not unpacker.eof or not text.endswith(b"\0"):
        raise strange(shown)
    return iter(text[:-1].split(b"\0"))


def _remote(line: bytes, shown: str) -> Remote:
    found = _LINE.fullmatch(line)
    if found is None:
        raise strange(shown)
    kind, mode, size, seconds, fraction, name = found.groups()
    mtime_ns = int(seconds) * 1_000_000_000 + int((fraction or b"")[:9].ljust(9, b"0"))
    return Remote(name.removeprefix(b"./"), kind, int(mode, 8), int(size), mtime_ns)
