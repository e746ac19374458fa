"""Writes tar archives quickly: 0.05 s for 5,000 small files, for which `tarfile` takes 0.5 s.

Plain ustar headers; names and links that do not fit travel in GNU's long-name records, which GNU tar, BusyBox and
libarchive read alike and which hold any bytes. Owners are left out: files belong to the user who unpacks them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from zlib import adler32

from trainyard.lib.errors import DeniedError
from trainyard.transport.copy.blocks import BlockSummer, Ledger, block_size, has_blocks
from trainyard.transport.copy.manifest import ROOT, ManifestEntry

BLOCK = 512
END = bytes(2 * BLOCK)
SEGMENT = 128 * 1024 * 1024  # an archive holds about this much, so that memory stays bounded
READ_WHOLE = 256 * 1024  # smaller files go through our buffers; for larger ones the kernel copies
BATCH = 1000  # writev takes 1,024 pieces
LARGEST_OCTAL = 8**11 - 1
_PADDING = bytes(BLOCK)
_LONG_NAME, _LONG_LINK = b"L", b"K"


@dataclass(frozen=True, slots=True)
class Segment:
    """One archive: what goes into it, and how long it will be. `tail` makes the content of the end mark."""

    entries: Sequence[ManifestEntry]
    length: int
    tail: Callable[[], bytes] = bytes


def segments(entries: Sequence[ManifestEntry], *, limit: int = SEGMENT) -> Iterator[Segment]:
    """Cut entries into archives of about `limit` bytes each."""
    held: list[ManifestEntry] = []
    length = 0
    for entry in entries:
        size = _space(entry)
        if held and length + size > limit:
            yield Segment(held, length + len(END))
            held, length = [], 0
        held.append(entry)
        length += size
    if held:
        yield Segment(held, length + len(END))


def end_mark(name: bytes, size: int = 0) -> ManifestEntry:
    """A file of ours that comes last: an archive that was cut between two members lacks it."""
    return ManifestEntry(name, b"", stat.S_IFREG | 0o600, size, 0, 0, 0, b"")


def ended(segment: Segment, name: bytes, ledger: Ledger | None = None) -> Segment:
    """Return the segment with an end mark, which holds the ledger's checksums."""
    mark = end_mark(name, ledger.length if ledger else 0)
    length = segment.length + BLOCK + mark.size + -mark.size % BLOCK
    return Segment([*segment.entries, mark], length, ledger.encoded if ledger else bytes)


def pack(segment: Segment, descriptor: int, notes: list[str], ledger: Ledger | None = None) -> int:
    """Write the archive and return its length: the announced one, unless files changed meanwhile.

    The ledger collects the checksums of the files.

    A file that vanished since the scan is left out, one that grew is cut, and a large one that shrank is filled with zeros.
    A note says so, and its new time makes the next upload send it again. DeniedError if a file cannot be read.
    """
    pieces: list[bytes] = []
    written = 0
    for entry in segment.entries:
        if not entry.size or not stat.S_ISREG(entry.mode):
            pieces.append(_header(entry))
        elif not entry.path:
            pieces += (_header(entry), segment.tail(), _PADDING[: -entry.size % BLOCK])
        elif entry.size <= READ_WHOLE:
            _append_small(entry, pieces, notes)
        else:
            written += _flush(descriptor, pieces)
            written += _send(entry, descriptor, notes, ledger)
        if len(pieces) > BATCH - 4:
            written += _flush(descriptor, pieces)
    pieces.append(END)
    return written + _flush(descriptor, pieces)


def _space(entry: ManifestEntry) -> int:
    if len(entry.name) < 100 and not entry.link:
        return BLOCK + (entry.size + -entry.size % BLOCK if stat.S_ISREG(entry.mode) else 0)
    size = entry.size if stat.S_ISREG(entry.mode) else 0
    return len(_header(entry)) + size + -size % BLOCK


def _header(entry: ManifestEntry) -> bytes:
    name, kind = entry.name, b"0"
    if len(name) <= 100 and stat.S_ISREG(entry.mode) and entry.size <= LARGEST_OCTAL:
        return _plain(name, entry.mode & 0o7777, entry.size, entry.mtime)
    if stat.S_ISDIR(entry.mode):
        name, kind = (b"./" if name == ROOT else name + b"/"), b"5"
    elif stat.S_ISLNK(entry.mode):
        kind = b"2"
    records = b""
    prefix = b""
    if len(name) > 100:
        prefix, name = _split(name)
        if len(name) > 100:
            records += _long_record(_LONG_NAME, name)
            name = name[:100]
    link = entry.link
    if len(link) > 100:
        records += _long_record(_LONG_LINK, link)
        link = link[:100]
    size = entry.size if kind == b"0" else 0
    return records + _block(name, entry.mode & 0o7777, size, entry.mtime, kind, link, prefix)


def _plain(name: bytes, mode: int, size: int, mtime: int) -> bytes:
    """The header of nearly every file, in a quarter of the time."""
    head = b"%b%b%07o\x000000000\x000000000\x00%011o\x00%011o\x00" % (
        name,
        _PADDING[: 100 - len(name)],
        mode,
        size,
        mtime,
    )
    # Adler-32's lower half is one plus the sum of the bytes, as long as that is below 65,521: 100 bytes of a name and
    # 48 digits cannot reach it.
    return b"%b%06o\x00 %b" % (head, (adler32(head) & 0xFFFF) - 1 + _PLAIN_SUM, _PLAIN_TAIL)


def _split(name: bytes) -> tuple[bytes, bytes]:
    """Ustar stores a long path in two fields, cut at a slash; (b'', name) where no cut fits."""
    cut = name.rfind(b"/", 0, min(156, len(name) - 1))
    if cut <= 0 or len(name) - cut - 1 > 100:
        return b"", name
    return name[:cut], name[cut + 1 :]


def _long_record(kind: bytes, text: bytes) -> bytes:
    size = len(text) + 1
    return _block(b"././@LongLink", 0o644, size, 0, kind, b"", b"") + text + bytes(1 + -size % BLOCK)


def _block(name: bytes, mode: int, size: int, mtime: int, kind: bytes, link: bytes, prefix: bytes) -> bytes:
    # Sizes from 8 GiB on do not fit into eleven octal digits: GNU's binary form.
    length = b"%011o\0" % size if size <= LARGEST_OCTAL else b"\x80" + size.to_bytes(11, "big")
    head = (
        name + bytes(100 - len(name)) + b"%07o\x000000000\x000000000\x00%b%011o\x00" % (mode, length, mtime)
    )
    tail = kind + link + bytes(100 - len(link)) + b"ustar\x0000"
    checksum = sum(head) + sum(tail) + sum(prefix) + 256  # the field itself counts as eight spaces
    return b"%b%06o\x00 %b%b%b" % (head, checksum, tail, _OWNER, prefix + bytes(167 - len(prefix)))


_OWNER = bytes(80)  # user and group names, device numbers: none
_PLAIN_TAIL = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
_PLAIN_SUM = sum(_PLAIN_TAIL) + 256


def _append_small(entry: ManifestEntry, pieces: list[bytes], notes: list[str]) -> None:
    descriptor = _open(entry, notes)
    if descriptor < 0:
        return
    size = entry.size
    try:
        content = os.read(descriptor, size + 1)
        while len(content) < size and (more := os.read(descriptor, size - len(content))):
            content += more
    finally:
        os.close(descriptor)
    if len(content) != size:
        notes.append(_changed(entry))
        content = content[:size]
        size = len(content)
        entry = entry._replace(size=size)
    pieces += (_header(entry), content, _PADDING[: -size % BLOCK])


def _send(entry: ManifestEntry, target: int, notes: list[str], ledger: Ledger | None) -> int:
    """Header and content, copied within the kernel, padded to the announced size and to a whole block."""
    source = _open(entry, notes)
    if source < 0:
        return 0
    header = _header(entry)
    try:
        os.write(target, header)
        if ledger is not None and has_blocks(entry):
            done = _copy_summed(entry, source, target, ledger)
        else:
            done = _copy(source, target, 0, entry.size)
        if done < entry.size or os.fstat(source).st_size != entry.size:
            notes.append(_changed(entry))
    finally:
        os.close(source)
    whole = entry.size + -entry.size % BLOCK
    while done < whole:
        done += os.write(target, bytes(min(whole - done, READ_WHOLE)))
    return len(header) + whole


def _copy(source: int, target: int, start: int, end: int) -> int:
    """Copy within the kernel. Returns where it stopped, which is before `end` if the file is shorter by now."""
    while start < end and (count := os.sendfile(target, source, start, end - start)):
        start += count
    return start


def _copy_summed(entry: ManifestEntry, source: int, target: int, ledger: Ledger) -> int:
    block = block_size(entry.size)
    summer = BlockSummer(source, block)
    done = 0
    for start in range(0, entry.size, block):
        end = min(start + block, entry.size)
        summer.take(start, end - start)
        done = _copy(source, target, start, end)
        if done < end:
            break
    ledger.note(entry, bytes(summer.sums))
    return done


def _open(entry: ManifestEntry, notes: list[str]) -> int:
    """Open a file; -1 if it is gone or no longer a plain file, which the next scan will see."""
    try:
        return os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError as error:
        raise DeniedError(
            f"{os.fsdecode(entry.path)!r} cannot be read",
            hint="Make it readable, or list it in .trainyardignore to leave it behind.",
        ) from error
    except OSError:
        notes.append(f"{os.fsdecode(entry.path)!r} vanished during the upload")
        return -1


def _flush(descriptor: int, pieces: list[bytes]) -> int:
    total = sum(map(len, pieces))
    written = os.writev(descriptor, pieces) if pieces else 0
    while written < total:  # only where memory is short
        written += os.write(descriptor, b"".join(pieces)[written:])
    pieces.clear()
    return total


def _changed(entry: ManifestEntry) -> str:
    return f"{os.fsdecode(entry.path)!r} changed during the upload; the next upload sends it again"
