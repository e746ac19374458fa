"""What Linux offers and Python's library does not: subreapers, inotify, holes in files."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from trainyard.lib.read_file import read_file

MARK = "TRAINYARD_MARK"  # a variable that every process of a task begins with
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
FALLOC_KEEP_SIZE = 1
FALLOC_PUNCH_HOLE = 2
IN_MODIFY = 0x2
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONESHOT = 0x80000000
IN_CLOEXEC = 0o2000000
IN_NONBLOCK = 0o4000
EVENT = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl  # looked up here, once, and not in every child


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def become_subreaper() -> None:
    """Inherit every orphan among our descendants, however often it forked."""
    _checked(_prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def die_with_parent(number: int) -> None:
    """Get this signal when the process that forked us ends, however it does."""
    _checked(_prctl(PR_SET_PDEATHSIG, number, 0, 0, 0))


def hide_memory() -> None:
    """Let nobody look at this process, nor at what it forks, until that has become another program."""
    _checked(_prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))


def reserve(descriptor: int, length: int) -> None:
    """Take room on the disk now, so that writing later cannot fail for want of it. OSError(ENOSPC) where there is none."""
    zero, size = ctypes.c_longlong(0), ctypes.c_longlong(length)
    if _libc.fallocate(descriptor, FALLOC_KEEP_SIZE, zero, size) < 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT):  # others: a file system that cannot do it
            raise OSError(number, os.strerror(number))


def punch_hole(descriptor: int, offset: int, length: int) -> bool:
    """Give the disk blocks of a range back; False where the file system cannot."""
    mode = FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE
    begin, size = ctypes.c_longlong(offset), ctypes.c_longlong(length)
    return bool(_libc.fallocate(descriptor, mode, begin, size) == 0)


def disk_bytes_of(pid: int | str) -> tuple[int, int]:
    """What a process and those of its children that it has outlived have read from disks and written to them; 0 where nobody says."""
    try:
        words = read_file(f"/proc/{pid}/io").split()
        return int(words[words.index(b"read_bytes:") + 1]), int(words[words.index(b"write_bytes:") + 1])
    except (OSError, ValueError, IndexError):
        return 0, 0


class Inotify:
    """Which files were written to. `add` fails with OSError where the user has no watch left."""

    def __init__(self) -> None:
        self.descriptor = _checked(_libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK))

    def fileno(self) -> int:
        """For a selector."""
        return self.descriptor

    def add(self, path: bytes, *, once: bool) -> int:
        """Watch a file; `once`: only until its next change."""
        mask = ctypes.c_uint32(IN_MODIFY | (IN_ONESHOT if once else 0))
        return _checked(_libc.inotify_add_watch(self.descriptor, path, mask))

    def remove(self, watch: int) -> None:
        """Watch no more; no error where it ended by itself."""
        _libc.inotify_rm_watch(self.descriptor, watch)

    def read(self) -> list[tuple[int, int]]:
        """(watch, mask) of what has happened."""
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return []
        events, at = [], 0
        while at < len(data):
            watch, mask, _, length = EVENT.unpack_from(data, at)
            events.append((watch, mask))
            at += EVENT.size + length
        return events
