"""A large file that is being downloaded, as far as it has come. Uploads have theirs on the machine, in `sinks.sh`."""

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
    """A large file as far as it has come, beside its final name. One process at a time continues it.

    Its own name ends at random, and it is only ever made new or continued as what we left: a plain file of ours with one
    name. So nothing that a machine has put there is written through.
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
        """What is there is of another file."""
        os.ftruncate(self._file, 0)
        self.offset = 0

    def complete(self, mode: int, mtime_ns: int) -> None:
        """Give it its name, mode and time; other parts of the same file that nobody continues go."""
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
        """Give its space back: the disk is full."""
        if not self._is_named:
            folder, _ = self._tree.parent(self._final)
            _unlink(folder, self._leaf)

    def close(self) -> None:
        """Let go; what is not complete stays, to be continued. Nothing is not worth keeping."""
        if not self.offset:
            self.discard()
        os.close(self._file)


def part_size(tree: TargetFolder, name: bytes, signature: str) -> int:
    """How much of a large file is here."""
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
    """The descriptor of a part that we left and that nobody else is at; -1 for everything else."""
    try:
        file = os.open(leaf, _CONTINUE, dir_fd=folder)
    except OSError:  # a link, or a part that has its name by now
        return -1
    if not _is_ours(os.fstat(file)):
        os.close(file)
        return -1
    return file if _hold(folder, leaf, file) else -1


def _begin(folder: int, stem: str) -> tuple[bytes, int]:
    """A new part: its name and its descriptor."""
    while True:
        leaf = part_name(stem)
        file = create(folder, leaf)
        if _hold(folder, leaf, file):  # else another download saw it first and continues it
            return leaf, file


def _hold(folder: int, leaf: bytes, file: int) -> bool:
    """Keep others from an open part; False, and closed, where somebody was quicker."""
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
