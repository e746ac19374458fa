"""Removing a folder that others have filled, however deep, wide or locked it is; no link is followed, no mount is entered.

A folder below is moved up to the top before it is emptied there. So nothing calls itself, no path grows long, and three
descriptors and a few names are all that is held, whatever somebody has made.

Python 3.8 and its standard library only: the program on a node has this module too, see engines/nodes/agent_bundle.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from typing import TYPE_CHECKING

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
GET_FLAGS, SET_FLAGS = 0x80086601, 0x40086602  # of a file system's own flags, on machines of 64 bits
LOCKING_FLAGS = 0x10 | 0x20  # nothing of it changes; it only grows
_FLAGS = struct.Struct("l")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Act = Callable[[], object]


def remove_tree(path: str | os.PathLike[str]) -> OSError | None:
    """Delete a folder with all in it, as far as that is possible. None, or why something is left.

    What is not there is gone. What is no folder is deleted as it is. Two may do it at once.
    """
    try:
        top = _open_folder(os.fspath(path))
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return _try(lambda: os.unlink(path))
    except OSError as error:
        return error
    try:
        emptying = _Emptying(top)
        while emptying.pass_over_top():
            pass
    finally:
        os.close(top)
    problem = _try(lambda: os.rmdir(path))
    return None if problem is None or isinstance(problem, FileNotFoundError) else emptying.problem or problem


class _Emptying:
    """One folder on its way to be empty."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._prefix = f".{os.urandom(8).hex()}."  # of folders that we have moved up; nobody else guesses it
        self._number = 0
        self._stuck: set[str] = set()  # in the top, what does not move: mounts
        self.problem: OSError | None = None  # the last one

    def pass_over_top(self) -> int:
        """Look once at all that is in the top; how many things are gone or were moved since."""
        done = 0
        for name, is_folder in _entries(self._top):
            if not is_folder:
                done += self._unlink(self._top, name)
                continue
            if name in self._stuck:
                continue
            place = name
            if not name.startswith(self._prefix):
                place = self._move_up(self._top, name)  # a mount does not move, and is not entered
            if place:
                done += self._remove_folder(place)
            else:
                self._stuck.add(name)
        return done

    def _remove_folder(self, name: str) -> int:
        """Remove a folder in the top; folders in it are moved beside it."""
        try:
            handle = _open_folder(name, self._top)
        except OSError as error:
            self._note(error)
            return 0
        done = 0
        try:
            while moved := self._pass_over(handle):
                done += moved
        finally:
            os.close(handle)
        return done + self._do(lambda: os.rmdir(name, dir_fd=self._top), self._top, name)

    def _pass_over(self, handle: int) -> int:
        done = 0
        for name, is_folder in _entries(handle):
            done += bool(self._move_up(handle, name)) if is_folder else self._unlink(handle, name)
        return done

    def _unlink(self, above: int, name: str) -> bool:
        return self._do(lambda: os.unlink(name, dir_fd=above), above, name)

    def _move_up(self, above: int, name: str) -> str:
        """The new name of a folder in the top; empty where it stays."""
        self._number += 1
        new = f"{self._prefix}{self._number}"
        is_moved = self._do(lambda: os.rename(name, new, src_dir_fd=above, dst_dir_fd=self._top), above, name)
        return new if is_moved else ""

    def _do(self, act: Act, above: int, name: str) -> bool:
        """Do something to an entry of a folder; where rights or flags forbid it, they are taken away first."""
        problem = _try(act)
        if isinstance(problem, PermissionError):
            _unlock(above)
            with contextlib.suppress(OSError):
                _unlock_entry(above, name)
            problem = _try(act)
        if problem is not None:
            self._note(problem)
        return problem is None

    def _note(self, problem: OSError) -> None:
        if not isinstance(problem, FileNotFoundError):  # another does the same
            self.problem = problem


def _try(act: Act) -> OSError | None:
    try:
        act()
    except OSError as error:
        return error
    return None


def _entries(handle: int) -> Iterator[tuple[str, bool]]:
    """Each name in a folder, and whether it is a folder itself; read piece by piece, since there may be millions."""
    try:
        with os.scandir(handle) as found:
            for entry in found:
                yield entry.name, entry.is_dir(follow_symlinks=False)
    except OSError:  # the disk cannot read it: deleting the folder says so
        return


def _open_folder(path: str, above: int | None = None) -> int:
    try:
        return os.open(path, FOLDER, dir_fd=above)
    except PermissionError:
        _unlock_entry(above, path)
        return os.open(path, FOLDER, dir_fd=above)
    except OSError as error:
        if error.errno == errno.ELOOP:  # some say so of a link
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error
        raise


def _unlock_entry(above: int | None, name: str) -> None:
    """Let a file be deleted, a folder be entered and emptied; by no link, and by opening nothing that is a device."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            inner = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _take_flags(inner)
            finally:
                os.close(inner)
    except (
        PermissionError
    ):  # of a folder that is ours and has no rights; its flags nobody else could have set
        pass
    finally:
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(mode):
                os.chmod(f"/proc/self/fd/{handle}", 0o700)
        os.close(handle)


def _unlock(folder: int) -> None:
    _take_flags(folder)
    with contextlib.suppress(OSError):  # it is somebody else's
        os.fchmod(folder, 0o700)


def _take_flags(handle: int) -> None:
    """Take away the flags that forbid everybody to delete something."""
    with contextlib.suppress(OSError):  # a file system without them, or a user who may not
        found = bytearray(_FLAGS.size)
        fcntl.ioctl(handle, GET_FLAGS, found)
        flags = _FLAGS.unpack(found)[0]
        if flags & LOCKING_FLAGS:
            fcntl.ioctl(handle, SET_FLAGS, _FLAGS.pack(flags & ~LOCKING_FLAGS))
