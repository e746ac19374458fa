"""Whose the folders of storages are, on a node whose tasks run as users of their own.

A private folder is its user's alone. A shared one is root's and the group's of all tasks, who may write in it. What older
versions made as root is handed over once: step by step, by open folders and by no link, and the topmost folder last, so that
it tells whether all of it was done.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from .sandbox_user import FIRST, PRIVATE, SHARED, TaskUser

INNER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = 0o444


class MovedError(Exception):
    """Somebody moved a folder while we were in it."""


def make_private(handle: int, user: TaskUser) -> None:
    """Give a folder, and what of it is root's, to its user. Where the storage does not let us, it stays as it is."""
    if os.fstat(handle).st_uid != 0:
        return
    with contextlib.suppress(OSError, MovedError):
        for inner in _owned_by_root(_opened(handle)):
            os.chown(_path(inner), user.uid, user.gid)
        os.chmod(_path(handle), PRIVATE)
        os.chown(_path(handle), user.uid, user.gid)


def make_shared(handle: int, *, is_ours: bool) -> None:
    """Let all tasks write in a folder of root's. `is_ours`: the platform made it, and what of it is root's goes with it."""
    found = os.fstat(handle)
    if found.st_uid != 0 or found.st_gid != 0:
        return  # it was done, or the operator has given it to somebody
    with contextlib.suppress(OSError, MovedError):
        for inner in _owned_by_root(_opened(handle)) if is_ours else ():
            _share(inner)
        os.chmod(_path(handle), SHARED)
        os.chown(_path(handle), -1, FIRST)


def inherit(name: str, above: int) -> None:
    """Make a new folder or file of ours the same people's as the folder that it is in."""
    found = os.fstat(above)
    if found.st_uid or found.st_gid == FIRST:
        os.chown(name, found.st_uid, found.st_gid, dir_fd=above, follow_symlinks=False)
        if found.st_gid == FIRST and not found.st_uid:
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            try:
                _share(inner)
            finally:
                os.close(inner)


def _share(handle: int) -> None:
    """Let the group do what the owner may."""
    mode = os.fstat(handle).st_mode
    os.chown(_path(handle), -1, FIRST)
    if not stat.S_ISLNK(mode):
        special = stat.S_ISGID if stat.S_ISDIR(mode) else 0
        os.chmod(_path(handle), (mode & 0o777) | (mode & stat.S_IRWXU) >> 3 | special)


def _path(handle: int) -> str:
    """A way to what a handle holds, for calls that take no handle of its kind; it leads to nothing else."""
    return f"/proc/self/fd/{handle}"


def _opened(handle: int) -> int:
    return os.open(_path(handle), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _owned_by_root(top: int) -> Iterator[int]:
    """Each thing of root's below a folder, held open for the moment. MovedError where the way back up is another one.

    Not by calls of itself, and with one folder open at a time: people make trees of any depth. `top` is closed.
    """
    here = top
    way: list[
        tuple[tuple[int, int], list[str]]
    ] = []  # of each folder above: which it is, and what is left to do in it
    left = os.listdir(here)
    try:
        while True:
            if left:
                name = left.pop()
                found = _taken(name, here)
                if found < 0:
                    continue
                try:
                    mode = os.fstat(found).st_mode
                    yield found
                finally:
                    os.close(found)
                if stat.S_ISDIR(mode):
                    way.append((_identity(here), left))
                    here = _moved(here, name)
                    left = os.listdir(here)
            elif way:
                wanted, left = way.pop()
                here = _moved(here, "..")
                if _identity(here) != wanted:
                    raise MovedError
            else:
                return
    finally:
        os.close(here)


def _moved(here: int, name: str) -> int:
    inner = os.open(name, INNER, dir_fd=here)
    os.close(here)
    return inner


def _identity(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def _taken(name: str, here: int) -> int:
    """An entry that is root's and can be given away, held open; else -1.

    Not a device, and not a file with several names: one of them may be in another's folder.
    """
    try:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except FileNotFoundError:
        return -1
    found = os.fstat(handle)
    is_one = stat.S_ISDIR(found.st_mode) or found.st_nlink == 1
    is_device = stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)
    is_here = found.st_dev == os.fstat(here).st_dev
    if found.st_uid == 0 and is_one and not is_device and is_here:
        return handle
    os.close(handle)
    return -1
