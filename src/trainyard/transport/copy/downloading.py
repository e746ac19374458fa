"""Files and folders from a machine: list them there, compare with what is here, bring the rest."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainyard.lib.errors import DeniedError, Error, InvalidError, NotFoundError
from trainyard.lib.ids import new_id
from trainyard.transport.api import Transport
from trainyard.transport.copy.api import DEFAULT_OPTIONS, CopyOptions, CopyReport, Progress
from trainyard.transport.copy.drain import drain
from trainyard.transport.copy.extraction import Extraction, ensure_parents, is_below
from trainyard.transport.copy.feed import last_complaint
from trainyard.transport.copy.ignore import Rules
from trainyard.transport.copy.manifest import LARGE, ROOT
from trainyard.transport.copy.part import Part
from trainyard.transport.copy.script import compose, machine_path

STALE = 3  # exit status of fetch.sh
CHANGED = 1  # exit status of GNU tar where files changed under its hands, of others where anything is wrong
CHANGES = ("changed as we read it", "removed before we read it", "shrank by")


async def download(
    transport: Transport,
    source: str,
    target: Path,
    *,
    options: CopyOptions = DEFAULT_OPTIONS,
    progress: Progress | None = None,
) -> CopyReport:
    """Copy a file or folder of the machine to `target`; what is here already, by size and time, does not travel.

    A relative source means the machine's home. A file becomes the target, or goes inside it where that is a folder. A
    folder becomes the target, merging with what is there, so that doing it again resumes; with `options.into`, or
    where the target is `.` or `..`, it goes inside. What a pattern matches goes inside. Parents are made.

    Nothing is ever written outside of the target. NotFoundError where the source is missing. Cancelling ends the far
    side and leaves no half file under its name; large files continue where they were cut.
    """
    meter = _Meter(progress, asyncio.get_running_loop())
    is_pattern = any(char in source for char in "*?[")
    listing = await _list(transport, machine_path(source), pattern=is_pattern)
    if listing.matches is None:
        into = options.into or str(target) in (".", "..") or (listing.kind == "file" and target.is_dir())
        name = os.fsdecode(machine_path(source).rpartition(b"/")[2])
        place = target / name if into else target
        works = [_Download(transport, machine_path(source), place, options, meter, listing)]
    else:
        if not listing.matches:
            raise NotFoundError(f"nothing matches {source!r} on the machine", hint="Look with `ls` there.")
        # The runtime's default target is the source's own name, which for a pattern is the pattern.
        folder = target.parent if target.name == source.rpartition("/")[2] and not target.exists() else target
        works = []
        for match in listing.matches:
            found = await _list(transport, match, pattern=False)
            works.append(_Download(transport, match, folder / _leaf(match), options, meter, found))
    try:
        for work in works:
            await asyncio.to_thread(work.compare)
        meter.total = sum(work.expected for work in works)
        for work in works:
            await work.run()
    except PermissionError as error:
        raise DeniedError(f"{error.filename!r} here cannot be written") from error
    except OSError as error:
        if isinstance(error, Error):
            raise
        raise InvalidError(
            f"the download to {str(target)!r} failed: {error.strerror}", hint=_hint(error)
        ) from error
    meter.finish()
    return CopyReport(
        files=sum(work.count for work in works),
        sent={"": max(0, meter.done - meter.found)},
        notes=tuple(note for work in works for note in work.notes),
    )


def _hint(error: OSError) -> str:
    return "Free some space here." if error.errno == errno.ENOSPC else "Check the target here."


def _leaf(path: bytes) -> str:
    return os.fsdecode(path.rpartition(b"/")[2])


class _Remote(NamedTuple):
    """One thing on the machine."""

    name: bytes
    kind: bytes
    mode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class _Listing:
    kind: str
    entries: Sequence[_Remote] = ()
    matches: Sequence[bytes] | None = None
    rough_size: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether sizes and times are known; a machine without GNU find cannot tell them."""
        return bool(self.entries)


async def _list(transport: Transport, source: bytes, *, pattern: bool) -> _Listing:
    mark = new_id("trainyard-")
    script = compose("listing.sh", mark=mark, source=source, pattern=int(pattern))
    completed = await transport.run(script)
    line, _, rest = completed.stdout.partition(mark.encode())[2].partition(b"\n")
    words = line.decode().split()
    if not words:
        reason = completed.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise DeniedError(f"{os.fsdecode(source)!r} on the machine cannot be looked into: {reason}")
    if words[0] == "missing":
        shown = os.fsdecode(source.removeprefix(b"./"))
        raise NotFoundError(
            f"{shown!r} does not exist on the machine", hint="Relative paths start at its home."
        )
    if words[0] == "matches":
        return _Listing("", matches=[match for match in rest.split(b"\0") if match])
    if words[0] == "rough":
        return _Listing(words[1], rough_size=int(words[2]) * 1024)
    return _Listing(
        words[0], [_remote(line) for line in zlib.decompress(rest, wbits=31).split(b"\0") if line]
    )


def _remote(line: bytes) -> _Remote:
    kind, mode, size, mtime, name = line.split(b" ", 4)
    seconds, _, fraction = mtime.partition(b".")
    mtime_ns = int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, b"0") or 0)
    return _Remote(name.removeprefix(b"./"), kind, int(mode, 8), int(size), mtime_ns)


@dataclass
class _Meter:
    """Bytes as they come, in whatever thread → progress in the loop's, never going back.

    `found` counts those that were here already, in parts of large files.
    """

    progress: Progress | None
    loop: asyncio.AbstractEventLoop
    total: int = 0
    done: int = 0
    found: int = 0
    _is_due: bool = False

    def add(self, count: int) -> None:
        """More has come."""
        self.done += count
        if self.progress is not None and not self._is_due:
            self._is_due = True
            self.loop.call_soon_threadsafe(self._show)

    def _show(self) -> None:
        self._is_due = False
        if self.progress is not None:
            self.progress.update("", min(self.done, self.total), self.total)

    def finish(self) -> None:
        """All is here."""
        if self.progress is not None:
            self.progress.update("", self.total, self.total)


@dataclass
class _Download:
    """One file or folder under way."""

    transport: Transport
    source: bytes
    place: Path
    options: CopyOptions
    meter: _Meter
    listing: _Listing
    notes: list[str] = field(default_factory=list)
    small: list[_Remote] = field(default_factory=list)
    large: list[_Remote] = field(default_factory=list)

    @property
    def is_folder(self) -> bool:
        """A folder there."""
        return self.listing.kind == "folder"

    @property
    def root(self) -> bytes:
        """The folder here that archives are unpacked in."""
        return os.fsencode(self.place if self.is_folder else self.place.parent)

    @property
    def expected(self) -> int:
        """How many bytes will come."""
        if not self.listing.is_exact:
            return self.listing.rough_size
        return sum(entry.size for entry in (*self.small, *self.large) if entry.kind == b"f")

    @property
    def count(self) -> int:
        """Files there."""
        return sum(entry.kind in (b"f", b"l") for entry in self.listing.entries)

    def compare(self) -> None:
        """Find out what has to come. Blocking."""
        rules = Rules(CopyOptions(ignore_file="", exclude=self.options.exclude))
        for entry in self.listing.entries:
            name = os.fsdecode(entry.name)
            if not is_below(entry.name):
                self.notes.append(f"{name!r} would land outside of the target and was refused")
                continue
            if entry.name != ROOT and rules.ignores_deep(name, is_folder=entry.kind == b"d"):
                continue
            if entry.kind not in (b"f", b"l", b"d"):
                self.notes.append(f"{name!r} is a socket, a pipe or a device and was skipped")
            elif entry.kind == b"d" or not self._is_here(entry):
                is_large = entry.kind == b"f" and entry.size >= LARGE
                (self.large if is_large else self.small).append(entry)

    def _path(self, entry: _Remote) -> bytes:
        return self.root + b"/" + entry.name if self.is_folder else os.fsencode(self.place)

    def _is_here(self, entry: _Remote) -> bool:
        try:
            here = os.lstat(self._path(entry))
        except (FileNotFoundError, NotADirectoryError):
            return False
        if self.options.dont_overwrite:
            return True
        return (
            entry.kind == b"f"
            and stat.S_ISREG(here.st_mode)
            and (here.st_size, here.st_mtime_ns) == (entry.size, entry.mtime_ns)
            and (here.st_mode & 0o777) == (entry.mode & 0o777 | 0o600)
        )

    async def run(self) -> None:
        """Bring what has to come."""
        if self.small or not self.listing.is_exact:
            await self._fetch_archive()
        for entry in self.large:
            await self._fetch_large(entry)
        if self.options.delete and self.is_folder and self.listing.is_exact:
            await asyncio.to_thread(self._prune)

    async def _fetch_archive(self) -> None:
        extraction = Extraction(
            self.root,
            times={entry.name: entry.mtime_ns for entry in self.small}
            if self.is_folder
            else self._file_time(),
            renamed=b"" if self.is_folder else os.fsencode(self.place.name),
            keep=self._keep_rough,
            on_bytes=self.meter.add,
        )
        names = b"".join(b"./" + entry.name + b"\0" for entry in self.small)
        what = ("some" if self.listing.is_exact else "all") if self.is_folder else "one"
        script = self._script(what=what)
        expected = sum(entry.size for entry in self.small) or self.listing.rough_size
        try:
            status, errors = await drain(self.transport, script, names, extraction.feed, expected=expected)
            has_changed = status == CHANGED and any(phrase in errors for phrase in CHANGES)
            if status and not has_changed:
                self._raise(errors)
            await asyncio.to_thread(extraction.finish)
        finally:
            extraction.abort()
            self.notes += extraction.notes
        if has_changed:
            self.notes.append("a file changed while it was read; the next download brings it again")

    def _file_time(self) -> dict[bytes, int]:
        return {self.source.rpartition(b"/")[2]: entry.mtime_ns for entry in self.small}

    def _keep_rough(self, name: bytes) -> bool:
        """Without a listing everything is sent; what must stay is sorted out here."""
        if self.listing.is_exact:
            return False
        path = self.root + b"/" + name
        is_folder = os.path.isdir(path)  # noqa: PTH112  # bytes
        return self.options.dont_overwrite and os.path.lexists(path) and not is_folder

    def _script(self, **variables: str | bytes | int) -> str:
        folder, _, leaf = self.source.rpartition(b"/")
        if self.is_folder:
            folder = self.source
        return compose("fetch.sh", folder=folder or b"/", leaf=leaf, **variables)

    async def _fetch_large(self, entry: _Remote) -> None:
        path = self._path(entry)
        await asyncio.to_thread(ensure_parents, self.root, entry.name if self.is_folder else b"", set())
        part = await asyncio.to_thread(Part, path, _signature(self.source, entry))
        try:
            self.meter.found += part.offset
            self.meter.add(part.offset)
            if not await self._continue(entry, part):
                part.restart()
                if not await self._continue(entry, part):
                    self.notes.append(
                        f"{os.fsdecode(path)!r} changed there while it was read; download it again"
                    )
                    return
            await asyncio.to_thread(part.complete, entry.mode, entry.mtime_ns)
        finally:
            part.close()

    async def _continue(self, entry: _Remote, part: Part) -> bool:
        """Append what is missing; False where the file there is not the one that the part is of."""
        script = compose(
            "fetch.sh",
            what="rest",
            folder=self.source if self.is_folder else self.source.rpartition(b"/")[0] or b"/",
            leaf=entry.name if self.is_folder else self.source.rpartition(b"/")[2],
            offset=part.offset,
            tail=await asyncio.to_thread(part.tail),
            size=entry.size,
        )
        consume = partial(_append, part, self.meter)
        status, errors = await drain(self.transport, script, b"", consume, expected=entry.size - part.offset)
        if status == STALE:
            return False
        if status:
            self._raise(errors)
        return part.offset == entry.size

    def _raise(self, errors: str) -> None:
        shown = os.fsdecode(self.source.removeprefix(b"./"))
        raise InvalidError(f"not all of {shown!r} could be read on the machine: {last_complaint(errors)}")

    def _prune(self) -> None:
        wanted = {entry.name for entry in self.listing.entries}
        rules = Rules(CopyOptions(ignore_file="", exclude=self.options.exclude))
        for folder, leaves in reversed(_folders(self.root)):
            for leaf in leaves:
                path = folder + b"/" + leaf
                name = path.removeprefix(self.root + b"/")
                is_folder = os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114  # bytes
                if name in wanted or rules.ignores_deep(os.fsdecode(name), is_folder=is_folder):
                    continue
                if is_folder:
                    with suppress(OSError):  # holds something that is to stay
                        os.rmdir(path)  # noqa: PTH106
                else:
                    os.unlink(path)  # noqa: PTH108


def _folders(root: bytes) -> list[tuple[bytes, list[bytes]]]:
    """Every folder of a tree with the names in it, upper ones first; no recursion, since a path may be 2,000 folders deep."""
    found: list[tuple[bytes, list[bytes]]] = []
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        with suppress(OSError), os.scandir(folder) as listing:  # gone meanwhile, or nobody's to read
            entries = list(listing)
            found.append((folder, [entry.name for entry in entries]))
            waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found


def _signature(source: bytes, entry: _Remote) -> str:
    text = b"%d %d %s %s" % (entry.size, entry.mtime_ns, source, entry.name)
    return hashlib.sha256(text).hexdigest()[:16]


def _append(part: Part, meter: _Meter, data: bytes) -> None:
    part.append(data)
    meter.add(len(data))
