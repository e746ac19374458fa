"""Sends only the changed blocks of files of which a machine has an older version.

The machine copies its own file, inserts the blocks, and checks a hash of the whole before the file gets its name. If the
check fails, the caller sends the whole file.

The hashes come after the blocks, so that we compute them while the machine copies. There are two per file: sha256, which
every machine can compute, and Poly1305, which takes a third of the time if openssl knows it. Its key is random for each
delivery, so no file can be made to match. A difference escapes it with a probability of less than 2 to the -70.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from cryptography.hazmat.primitives.poly1305 import Poly1305

from trainyard.lib.errors import DeniedError, NotFoundError
from trainyard.transport.copy.blocks import Blocks, Ledger, block_count, block_size, sum_file
from trainyard.transport.copy.manifest import ManifestEntry, part_stem
from trainyard.transport.copy.payload import Payload

MOST_RUNS = 32  # the most runs of neighbouring blocks in one file; each is a process there
MOST_FILES = 100  # the most files in one delivery: their names are in its script
MOST_BYTES = 256 * 1024 * 1024  # the most bytes of files in one delivery

PROOF = 64 + 1 + 32 + 1  # sha256 and Poly1305, each with a separator
_CHUNK = 1024 * 1024


class Delta(NamedTuple):
    """The changes in a file since `base`: the numbers of its changed blocks of `base.block` bytes."""

    base: Blocks
    changed: tuple[int, ...]
    sums: bytes

    @property
    def is_worth_it(self) -> bool:
        """Whether sending the blocks is cheaper than sending the file."""
        count = len(self.sums) // 4
        return 2 * len(self.changed) <= count and len(runs(self.changed)) <= MOST_RUNS


def compare(entry: ManifestEntry, base: Blocks) -> Delta:
    """Compare a local file with its earlier checksums. Blocking."""
    sums = sum_file(entry, base.block)
    count = block_count(entry.size, base.block)
    if len(sums) != 4 * count:
        return Delta(base, tuple(range(count)), bytes(4 * count))
    changed = [at for at in range(count) if sums[4 * at : 4 * at + 4] != base.sums[4 * at : 4 * at + 4]]
    # The last block of a file that has grown or shrunk covers something else, even where its sum is the same.
    for size in {entry.size, base.size} if entry.size != base.size else ():
        last = (size - 1) // base.block
        if last < count and last not in changed:
            changed.append(last)
    return Delta(base, tuple(sorted(changed)), sums)


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Group neighbouring numbers: (first, count)."""
    found = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        found.append((members[0], len(members)))
    return found


@dataclass
class Patch:
    """The new blocks of several files, and the script that inserts them.

    Every block fills its whole space and the files with the largest blocks come first, so that each block begins at a
    multiple of its size: `dd` counts in blocks.
    """

    base: bytes
    files: Sequence[tuple[ManifestEntry, Delta]]
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def __post_init__(self) -> None:
        self.files = sorted(self.files, key=lambda pair: -pair[1].base.block)

    @property
    def length(self) -> int:
        """Bytes of blocks."""
        return sum(len(delta.changed) * delta.base.block for _, delta in self.files)

    @property
    def proofs(self) -> int:
        """Bytes of proofs."""
        return PROOF * len(self.files)

    def write(self, descriptor: int) -> int:
        """Write the blocks, then the proofs of the files as they are now. Blocking."""
        for entry, delta in self.files:
            block = delta.base.block
            for number in delta.changed:
                piece = _read(entry, number * block, min(block, entry.size - number * block))
                _write_all(descriptor, piece.ljust(block, b"\0"))
        for entry, _ in self.files:
            _write_all(descriptor, _proof(entry, self.key))
        return self.length + self.proofs

    def script(self) -> bytes:
        """The key, and shell functions: copy the old files, patch the copies, settle modes and times, name them."""
        copy, patch, place, names = [], [], [], []
        at = 0
        modes: dict[bytes, list[bytes]] = {}
        times: dict[bytes, list[bytes]] = {}
        for entry, delta in self.files:
            stem, final = _paths(self.base, entry)
            part = _quote(stem) + b'"$own"'
            copy.append(b"copy_file %s %s" % (_quote(final), part))
            if words := _patch_words(entry, delta, at):
                patch.append(b"patch_file %s %s" % (part, words))
            at += len(delta.changed) * delta.base.block
            place.append(b"place_file %s %s %s" % (part, _quote(final), _quote(stem)))
            names.append(part)
            modes.setdefault(b"%o" % (entry.mode & 0o7777), []).append(part)
            when = time.strftime("%Y%m%d%H%M.%S", time.gmtime(entry.mtime)).encode()
            times.setdefault(when, []).append(part)
        settle = [b"chmod %s %s" % (mode, b" ".join(parts)) for mode, parts in modes.items()]
        settle += [b"touch -t %s %s" % (when, b" ".join(parts)) for when, parts in times.items()]
        return (
            b"seal=%s\n" % self.key.hex().encode()
            + _function(b"copy_all", copy)
            + _function(b"patch_all", patch)
            + _function(b"settle_all", settle)
            + _function(b"place_all", place)
            + b'with_all() { "$@" %s; }\n' % b" ".join(names)
        )


def _paths(base: bytes, entry: ManifestEntry) -> tuple[bytes, bytes]:
    """Return the start of the names of a file's partial files, and the file's own name."""
    folder, _, leaf = entry.name.rpartition(b"/")
    where = base + b"/" + folder if folder else base
    return where + b"/" + part_stem(leaf), where + b"/" + leaf


def _patch_words(entry: ManifestEntry, delta: Delta, at: int) -> bytes:
    """The arguments of `patch_file` for blocks that begin at `at`; none where there is nothing to do."""
    block = delta.base.block
    skip = at // block
    words = []
    for first, count in runs(delta.changed):
        words.append(b"%d %d %d" % (skip, first, count))
        skip += count
    reach = max([delta.base.size, *((number + 1) * block for number in delta.changed[-1:])])
    if not words and reach == entry.size:
        return b""
    cut = b"%d" % entry.size if reach > entry.size else b"-"
    return b"%s %d %s" % (cut, block, b" ".join(words))


def _function(name: bytes, commands: Sequence[bytes]) -> bytes:
    return b"%s() {\n%s}\n" % (
        name,
        b"".join(b"%s || return 1\n" % command for command in commands) or b":\n",
    )


def _read(entry: ManifestEntry, start: int, length: int) -> bytes:
    """Read as much as possible. If it is less, the hash does not match, and sending the whole file reports the cause."""
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, length, start)
    finally:
        os.close(descriptor)


def _proof(entry: ManifestEntry, key: bytes) -> bytes:
    digest, seal = hashlib.sha256(), Poly1305(key)
    try:
        descriptor = Payload(entry.path, 0, entry.size).open()
    except (DeniedError, NotFoundError):  # as above
        return b"-" * (PROOF - 1) + b"\n"
    try:
        left = entry.size
        while left and (chunk := os.read(descriptor, min(left, _CHUNK))):
            digest.update(chunk)
            seal.update(chunk)
            left -= len(chunk)
    finally:
        os.close(descriptor)
    return f"{digest.hexdigest()} {seal.finalize().hex()}\n".encode()


def patches(base: bytes, files: Iterable[tuple[ManifestEntry, Delta]]) -> list[Patch]:
    """Split the files into deliveries of a reasonable size."""
    made: list[Patch] = []
    held: list[tuple[ManifestEntry, Delta]] = []
    size = 0
    for entry, delta in files:
        if held and (size + entry.size > MOST_BYTES or len(held) == MOST_FILES):
            made.append(Patch(base, held))
            held, size = [], 0
        held.append((entry, delta))
        size += entry.size
    return [*made, Patch(base, held)] if held else made


def write_patch(patch: Patch, ledger: Ledger | None, descriptor: int) -> int:
    """Write the blocks, the hashes, then the checksums that the machine keeps. Blocking."""
    length = patch.write(descriptor)
    if ledger is not None:
        for entry, delta in patch.files:
            if block_size(entry.size) == delta.base.block:
                ledger.note(entry, delta.sums)
        tail = ledger.encoded()
        _write_all(descriptor, tail)
        length += len(tail)
    return length


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _quote(name: bytes) -> bytes:
    return b"'" + name.replace(b"'", b"'\\''") + b"'"
