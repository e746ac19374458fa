"""Compares an upload with the files that a machine has, in one request. If nothing differs, the answer is one word."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import re
import stat
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from trainyard.lib.errors import ConflictError, DeniedError, InvalidError
from trainyard.lib.ids import new_id
from trainyard.transport.api import Transport
from trainyard.transport.copy.api import CopyOptions
from trainyard.transport.copy.blocks import MOST_BYTES, SMALLEST_FILE, Blocks, decode, has_blocks
from trainyard.transport.copy.delta import Delta, compare
from trainyard.transport.copy.manifest import ROOT, Manifest, ManifestEntry, part_stem
from trainyard.transport.copy.payload import Payload
from trainyard.transport.copy.script import compose
from trainyard.transport.copy.send import printable

TREE, INTO, FILE = "tree", "into", "file"
_MODE = re.compile(rb"[0-9a-f]{1,8}")
_STAMP = re.compile("[0-9]{1,25}")


@dataclass
class Plan:
    """The sources and the target of one upload, the same for every machine. `target` is from `script.machine_path`."""

    manifest: Manifest
    kind: str
    target: bytes
    key: str
    options: CopyOptions

    @property
    def base(self) -> bytes:
        """The folder that names in the manifest are relative to."""
        if self.kind != FILE:
            return self.target
        return self.target.rpartition(b"/")[0] or b"/"

    @property
    def shown_target(self) -> str:
        """The target as messages show it."""
        return os.fsdecode(self.target.removeprefix(b"./"))

    @cached_property
    def empty_folders(self) -> list[bytes]:
        """Empty folders. The shell checks them one by one and reads their names by line."""
        return [name for name in self.manifest.empty_folders() if b"\n" not in name]

    @cached_property
    def folders_hash(self) -> str:
        """The hash of the folders in the stamp. Equal folders are not sent again."""
        return self.manifest.folders_hash()

    @property
    def stamp(self) -> str:
        """The stamp that a machine keeps when it has all files."""
        return f"{self.manifest.scanned_ns} {self.folders_hash}"

    def question(self, names: Iterable[bytes]) -> bytes:
        """Return the standard input of the survey script: folders by line, then names, gzipped."""
        lines = b"".join(folder + b"\n" for folder in self.empty_folders)
        return lines + gzip.compress(b"\0".join(names), 1)

    @cached_property
    def common_question(self) -> bytes:
        """About everything; the same for every machine. Parts of large files are asked about as well."""
        parts = (part_name(entry) for entry in self.manifest.files if entry.is_large)
        return self.question([*(entry.name for entry in self.manifest.files), *parts])

    @cached_property
    def longest_answer(self) -> int:
        """The most bytes that an honest machine lists: a line or a hash for each file and its part."""
        return 1024 + sum(2 * len(entry.name) + 512 for entry in self.manifest.files)

    @cached_property
    def digests(self) -> dict[str, str]:
        """Hashes of what a machine lists whose files equal ours, by what ends a line there."""
        lines = [entry.line() for entry in self.manifest.files]
        return {
            "expected_gnu": hashlib.sha256(b"".join(line + b"\0" for line in lines)).hexdigest(),
            "expected_lines": hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest(),
        }

    def parse(self, listing: bytes, flavour: str) -> _Listed:
        """Parse a machine's answer. Machines with the same files give the same answer, which is parsed once."""
        if listing not in self._listings:
            self._listings[listing] = _parse_listing(listing, flavour)
        return self._listings[listing]

    @cached_property
    def _listings(self) -> dict[bytes, _Listed]:
        return {}

    def parse_blocks(self, data: bytes) -> Mapping[bytes, Blocks]:
        """Parse the checksums that a machine keeps of the last upload. Equal checksums give the same object."""
        if data not in self._blocks:
            self._blocks[data] = decode(data)
        return self._blocks[data]

    @cached_property
    def _blocks(self) -> dict[bytes, Mapping[bytes, Blocks]]:
        return {}

    async def deltas(self, pairs: Sequence[tuple[ManifestEntry, Blocks]]) -> dict[bytes, Delta]:
        """Return the changed blocks of files since the state that `Blocks` describes, if sending them is worth it."""
        async with self._hashing:
            new = [(entry, base) for entry, base in pairs if (entry.name, base) not in self._deltas]
            compared = await asyncio.gather(*[asyncio.to_thread(compare, *pair) for pair in new])
            for (entry, base), delta in zip(new, compared, strict=True):
                self._deltas[entry.name, base] = delta
        found = {entry.name: self._deltas[entry.name, base] for entry, base in pairs}
        return {name: delta for name, delta in found.items() if delta.is_worth_it}

    @cached_property
    def _deltas(self) -> dict[tuple[bytes, Blocks], Delta]:
        return {}

    async def content_hashes(self, entries: Sequence[ManifestEntry]) -> list[str]:
        """Hashes of local files, each computed once however many machines are compared with it."""
        async with self._hashing:
            missing = [entry for entry in entries if entry.name not in self._hashes]
            self._hashes |= await asyncio.to_thread(_hash_all, missing)
        return [self._hashes[entry.name] for entry in entries]

    @cached_property
    def _hashes(self) -> dict[bytes, str]:
        return {}

    @cached_property
    def _hashing(self) -> asyncio.Lock:
        return asyncio.Lock()


def _hash_all(entries: Sequence[ManifestEntry]) -> dict[bytes, str]:
    return {entry.name: Payload(entry.path, 0, entry.size).sha256() for entry in entries}


@dataclass(frozen=True)
class Findings:
    """The files that one machine lacks. `inside`: the target is a folder there, so another plan is needed.

    `is_verified`: contents were compared, so the machine's stamp may be renewed. `deltas`: the files of which the
    machine has an older version; `known`: the checksums that the machine keeps.
    """

    files: Sequence[ManifestEntry] = ()
    folders: Sequence[ManifestEntry] = ()
    parts: dict[bytes, int] = field(default_factory=dict)
    inside: bool = False
    is_verified: bool = False
    deltas: Mapping[bytes, Delta] = field(default_factory=dict)
    known: Mapping[bytes, Blocks] = field(default_factory=dict)


def part_name(entry: ManifestEntry) -> bytes:
    """Return the name of the partial file in which a large file grows, beside its final name."""
    folder, slash, leaf = entry.name.rpartition(b"/")
    return folder + slash + part_stem(leaf) + part_signature(entry).encode()


def part_signature(entry: ManifestEntry) -> str:
    """Return a signature of a large file, made from its size, time and path."""
    text = b"%d %d %s" % (entry.size, entry.mtime_ns, entry.path)
    return hashlib.sha256(text).hexdigest()[:16]


async def survey(machine: str, transport: Transport, plan: Plan) -> Findings:
    """Ask `machine` which files of the plan it has."""
    answer = await _ask(machine, transport, plan, want="differences")
    if "inside" in answer.words:
        return Findings(inside=True)
    if "obstacle" in answer.words:
        raise ConflictError(
            f"{plan.shown_target!r} on {machine} is in the way: it is, or goes through, something that is no folder",
            hint="Name another target, or remove it there first.",
        )
    if "absent" in answer.words:
        return Findings(plan.manifest.files, plan.manifest.folders)
    # A folder that was there before keeps its mode; /tmp is an example.
    below = [folder for folder in plan.manifest.folders if folder.name != ROOT]
    if "bad" in answer.words:
        return Findings(plan.manifest.files, below)
    since, folders_hash = answer.stamp
    racy = [entry for entry in plan.manifest.files if since and entry.is_racy(since)]
    if plan.options.dont_overwrite:
        racy = []
    is_same = folders_hash == plan.folders_hash and "incomplete" not in answer.words
    folders = [] if is_same else below
    if "same" in answer.words:
        files, blocks = await _different(machine, transport, plan, racy)
        known = plan.parse_blocks(blocks)
        older = _older(files, {entry.name: (entry.size, entry.mtime) for entry in files}, known)
        deltas = await plan.deltas(older)
        return Findings(files, folders, is_verified=bool(racy), deltas=deltas, known=known)
    listed = plan.parse(answer.listing, answer.flavour)
    equal = [entry for entry in racy if entry.line() in listed.lines]
    differing, _ = await _different(machine, transport, plan, equal)
    files = _lacking(plan, listed, {entry.name for entry in differing})
    if any(entry.name not in listed.sizes for entry in files):
        folders = below  # whole folders may be missing, and with them their modes
    parts = _parts(files, listed)
    known = plan.parse_blocks(answer.blocks)
    older = _older([entry for entry in files if entry.name not in parts], listed.large, known)
    deltas = await plan.deltas(older)
    return Findings(files, folders, parts, is_verified=bool(racy), deltas=deltas, known=known)


async def _different(
    machine: str, transport: Transport, plan: Plan, racy: list[ManifestEntry]
) -> tuple[list[ManifestEntry], bytes]:
    """Hash the contents of these files there and here, and return those that differ.

    Also returns the checksums of blocks that the machine keeps.
    """
    files = [entry for entry in racy if stat.S_ISREG(entry.mode)]
    if not files:
        return racy, b""
    question = plan.question(entry.name for entry in files)
    asking = _ask(machine, transport, plan, want="hashes", question=question)
    answer, ours = await asyncio.gather(asking, plan.content_hashes(files))
    # A name with a newline is escaped, and its line begins with a backslash. A file that cannot be read has no line.
    theirs = [line.lstrip(b"\\")[:64].decode() for line in answer.listing.splitlines()]
    if len(theirs) != len(files):
        return racy, answer.blocks
    equal = {entry.name for entry, here, there in zip(files, ours, theirs, strict=True) if here == there}
    return [entry for entry in racy if entry.name not in equal], answer.blocks


def _lacking(plan: Plan, listed: _Listed, changed: set[bytes]) -> list[ManifestEntry]:
    if plan.options.dont_overwrite:
        return [entry for entry in plan.manifest.files if entry.name not in listed.sizes]
    return [
        entry for entry in plan.manifest.files if entry.line() not in listed.lines or entry.name in changed
    ]


def _older(
    files: Iterable[ManifestEntry], large: Mapping[bytes, tuple[int, int]], known: Mapping[bytes, Blocks]
) -> list[tuple[ManifestEntry, Blocks]]:
    """Return the files that are unchanged since the last upload, with their blocks.

    `large` has the sizes and times of large files on the machine.
    """
    pairs = []
    for entry in files if known else ():
        blocks = known.get(entry.name)
        if blocks and has_blocks(entry) and large.get(entry.name) == (blocks.size, blocks.mtime):
            pairs.append((entry, blocks))
    return pairs


def _parts(files: Sequence[ManifestEntry], listed: _Listed) -> dict[bytes, int]:
    """Return the size of each partial file there. Only plain files count."""
    parts = {entry.name: listed.large.get(part_name(entry)) for entry in files if entry.is_large}
    return {name: part[0] for name, part in parts.items() if part}


@dataclass(frozen=True)
class _Listed:
    """The files that a machine has, of those in the question. `large`: sizes and times of files that have blocks."""

    lines: set[bytes]
    sizes: dict[bytes, int]
    large: dict[bytes, tuple[int, int]]


def _parse_listing(listing: bytes, flavour: str) -> _Listed:
    lines = set(listing.split(b"\n" if flavour == "lines" else b"\0"))
    sizes = {}
    large = {}
    for line in lines:
        fields = line.split(b" ", 3)
        if len(fields) == 4 and fields[1].isdigit() and _MODE.fullmatch(fields[0]):
            size = sizes[fields[3]] = int(fields[1])
            if size >= SMALLEST_FILE and stat.S_ISREG(int(fields[0], 16)) and fields[2].isdigit():
                large[fields[3]] = (size, int(fields[2]))
    return _Listed(lines, sizes, large)


@dataclass(frozen=True)
class _Answer:
    words: dict[str, list[str]]
    listing: bytes
    blocks: bytes = b""

    @property
    def stamp(self) -> tuple[int, str]:
        """When the client scanned for the last upload, and the hash of its folders; (0, '') where unknown."""
        fields = self.words.get("stamp", [])
        if not fields or not _STAMP.fullmatch(fields[0]):
            return 0, ""
        return int(fields[0]), fields[1] if len(fields) > 1 else ""

    @property
    def flavour(self) -> str:
        return self.words.get("listing", [""])[0]


async def _ask(
    machine: str, transport: Transport, plan: Plan, *, want: str, question: bytes | None = None
) -> _Answer:
    mark = new_id("trainyard-")
    script = compose(
        "compare.sh",
        mark=mark,
        kind=plan.kind,
        target=plan.target,
        key=plan.key,
        folders=len(plan.empty_folders),
        want=want,
        **plan.digests,
    )
    completed = await transport.run(script, stdin=question or plan.common_question)
    try:
        answer = _parse(completed.stdout, mark.encode(), plan.longest_answer)
    except (zlib.error, ValueError) as error:
        raise InvalidError(
            f"the answer of {machine} about {plan.shown_target!r} cannot be understood",
            hint="Look at the machine; it does not do what it was told.",
        ) from error
    if not answer.words:
        reason = printable(completed.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        problem = f"{plan.shown_target!r} on {machine} cannot be looked into: {reason or completed.status}"
        if "ermission denied" in reason:
            raise DeniedError(problem, hint="Name a target that the user there may write.")
        raise InvalidError(problem, hint="Name another target, or look at the machine by ssh.")
    return answer


def _parse(output: bytes, mark: bytes, most: int) -> _Answer:
    """Parse an answer of at most `most` bytes. ValueError and zlib.error if our script cannot have printed it."""
    words: dict[str, list[str]] = {}
    start = output.find(mark)
    while start >= 0:
        line, _, rest = output[start:].partition(b"\n")
        _, word, *more = line.decode(errors="replace").split()
        words[word] = more
        if word == "listing":
            return _Answer(words, *_unzip(rest, most))
        output, start = rest, rest.find(mark)
    return _Answer(words, b"")


def _unzip(data: bytes, most: int) -> tuple[bytes, bytes]:
    """Unzip the listing; return it and the bytes after it."""
    if not data:
        return b"", b""
    unpacker = zlib.decompressobj(wbits=31)
    listing = unpacker.decompress(data, most)
    if unpacker.unconsumed_tail or len(unpacker.unused_data) > MOST_BYTES:
        raise ValueError("more than was asked for")
    return listing, unpacker.unused_data
