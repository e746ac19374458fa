"""Scans local files and folders for a copy, and makes the lines that a machine's `stat` would print for them.

`archive.py` reads the files; `compare.py` asks the machines.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import NamedTuple

from trainyard.lib.errors import DeniedError, InvalidError, NotFoundError
from trainyard.transport.copy.api import CopyOptions
from trainyard.transport.copy.ignore import Rules
from trainyard.transport.copy.target_folder import LONGEST_NAME, shown

ROOT = b"."
LARGE = 32 * 1024 * 1024  # a file of this size or more is sent alone and can be resumed
# A file written as late as this before a scan may be written again without its times changing visibly: file systems
# store times in steps of up to 2 s (FAT), and a file server's clock need not be ours.
RACY_NS = 2_000_000_000
TICK_NS = 20_000_000  # the kernel stamps files with a clock that moves in steps of up to 10 ms


class ManifestEntry(NamedTuple):
    """A file, folder or link to copy. `name` is relative to the target folder; `path` is the local path."""

    name: bytes
    path: bytes
    mode: int
    size: int
    mtime: int
    mtime_ns: int
    ctime_ns: int
    link: bytes

    @property
    def is_folder(self) -> bool:
        """A directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_large(self) -> bool:
        """Whether it is sent alone."""
        return self.size >= LARGE and stat.S_ISREG(self.mode)

    def is_racy(self, since_ns: int) -> bool:
        """Return whether it may have changed unnoticed after a scan at `since_ns`. Any change moves ctime."""
        return self.mtime_ns >= since_ns - RACY_NS or self.ctime_ns >= since_ns - TICK_NS

    def line(self) -> bytes:
        """The line that `stat` with our format prints for an equal file on a machine."""
        return b"%x %d %d %s" % (self.mode, self.size, self.mtime, self.name)


def part_stem(leaf: bytes) -> bytes:
    """Return the start of the names of a file's partial files, cut because a name has at most 255 bytes."""
    return b".%s.trainyard-part-" % leaf[:100]


@dataclass(slots=True)
class Manifest:
    """A scanned tree: folders first (parents before children), then everything else, sorted."""

    folders: list[ManifestEntry] = field(default_factory=list)
    files: list[ManifestEntry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rules: dict[bytes, Rules] = field(default_factory=dict)
    scanned_ns: int = 0

    def names(self) -> Iterator[bytes]:
        """Every name that the target will have."""
        return (entry.name for entry in (*self.folders, *self.files))

    def empty_folders(self) -> list[bytes]:
        """Folders with nothing in them; the others exist where their content exists."""
        parents = {entry.name.rpartition(b"/")[0] for entry in (*self.folders, *self.files)}
        return [folder.name for folder in self.folders if folder.name not in parents and folder.name != ROOT]

    def folders_hash(self) -> str:
        """A hash of the folders and their modes."""
        text = b"\0".join(b"%x %s" % (folder.mode, folder.name) for folder in self.folders)
        return hashlib.sha256(text).hexdigest()[:16]

    def ignores(self, name: bytes, *, is_folder: bool) -> bool:
        """Return whether a rule of the tree ignores `name`."""
        for prefix, rules in self.rules.items():
            below = name if prefix == ROOT else name.removeprefix(prefix + b"/")
            if prefix == ROOT or below != name:
                return rules.ignores_deep(os.fsdecode(below), is_folder=is_folder)
        return False


def expand(sources: Sequence[Path]) -> tuple[list[Path], bool]:
    """Patterns → what they match, sorted; True where a pattern was given. A name that exists is never a pattern."""
    found: list[Path] = []
    patterns = False
    for source in sources:
        path = source.expanduser()
        text = os.fspath(path)
        if any(char in text for char in "*?[") and not os.path.lexists(path):
            matches = sorted(glob(text))  # noqa: PTH207  # patterns may be absolute
            if not matches:
                raise NotFoundError(
                    f"nothing matches {text!r}", hint="Check the pattern and the current folder."
                )
            found += [Path(match) for match in matches]
            patterns = True
        elif not path.exists():
            kind = "a link to nothing" if path.is_symlink() else "not there"
            raise NotFoundError(
                f"the file or folder to upload, {text!r}, is {kind}",
                hint=f"Check the path; the current folder is {os.getcwd()!r}.",  # noqa: PTH109
            )
        else:
            found.append(path)
    return list(dict.fromkeys(found)), patterns


def leaf_name(path: Path) -> str:
    """Return the name of a source at the target. `.` and `..` get the name of the folder they mean."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def scan(places: Iterable[tuple[bytes, Path]], options: CopyOptions) -> Manifest:
    """Scan every `(name at the target, local path)`. A path that is itself a link is followed; links inside are kept."""
    manifest = Manifest(scanned_ns=time.time_ns())
    seen: set[bytes] = set()
    for name, path in places:
        if name in seen:
            raise InvalidError(
                f"two of the sources are named {os.fsdecode(name)!r}",
                hint="Upload them one by one, each with a target of its own.",
            )
        seen.add(name)
        local = os.fsencode(path)
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                rules = manifest.rules[name] = Rules(options)
                manifest.folders.append(_entry(name, local, status))
                _Scan(manifest, rules, b"" if name == ROOT else name + b"/").walk(local)
            elif stat.S_ISREG(status.st_mode):
                manifest.files.append(_entry(name, local, status))
            else:
                manifest.notes.append(
                    f"{os.fsdecode(local)!r} is neither a file nor a folder and was skipped"
                )
        except PermissionError as error:
            raise _denied(error) from error
    return manifest


def _denied(error: PermissionError) -> DeniedError:
    name = os.fsdecode(error.filename)
    return DeniedError(
        f"{name!r} cannot be read",
        hint="Make it readable, or list it in .trainyardignore to leave it behind.",
    )


def _entry(name: bytes, path: bytes, status: os.stat_result, link: bytes = b"") -> ManifestEntry:
    mtime_ns = status.st_mtime_ns
    # An archive's header has no room for times before 1970.
    mtime = max(0, mtime_ns // 1_000_000_000)
    return ManifestEntry(
        name, path, status.st_mode, status.st_size, mtime, mtime_ns, status.st_ctime_ns, link
    )


class _Scan:
    """One tree being walked."""

    def __init__(self, manifest: Manifest, rules: Rules, prefix: bytes) -> None:
        self._manifest = manifest
        self._rules = rules
        self._prefix = prefix

    def walk(self, top: bytes) -> None:
        """Add everything under `top`; no recursion, since a path may be 2,000 folders deep."""
        waiting = [(top, "")]
        while waiting:
            path, below = waiting.pop()
            try:
                waiting += reversed(self._folder(path, below))
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                self._manifest.notes.append(_too_deep(path))

    def _folder(self, path: bytes, below: str) -> list[tuple[bytes, str]]:
        with os.scandir(path) as listing:
            found = sorted(listing, key=_name_of)
        rules = self._rules
        rules.enter(below, path, [item.name for item in found])
        check = not rules.is_empty
        prefix = self._prefix + os.fsencode(below + "/" if below else "")
        folders: list[tuple[bytes, str]] = []
        for item in found:
            is_folder = item.is_dir(follow_symlinks=False)
            relative = ""
            if check or is_folder:
                name = os.fsdecode(item.name)
                relative = f"{below}/{name}" if below else name
            if check and rules.ignores(relative, is_folder=is_folder):
                continue
            if len(prefix) + len(item.name) > LONGEST_NAME:
                self._manifest.notes.append(_too_deep(item.path))
                continue
            self._add(prefix + item.name, item)
            if is_folder:
                folders.append((item.path, relative))
        return folders

    def _add(self, name: bytes, item: os.DirEntry[bytes]) -> None:
        try:
            status = item.stat(follow_symlinks=False)
            mode = status.st_mode
            if stat.S_ISREG(mode):
                self._manifest.files.append(_entry(name, item.path, status))
            elif stat.S_ISDIR(mode):
                self._manifest.folders.append(_entry(name, item.path, status))
            elif stat.S_ISLNK(mode):
                self._manifest.files.append(_entry(name, item.path, status, os.readlink(item.path)))  # noqa: PTH115  # bytes
            else:
                self._manifest.notes.append(
                    f"{os.fsdecode(item.path)!r} is a socket, a pipe or a device and was skipped"
                )
        except FileNotFoundError:  # a lock or temporary file that went away while we looked
            self._manifest.notes.append(f"{os.fsdecode(item.path)!r} vanished and was skipped")


def _too_deep(path: bytes) -> str:
    return f"{shown(path)} is nested too deep (over {LONGEST_NAME:,} bytes of path) and was left out"


def _name_of(item: os.DirEntry[bytes]) -> bytes:
    return item.name
