"""The local folder that a download fills. All access goes through descriptors of folders, one component at a time and
never through a link, so that no name and no link of a machine leads out of it.

The folder itself may be a link: the user named it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress

from trainyard.lib.errors import ConflictError, InvalidError

PART = b".trainyard-part-"  # how the names of unfinished files begin
# Bytes of a path. Programs on Linux can open 4,095, tar with `./` in front; what is nested deeper is left out.
LONGEST_NAME = 4000
MOST_OPEN = (
    32  # descriptors of folders that are kept; a tree may be deeper than a process may have files open
)

_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Walking through a folder needs no right to list it.
_WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
IN_THE_WAY = (errno.ELOOP, errno.ENOTDIR)  # of walking: a link, or something that is no folder
FULL = (errno.ENOSPC, errno.EDQUOT)


def refusal(name: bytes) -> str:
    """Return why a name must not be written below a folder; '' if it may."""
    if name.startswith(b"/") or b".." in name.split(b"/") or b"\0" in name:
        return "would land outside of the target and was refused"
    if len(name) > LONGEST_NAME:
        return f"is nested too deep (over {LONGEST_NAME:,} bytes of path) and was left out"
    if any(part.startswith(PART) for part in name.split(b"/")):
        return "is an unfinished part of another copy and was left out"
    return ""


def shown(name: bytes) -> str:
    """A name for people: not longer than a line or two."""
    text = repr(os.fsdecode(name))
    return text if len(text) <= 200 else f"{text[:100]}…{text[-80:]}"


class TargetFolder:
    """The folder at `root`, made with its parents when something is first written. Close it.

    Names are relative and clean: no empty component, no `.`, no `..`; b"" is the folder itself. For use by one thread
    at a time.
    """

    def __init__(self, root: bytes) -> None:
        self.root = root
        self._top = -1
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (*self._open.values(), *([self._top] if self._top >= 0 else [])):
            os.close(descriptor)
        self._open.clear()
        self._top = -1

    def path(self, name: bytes) -> bytes:
        """For messages."""
        return self.root + b"/" + name if name else self.root

    def lstat(self, name: bytes) -> os.stat_result | None:
        """Return the status of a name; None if it does not exist or can only be reached through a link."""
        try:
            folder, leaf = self.parent(name, make=False)
            return os.stat(leaf, dir_fd=folder, follow_symlinks=False)  # by descriptor
        except OSError as error:
            if error.errno in (errno.ENOENT, *IN_THE_WAY):
                return None
            raise

    def parent(self, name: bytes, *, make: bool = True) -> tuple[int, bytes]:
        """The folder that `name` lies in, and its last component. The descriptor is good until the next call.

        Folders are made where they are missing; what stands in the way of one, a link above all, is removed.
        """
        above, _, leaf = name.rpartition(b"/")
        return self.folder(above, make=make), leaf or b"."

    def folder(self, name: bytes, *, make: bool = True) -> int:
        """The descriptor of a folder; good until the next call."""
        if not name:
            return self._enter_top(make=make)
        missing: list[bytes] = []
        nearest = name
        while nearest and nearest not in self._open:
            nearest, _, leaf = nearest.rpartition(b"/")
            missing.append(leaf)
        if nearest:
            self._open.move_to_end(nearest)
        descriptor = self._open[nearest] if nearest else self._enter_top(make=make)
        for leaf in reversed(missing):
            descriptor = _enter(descriptor, leaf, make=make)
            nearest = nearest + b"/" + leaf if nearest else leaf
            self._open[nearest] = descriptor
            if len(self._open) > MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
        return descriptor

    def create(self, name: bytes) -> NewFile:
        """A new file that will be called `name`."""
        return NewFile(self, name)

    def settle_folder(self, name: bytes, mode: int, mtime_ns: int) -> None:
        """Make a folder, where it is missing, and give it its mode and time."""
        descriptor = os.open(b".", _READ, dir_fd=self.folder(name))
        try:
            os.fchmod(descriptor, mode)
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(descriptor)

    def make_link(self, name: bytes, target: bytes, mtime_ns: int) -> bool:
        """A symbolic link in place of whatever has its name; False where that is a folder."""
        here = self.lstat(name)
        if here is not None and stat.S_ISDIR(here.st_mode):
            return False
        folder, leaf = self.parent(name)

        def make(temporary: bytes) -> None:
            os.symlink(target, temporary, dir_fd=folder)  # by descriptor

        _replace(folder, leaf, make)
        os.utime(leaf, ns=(mtime_ns, mtime_ns), dir_fd=folder, follow_symlinks=False)
        return True

    def make_hard_link(self, source: bytes, name: bytes) -> None:
        """A second name of a regular file that is here; nothing where `source` is none."""
        here = self.lstat(source)
        if here is None or not stat.S_ISREG(here.st_mode):
            return
        above, source_leaf = self.parent(source, make=False)
        above = os.dup(above)
        try:
            folder, leaf = self.parent(name)

            def make(temporary: bytes) -> None:
                os.link(  # by descriptor
                    source_leaf, temporary, src_dir_fd=above, dst_dir_fd=folder, follow_symlinks=False
                )

            _replace(folder, leaf, make)
        finally:
            os.close(above)

    def names(self) -> Iterator[tuple[bytes, bool]]:
        """Everything below, parents first, and whether it is a folder. Links are not followed, nor is depth recursion."""
        waiting = [b""]
        while waiting:
            name = waiting.pop()
            for leaf, is_folder in self._entries(name):
                below = name + b"/" + leaf if name else leaf
                yield below, is_folder
                if is_folder and len(below) < LONGEST_NAME:
                    waiting.append(below)

    def _entries(self, name: bytes) -> list[tuple[bytes, bool]]:
        try:
            descriptor = os.open(b".", _READ, dir_fd=self.folder(name, make=False))
        except (FileNotFoundError, PermissionError):  # gone meanwhile, or not ours to read
            return []
        try:
            with os.scandir(descriptor) as listing:
                return [(os.fsencode(item.name), item.is_dir(follow_symlinks=False)) for item in listing]
        finally:
            os.close(descriptor)

    def remove(self, name: bytes, *, is_folder: bool) -> None:
        """A file, a link or an empty folder. A folder that holds something stays."""
        folder, leaf = self.parent(name, make=False)
        if not is_folder:
            os.unlink(leaf, dir_fd=folder)  # by descriptor
            return
        old = self._open.pop(name, None)
        if old is not None:
            os.close(old)
        try:
            os.rmdir(leaf, dir_fd=folder)  # by descriptor
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def free_bytes(self) -> int | None:
        """The space that is left where the folder is or will be; None where nobody can tell."""
        path = self.root
        while not os.path.exists(path):  # noqa: PTH110  # bytes
            path = os.path.dirname(path) or b"."  # noqa: PTH120  # bytes
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize if facts.f_blocks else None

    def _enter_top(self, *, make: bool) -> int:
        if self._top < 0:
            if make:
                os.makedirs(self.root, exist_ok=True)  # noqa: PTH103  # bytes
            self._top = os.open(self.root or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._top


class NewFile:
    """A file that is being written under a random name of its own; it gets its name when it is complete."""

    def __init__(self, tree: TargetFolder, name: bytes) -> None:
        self._tree = tree
        self._name = name
        # Not the file's own name with something added: that may be longer than a name can be.
        self._temporary = part_name()
        folder, _ = tree.parent(name)
        self._file = create(folder, self._temporary)
        self._is_named = False

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def complete(self, mode: int, mtime_ns: int) -> None:
        """Give it mode, time and name, in place of whatever has that."""
        settle(self._file, mode, mtime_ns)
        self._close()  # a file server may only now tell that it has no room
        folder, leaf = self._tree.parent(self._name)
        rename(folder, self._temporary, leaf, self._tree.path(self._name))
        self._is_named = True

    def discard(self) -> None:
        """Leave nothing. After `complete` there is nothing to do."""
        if self._is_named:
            return
        with suppress(OSError):
            self._close()
        with suppress(FileNotFoundError):
            folder, _ = self._tree.parent(self._name, make=False)
            os.unlink(self._temporary, dir_fd=folder)  # by descriptor

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def part_name(stem: str = "") -> bytes:
    """A name for an unfinished file that nobody can guess."""
    return PART + f"{stem}{secrets.token_hex(8)}".encode()


def settle(file: int, mode: int, mtime_ns: int) -> None:
    """Mode and time of an open file that came from a machine: never more rights than rwx, and ours to replace."""
    os.fchmod(file, mode & 0o777 | 0o600)
    os.utime(file, ns=(mtime_ns, mtime_ns))


def create(folder: int, leaf: bytes) -> int:
    """A new file in an open folder; no file, and no link, may have its name."""
    return os.open(leaf, _NEW, 0o600, dir_fd=folder)


def rename(folder: int, old: bytes, new: bytes, path: bytes) -> None:
    """Within an open folder. ConflictError where `new`, shown as `path`, is a folder."""
    try:
        os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)  # by descriptor
    except (IsADirectoryError, NotADirectoryError) as error:
        raise ConflictError(
            f"{os.fsdecode(path)!r} is a folder here and a file there", hint="Move it away first."
        ) from error


def _enter(folder: int, leaf: bytes, *, make: bool) -> int:
    if leaf in (b"", b".", b".."):
        raise InvalidError(f"{os.fsdecode(leaf)!r} is not the name of a file or folder")
    try:
        return os.open(leaf, _WALK, dir_fd=folder)
    except OSError as error:
        if not make or error.errno not in (errno.ENOENT, *IN_THE_WAY):
            raise
        if error.errno != errno.ENOENT:
            os.unlink(leaf, dir_fd=folder)  # by descriptor
    with suppress(FileExistsError):  # another download makes it, too
        os.mkdir(leaf, dir_fd=folder)  # by descriptor
    return os.open(leaf, _WALK, dir_fd=folder)


def _replace(folder: int, leaf: bytes, make: Callable[[bytes], None]) -> None:
    temporary = part_name()
    make(temporary)
    try:
        os.replace(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder)  # by descriptor
    except OSError:
        os.unlink(temporary, dir_fd=folder)  # by descriptor
        raise
