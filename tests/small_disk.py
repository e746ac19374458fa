"""A small disk of a test's own, to be filled: tmpfs, which only root may mount."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """The folder, and the file that takes all of its room."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Take what room there is, to the last byte."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size):
                        continue

    def free(self) -> None:
        """Give it back."""
        self._filler.unlink(missing_ok=True)

    @property
    def is_full(self) -> bool:
        try:
            (self.folder / "probe").write_bytes(b"x" * 4096)
        except OSError as error:
            return error.errno == errno.ENOSPC
        finally:
            (self.folder / "probe").unlink(missing_ok=True)
        return False


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """Mount one at a folder, which is made."""
    if os.geteuid():
        pytest.skip("only root may mount a file system")
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
