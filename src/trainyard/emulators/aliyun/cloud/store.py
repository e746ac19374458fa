"""The emulator's folder: its lock, and the single file with all state.

One file for the world, the tokens and the keys: an effect, and the token that makes it happen once, are written together
or not at all, wherever the emulator is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from trainyard.lib.errors import CapacityError, ConflictError, InvalidError
from trainyard.lib.files import write_atomic

FORMAT = 1


class Store:
    """A folder that one emulator at a time may hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "emulator.json"
        self._lock: IO[str] | None = None

    def open(self) -> dict[str, Any]:
        """Take the folder and read what was saved, nothing for a new one. ConflictError where another one has it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (self.folder / "lock").open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip()
            self._lock.close()
            raise ConflictError(
                f"an emulator is running with its state in {self.folder}{f': process {holder}' if holder else ''}",
                hint="End it first, or pass --state with another folder.",
            ) from error
        with contextlib.suppress(OSError):  # it is only told to people, and a full disk has no room for it
            os.truncate(self._lock.fileno(), 0)
            os.write(self._lock.fileno(), f"{os.getpid()}\n".encode())
        for path in self.folder.glob(f".{self._file.name}.*"):  # what somebody was killed in the midst of
            path.unlink(missing_ok=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        try:
            saved: dict[str, Any] = json.loads(self._file.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise InvalidError(
                f"{self._file} is damaged: {error}", hint="Remove it to begin with an empty cloud."
            ) from error
        if saved.get("format") != FORMAT:
            raise InvalidError(
                f"{self._file} was written by another version of the emulator",
                hint="Use that version, or remove the file to begin with an empty cloud.",
            )
        return saved

    def save(self, whole: dict[str, Any]) -> None:
        """Write everything, at once or not at all; CapacityError where the disk does not take it."""
        text = json.dumps({"format": FORMAT, **whole}, ensure_ascii=False, separators=(",", ":"))
        try:
            write_atomic(self._file, text)
        except OSError as error:
            raise CapacityError(
                f"the state of the emulator cannot be written to {self.folder}: {error.strerror}",
                hint="Make room on that disk; the emulator goes on by itself then.",
            ) from error

    def close(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
