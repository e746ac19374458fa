"""Checksums of the blocks of large files. A machine keeps them after an upload, so the next one sends only changed blocks.

A machine assembles a file of its old blocks and our new ones and checks it by a hash of the whole (`delta.py`). So a
checksum that is wrong or out of date only costs a second transfer.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography.hazmat.primitives.poly1305 import Poly1305

from trainyard.transport.copy.manifest import ManifestEntry

SMALLEST_FILE = 1024 * 1024  # below this a file is sent as quickly as it is compared
SMALLEST_BLOCK = 128 * 1024
MOST_BLOCKS = 1024  # of one file; larger files have larger blocks
MOST_BYTES = 4 * 1024 * 1024  # of all sums; trees with more are sent by whole files
MAGIC = b"trainyard blocks 2\n"
_KEY = bytes(range(1, 33))  # any will do: Poly1305 is here for its speed, three times that of CRC-32
_HEAD = struct.Struct(">QQQH")


class Blocks(NamedTuple):
    """One file as it was when it was sent. `sums` has four bytes for each block."""

    size: int
    mtime: int
    block: int
    sums: bytes


def block_size(size: int) -> int:
    """How a file of `size` bytes is cut; a power of two."""
    block = SMALLEST_BLOCK
    while block * MOST_BLOCKS < size:
        block *= 2
    return block


def block_count(size: int, block: int) -> int:
    """How many there are; the last may be short."""
    return -(-size // block)


def has_blocks(entry: ManifestEntry) -> bool:
    """Whether sums are kept of a file."""
    return entry.size >= SMALLEST_FILE and stat.S_ISREG(entry.mode)


class BlockSummer:
    """Sums of one file, block by block."""

    def __init__(self, descriptor: int, block: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray(block)
        self._view = memoryview(self._buffer)
        self.sums = bytearray()

    def take(self, offset: int, length: int) -> int:
        """Add the block at `offset`; returns how much of it could be read."""
        done = 0
        while done < length and (
            count := os.preadv(self._descriptor, [self._view[done:length]], offset + done)
        ):
            done += count
        self.sums += Poly1305.generate_tag(_KEY, self._view[:done])[:4]
        return done


def sum_file(entry: ManifestEntry, block: int) -> bytes:
    """The sums of a local file. Blocking, 0.2 s a gigabyte. Empty where it cannot be read."""
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # sending it says why
        return b""
    try:
        summer = BlockSummer(descriptor, block)
        for offset in range(0, entry.size, block):
            summer.take(offset, min(block, entry.size - offset))
        return bytes(summer.sums)
    finally:
        os.close(descriptor)


def encode(files: Iterable[tuple[bytes, Blocks]]) -> bytes:
    """Encode checksums as a machine keeps them; b'' if there are none."""
    records = [
        _HEAD.pack(blocks.size, blocks.mtime, blocks.block, len(name)) + name + blocks.sums
        for name, blocks in files
    ]
    return MAGIC + b"".join(records) if records else b""


def decode(data: bytes) -> dict[bytes, Blocks]:
    """Decode the bytes of `encode`. Damaged or foreign bytes give an empty result."""
    found: dict[bytes, Blocks] = {}
    if not data.startswith(MAGIC):
        return found
    at = len(MAGIC)
    while at + _HEAD.size <= len(data):
        size, mtime, block, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if block != block_size(size):  # not what we keep; and a block is as much memory
            return {}
        space = 4 * block_count(size, block)
        name, sums = data[at : at + length], data[at + length : at + length + space]
        at += length + space
        found[name] = Blocks(size, mtime, block, sums)
    return found if at == len(data) else {}


@dataclass
class Ledger:
    """The checksums that an upload leaves on a machine: of unchanged files and of files that it sends.

    Its length is known before the checksums of the sent files are.
    """

    kept: Mapping[bytes, Blocks]
    coming: Mapping[bytes, ManifestEntry]
    _found: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Of `encoded`."""
        spaces = [_HEAD.size + len(name) + len(blocks.sums) for name, blocks in self.kept.items()]
        spaces += [
            _HEAD.size + len(name) + 4 * block_count(entry.size, block_size(entry.size))
            for name, entry in self.coming.items()
        ]
        return len(MAGIC) + sum(spaces) if spaces else 0

    def note(self, entry: ManifestEntry, sums: bytes) -> None:
        """These are the sums of a file that was sent."""
        self._found[entry.name] = sums

    def encoded(self) -> bytes:
        """For the machine. Files whose sums nobody noted are read now. Blocking."""
        return encode([*self.kept.items(), *self._coming()])

    def _coming(self) -> Iterator[tuple[bytes, Blocks]]:
        for name, entry in self.coming.items():
            block = block_size(entry.size)
            space = 4 * block_count(entry.size, block)
            sums = self._found.get(name)
            if sums is None:
                sums = self._found[name] = sum_file(entry, block)
            yield name, Blocks(entry.size, entry.mtime, block, sums[:space].ljust(space, b"\0"))


def make_ledger(
    files: Iterable[ManifestEntry], sent: Iterable[ManifestEntry], known: Mapping[bytes, Blocks]
) -> Ledger | None:
    """For an upload that sends `sent` of `files` to machines that keep `known`; None where it would be too long."""
    coming = {entry.name: entry for entry in sent if has_blocks(entry)}
    kept = {}
    if known:
        for entry in files:
            blocks = known.get(entry.name) if entry.name not in coming else None
            if blocks is not None and (blocks.size, blocks.mtime) == (entry.size, entry.mtime):
                kept[entry.name] = blocks
    ledger = Ledger(kept, coming)
    return ledger if ledger.length <= MOST_BYTES else None
