"""A large file that is being downloaded, as far as it has come. Uploads have theirs on the machine, in `sinks.sh`."""

from __future__ import annotations

import fcntl
import hashlib
import os

from trainyard.lib.ids import new_id
from trainyard.transport.copy.delivery import TAIL
from trainyard.transport.copy.extraction import PART


class Part:
    """A large file as far as it has come, beside its final name. One process at a time continues it."""

    def __init__(self, path: bytes, signature: str) -> None:
        folder = path.rpartition(b"/")[0] or b"/"
        self._final = path
        self._name = folder + b"/" + PART + signature.encode()
        self._file = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_shared = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another download of the same file is at it
            os.close(self._file)
            self._name += b"." + new_id().encode()
            self._file = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._is_shared = False
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
        """Give it its name, mode and time."""
        os.fchmod(self._file, mode & 0o777 | 0o600)
        os.utime(self._file, ns=(mtime_ns, mtime_ns))
        os.replace(self._name, self._final)  # noqa: PTH105  # bytes
        self._is_shared = True

    def close(self) -> None:
        """Let go; a part of our own that is not complete is of no use to anybody."""
        os.close(self._file)
        if not self._is_shared:
            os.unlink(self._name)  # noqa: PTH108
