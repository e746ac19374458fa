"""The class PartialFile: a large file during its download. For uploads, `sinks.sh` keeps it on the machine."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from contextlib import suppress

from trainyard.transport.copy.delivery import TAIL
from trainyard.transport.copy.target_folder import (
    IN_THE_WAY,
    PART,
    TargetFolder,
    create,
    part_name,
    rename,
    settle,
)

_CONTINUE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class PartialFile:
    """The part of a large file that has been downloaded, stored beside its final name. Only one process continues it.

    Its name ends in a random word. It is always made new, or it is a plain file of ours with a single link. So no link
    that a machine has put there is written through.
    """

    def __init__(self, tree: TargetFolder, name: bytes, signature: str) -> None:
        self._tree = tree
        self._final = name
        self._stem = f"{signature}-"
        self._is_named = False
        folder, _ = tree.parent(name)
        for leaf in _leaves(folder, self._stem):
            file = _continue(folder, leaf)
            if file >= 0:
                self._leaf, self._file = leaf, file
                break
        else:
            self._leaf, self._file = _begin(folder, self._stem)
        self.offset = os.lseek(self._file, 0, os.SEEK_END)

    def tail(self) -> str:
        """Hash of the last MiB, as fetch.sh computes it."""
        start = max(0, self.offset - TAIL)
        return hashlib.sha256(os.pread(self._file, self.offset - start, start)).hexdigest()

    def append(self, data: bytes) -> None:
        """Write the next bytes."""
        view = memoryview(data)
        while view:
            count = os.pwrite(self._file, view, self.offset)
            self.offset += count
            view = view[count:]

    def restart(self) -> None:
        """Start again, because the content belongs to another version of the file."""
        os.ftruncate(self._file, 0)
        self.offset = 0

    def complete(self, mode: int, mtime_ns: int) -> None:
        """Give the file its name, mode and time, and remove other unused partial files of it."""
        settle(self._file, mode, mtime_ns)
        folder, leaf = self._tree.parent(self._final)
        rename(folder, self._leaf, leaf, self._tree.path(self._final))
        self._is_named = True
        for other in _leaves(folder, self._stem):
            file = _continue(folder, other)
            if file >= 0:
                _unlink(folder, other)
                os.close(file)

    def discard(self) -> None:
        """Delete the partial file, because the disk is full."""
        if not self._is_named:
            folder, _ = self._tree.parent(self._final)
            _unlink(folder, self._leaf)

    def close(self) -> None:
        """Close the file. An incomplete one stays so that it can be continued, unless it is empty."""
        if not self.offset:
            self.discard()
        os.close(self._file)


def part_size(tree: TargetFolder, name: bytes, signature: str) -> int:
    """Return how many bytes of a large file are here."""
    try:
        folder, _ = tree.parent(name, make=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, *IN_THE_WAY):
            return 0
        raise
    facts = [
        os.stat(leaf, dir_fd=folder, follow_symlinks=False)  # by descriptor
        for leaf in _leaves(folder, f"{signature}-")
    ]
    return max((each.st_size for each in facts if _is_ours(each)), default=0)


def _leaves(folder: int, stem: str) -> list[bytes]:
    start = PART + stem.encode()
    descriptor = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return sorted(leaf for leaf in map(os.fsencode, os.listdir(descriptor)) if leaf.startswith(start))  # noqa: PTH208  # by descriptor
    finally:
        os.close(descriptor)


def _continue(folder: int, leaf: bytes) -> int:
    """Open a partial file that we left and that no other process uses; return its descriptor, else -1."""
    try:
        file = os.open(leaf, _CONTINUE, dir_fd=folder)
    except OSError:  # a link, or a part that has its name by now
        return -1
    if not _is_ours(os.fstat(file)):
        os.close(file)
        return -1
    return file if _hold(folder, leaf, file) else -1


def _begin(folder: int, stem: str) -> tuple[bytes, int]:
    """Make a new partial file; return its name and its descriptor."""
    while True:
        leaf = part_name(stem)
        file = create(folder, leaf)
        if _hold(folder, leaf, file):  # else another download saw it first and continues it
            return leaf, file


def _hold(folder: int, leaf: bytes, file: int) -> bool:
    """Lock an open partial file. If another process was quicker, close it and return False."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here = os.stat(leaf, dir_fd=folder, follow_symlinks=False)  # by descriptor
        if os.path.samestat(os.fstat(file), here):
            return True
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(file)
    return False


def _is_ours(facts: os.stat_result) -> bool:
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and facts.st_nlink == 1


def _unlink(folder: int, leaf: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(leaf, dir_fd=folder)  # by descriptor
