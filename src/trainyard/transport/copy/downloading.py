"""Downloads files and folders from a machine: lists them there, compares them with local files, fetches the rest."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from trainyard.lib.errors import DeniedError, Error, InvalidError, NotFoundError
from trainyard.lib.units import format_size
from trainyard.transport.api import Transport
from trainyard.transport.copy.api import DEFAULT_OPTIONS, CopyOptions, CopyReport, Notes, Progress
from trainyard.transport.copy.extraction import Extraction
from trainyard.transport.copy.ignore import Rules
from trainyard.transport.copy.listing import WILDCARDS, Listing, Remote, fits, list_source
from trainyard.transport.copy.manifest import LARGE, ROOT
from trainyard.transport.copy.part import PartialFile, part_size
from trainyard.transport.copy.receive import drain
from trainyard.transport.copy.script import compose, machine_path
from trainyard.transport.copy.send import last_complaint
from trainyard.transport.copy.target_folder import FULL, PART, TargetFolder, refusal, shown

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
    """Copy a file or folder of the machine to `target`. Files with the same size and time are not copied again.

    A relative source means the machine's home. A file becomes the target, or goes inside it where that is a folder. A
    folder becomes the target, merging with what is there, so that doing it again resumes; with `options.into`, or
    with the target `.` or `..`, it goes inside. Matches of a pattern go inside. Parents are made.

    Nothing is ever written outside of the target, whatever the machine answers. NotFoundError if the source is
    missing. InvalidError if it is larger than the free space. Cancelling ends the remote script and leaves no incomplete
    file under its name. Large files continue where they were cut, unless the disk was full.
    """
    meter = _Meter(progress, asyncio.get_running_loop())
    works = await _works(transport, source, target, options, meter)
    try:
        for work in works:
            await asyncio.to_thread(work.compare)
        await asyncio.to_thread(_check_space, works, target)
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
    finally:
        for work in works:
            work.tree.close()
    meter.finish()
    return CopyReport(
        files=sum(work.count for work in works),
        sent={"": max(0, meter.done - meter.found)},
        notes=tuple(note for work in works for note in work.notes),
    )


async def _works(
    transport: Transport, source: str, target: Path, options: CopyOptions, meter: _Meter
) -> list[_Download]:
    """One for the source, or one for everything that a pattern matches."""
    path = machine_path(source)
    listing = await list_source(transport, path, pattern=any(char in source for char in WILDCARDS))
    if listing.matches is None:
        into = options.into or str(target) in (".", "..") or (listing.kind == "file" and target.is_dir())
        if into and _leaf(path) == "..":
            raise InvalidError(
                f"{source!r} has no name of its own to go inside {str(target)!r}",
                hint="Name the folder on the machine by its path.",
            )
        place = target / _leaf(path) if into else target
        return [_Download(transport, path, place, options, meter, listing)]
    matches = [match for match in listing.matches if fits(path, match)]
    refused = len(listing.matches) - len(matches)
    if not matches:
        raise NotFoundError(f"nothing matches {source!r} on the machine", hint="Look with `ls` there.")
    # The runtime's default target is the source's own name, which for a pattern is the pattern.
    folder = target.parent if target.name == source.rpartition("/")[2] and not target.exists() else target
    works = []
    for match in matches:
        found = await list_source(transport, match, pattern=False)
        works.append(_Download(transport, match, folder / _leaf(match), options, meter, found))
    if refused:
        works[0].notes.add(f"{refused} names that the machine gave do not fit {source!r} and were refused")
    return works


def _check_space(works: Sequence[_Download], target: Path) -> None:
    """Raise an error now if the disk has not enough room for the download. Blocking."""
    needed = sum(work.needed for work in works)
    free = works[0].tree.free_bytes()
    if free is not None and needed > free:
        raise InvalidError(
            f"the download to {str(target)!r} needs {format_size(needed)}, and {format_size(free)} are free",
            hint="Free some space here, or name a target on another disk.",
        )


def _hint(error: OSError) -> str:
    return "Free some space here." if error.errno in FULL else "Check the target here."


def _leaf(path: bytes) -> str:
    return os.fsdecode(path.rpartition(b"/")[2])


@dataclass
class _Meter:
    """Counts bytes in any thread and reports progress in the event loop. The progress never goes back.

    `found` counts those that were here already, in parts of large files.
    """

    progress: Progress | None
    loop: asyncio.AbstractEventLoop
    total: int = 0
    done: int = 0
    found: int = 0
    _is_due: bool = False

    def add(self, count: int) -> None:
        """Count more bytes."""
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
    listing: Listing
    notes: Notes = field(default_factory=Notes)
    small: list[Remote] = field(default_factory=list)
    large: list[Remote] = field(default_factory=list)
    needed: int = 0  # the least number of bytes by which the local files will grow

    def __post_init__(self) -> None:
        # What archives are unpacked in; of a file, the folder that it lies in.
        self.tree = TargetFolder(os.fsencode(self.place if self.is_folder else self.place.parent))
        self._rules = Rules(CopyOptions(ignore_file="", exclude=self.options.exclude))

    @property
    def is_folder(self) -> bool:
        """A folder there."""
        return self.listing.kind == "folder"

    @property
    def expected(self) -> int:
        """The number of bytes that will come."""
        if not self.listing.is_exact:
            return self.listing.rough_size
        return sum(entry.size for entry in (*self.small, *self.large) if entry.kind == b"f")

    @property
    def count(self) -> int:
        """Files there."""
        return sum(entry.kind in (b"f", b"l") for entry in self.listing.entries)

    def compare(self) -> None:
        """Find out which files must be fetched. Blocking."""
        self.needed = 0 if self.listing.is_exact else self.listing.rough_size
        for entry in self.listing.entries:
            is_top = entry.name == ROOT
            reason = "" if is_top else refusal(entry.name)
            if not reason and entry.kind not in (b"f", b"l", b"d"):
                reason = "is a socket, a pipe or a device and was skipped"
            if not reason and (entry.kind == b"d") != self.is_folder and is_top:
                reason = "is not what it was a moment ago and was refused"
            if reason:
                self.notes.add(f"{shown(entry.name)} {reason}")
            elif is_top or not self._ignores(entry.name, is_folder=entry.kind == b"d"):
                self._compare_one(entry)

    def _ignores(self, name: bytes, *, is_folder: bool) -> bool:
        return self._rules.ignores_deep(os.fsdecode(name), is_folder=is_folder)

    def _compare_one(self, entry: Remote) -> None:
        here = None if entry.kind == b"d" else self.tree.lstat(self._name(entry))
        if here is not None and (self.options.dont_overwrite or _is_same(entry, here)):
            return
        is_large = entry.kind == b"f" and entry.size >= LARGE
        (self.large if is_large else self.small).append(entry)
        if entry.kind == b"f":
            held = here.st_size if here is not None else 0
            if is_large:
                held += part_size(self.tree, self._name(entry), _signature(self.source, entry))
            self.needed += max(0, entry.size - held)

    def _name(self, entry: Remote) -> bytes:
        """Where it goes, below `tree`."""
        if not self.is_folder:
            return os.fsencode(self.place.name)
        return b"" if entry.name == ROOT else entry.name

    async def run(self) -> None:
        """Fetch the files that are missing or differ."""
        if self.small or not self.listing.is_exact:
            await self._fetch_archive()
        for entry in self.large:
            await self._fetch_large(entry)
        if self.options.delete and self.is_folder and self.listing.is_exact:
            await asyncio.to_thread(self._prune)

    async def _fetch_archive(self) -> None:
        extraction = Extraction(
            self.tree,
            wanted={self._name(entry) for entry in self.small} if self.listing.is_exact else None,
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
            for note in extraction.notes:
                self.notes.add(note)
        if has_changed:
            self.notes.add("a file changed while it was read; the next download brings it again")

    def _file_time(self) -> dict[bytes, int]:
        return {self.source.rpartition(b"/")[2]: entry.mtime_ns for entry in self.small}

    def _keep_rough(self, name: bytes) -> bool:
        """Return whether the local file stays. Without exact times the machine sends everything."""
        if self.listing.is_exact or not self.options.dont_overwrite:
            return False
        here = self.tree.lstat(name)
        return here is not None and not stat.S_ISDIR(here.st_mode)

    def _script(self, **variables: str | bytes | int) -> str:
        folder, _, leaf = self.source.rpartition(b"/")
        if self.is_folder:
            folder = self.source
        return compose("fetch.sh", folder=folder or b"/", leaf=leaf, **variables)

    async def _fetch_large(self, entry: Remote) -> None:
        name = self._name(entry)
        part = await asyncio.to_thread(PartialFile, self.tree, name, _signature(self.source, entry))
        try:
            self.meter.found += part.offset
            self.meter.add(part.offset)
            if not await self._continue(entry, part):
                part.restart()
                if not await self._continue(entry, part):
                    path = os.fsdecode(self.tree.path(name))
                    self.notes.add(f"{path!r} changed there while it was read; download it again")
                    return
            await asyncio.to_thread(part.complete, entry.mode, entry.mtime_ns)
        except OSError as error:
            if error.errno in FULL:
                part.discard()
            raise
        finally:
            part.close()

    async def _continue(self, entry: Remote, part: PartialFile) -> bool:
        """Append the missing bytes. Returns False if the partial file belongs to another version of the file."""
        if part.offset > entry.size:
            return False
        script = compose(
            "fetch.sh",
            what="rest",
            folder=self.source if self.is_folder else self.source.rpartition(b"/")[0] or b"/",
            leaf=entry.name if self.is_folder else self.source.rpartition(b"/")[2],
            offset=part.offset,
            tail=await asyncio.to_thread(part.tail),
            size=entry.size,
        )
        consume = partial(_append, part, self.meter, entry.size)
        status, errors = await drain(self.transport, script, b"", consume, expected=entry.size - part.offset)
        if status == STALE:
            return False
        if status:
            self._raise(errors)
        return part.offset == entry.size

    def _raise(self, errors: str) -> None:
        source = os.fsdecode(self.source.removeprefix(b"./"))
        raise InvalidError(f"not all of {source!r} could be read on the machine: {last_complaint(errors)}")

    def _prune(self) -> None:
        wanted = {entry.name for entry in self.listing.entries}
        for name, is_folder in reversed(list(self.tree.names())):
            is_part = name.rpartition(b"/")[2].startswith(PART)  # of a download that is under way
            if name not in wanted and not is_part and not self._ignores(name, is_folder=is_folder):
                self.tree.remove(name, is_folder=is_folder)


def _is_same(entry: Remote, here: os.stat_result) -> bool:
    return (
        entry.kind == b"f"
        and stat.S_ISREG(here.st_mode)
        and (here.st_size, here.st_mtime_ns) == (entry.size, entry.mtime_ns)
        and (here.st_mode & 0o777) == (entry.mode & 0o777 | 0o600)
    )


def _signature(source: bytes, entry: Remote) -> str:
    text = b"%d %d %s %s" % (entry.size, entry.mtime_ns, source, entry.name)
    return hashlib.sha256(text).hexdigest()[:16]


def _append(part: PartialFile, meter: _Meter, size: int, data: bytes) -> None:
    if part.offset + len(data) > size:
        raise InvalidError(f"the machine sent more of a file than the {size:,} bytes that it has")
    part.append(data)
    meter.add(len(data))
