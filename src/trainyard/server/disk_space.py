"""Room on the server's disk: whether there is any, and a reserve for when there is none.

    platform.db.reserve   a file of zeros beside the database, given up when the database finds no room; made again when
                          there is some
    platform.db-wal       never smaller than WAL_BYTES: what SQLite writes first goes to room that nobody else can take

A full disk must be curable from inside: what stops and deletes works on, out of the reserve; what makes more is refused.
PostgreSQL has a disk of its own, which it tells us about only by its errors.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainyard.lib.errors import DiskFullError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
RESERVE_BYTES = 16 << 20
WAL_BYTES = 16 << 20
FULL_BYTES = 8 << 20  # with less, the disk counts as full
HEALED_BYTES = (
    64 << 20
)  # with more, a full one counts as mended: the reserve fits, and it is not full again at once
LOOK_SECONDS = 0.5  # how old an answer may be
NOTED_SECONDS = (
    5.0  # how long a refused write counts, whatever the disk says of itself: quotas are not told by it
)
RENEW_SECONDS = 5.0


class DiskSpace:
    """The disks below some folders. Safe to ask from several threads. `reserve`: the file, where there is to be one."""

    def __init__(self, *folders: Path, reserve: Path | None = None) -> None:
        self._folders = folders
        self._reserve = reserve
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._noted = float("-inf")
        self._is_full = False

    def is_full(self) -> bool:
        """Whether there is no room, as of just now."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            free = min((_free_bytes(each) for each in self._folders), default=HEALED_BYTES)
            was_refused = now - self._noted < NOTED_SECONDS
            self._is_full = was_refused or free < (HEALED_BYTES if self._is_full else FULL_BYTES)
            self._looked = now
        return self._is_full

    def note(self) -> None:
        """A write was refused for want of room."""
        self._noted = time.monotonic()
        self._looked = float("-inf")

    def give_up(self) -> bool:
        """Free the reserve; False where there was none."""
        if self._reserve is None:
            return False
        with self._lock:
            try:
                self._reserve.unlink()
            except OSError:
                return False
            return True

    def renew(self) -> None:
        """Make the reserve again where it is gone and there is room; what is half made does not stay."""
        if self._reserve is None or self._reserve.exists() or self.is_full():
            return
        if _free_bytes(self._reserve.parent) < HEALED_BYTES:
            return
        with self._lock, suppress(OSError):
            handle = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, RESERVE_BYTES)
            except OSError:
                self._reserve.unlink(missing_ok=True)
                raise
            finally:
                os.close(handle)

    def check(self) -> None:
        """Refuse what makes more; DiskFullError."""
        if self.is_full():
            raise disk_full("The server's disk is full, so nothing new is taken.")


def disk_full(message: str) -> DiskFullError:
    """The error, with what to do."""
    return DiskFullError(
        message, hint="Cancel the job that fills it, or make room; stopping and deleting still work."
    )


@contextmanager
def telling_no_room(what: str) -> Iterator[None]:
    """Turn the system's errors about a full disk into ours."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise DiskFullError(
            f"There is no room on the disk for {what}: {error.strerror}.", hint="Make room, then try again."
        ) from error


def _free_bytes(folder: Path) -> int:
    """What may still be written there; none where no file can be made any more."""
    try:
        found = os.statvfs(folder)
    except OSError:  # not there yet
        return HEALED_BYTES
    if found.f_files and not (found.f_ffree if os.geteuid() == 0 else found.f_favail):
        return 0
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
