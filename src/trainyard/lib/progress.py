"""A progress line for a terminal: one line, redrawn at most ten times a second, gone when it is done."""

from __future__ import annotations

import time
from typing import TextIO

from trainyard.lib.units import format_size

REDRAW_SECONDS = 0.1


class TransferLine:
    """Shows `uploading  43%  1.2 GB of 2.8 GB  310 MB/s` for the sum over all machines; nothing if not a terminal."""

    def __init__(self, stream: TextIO, *, label: str = "copying") -> None:
        self._stream = stream
        self._label = label
        self._done: dict[str, tuple[int, int]] = {}
        self._started = self._drawn = 0.0
        self._is_terminal = stream.isatty()

    def update(self, machine: str, done: int, total: int) -> None:
        """One machine has got further."""
        if not self._is_terminal:
            return
        now = time.monotonic()
        if not self._done:
            self._started = now
        self._done[machine] = (done, total)
        finished = all(have >= all_of_it for have, all_of_it in self._done.values())
        if finished:
            self._clear()
        elif now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._stream.write("\r\033[K" + self._text(now)[:79])
            self._stream.flush()

    def _text(self, now: float) -> str:
        done = sum(have for have, _ in self._done.values())
        total = sum(all_of_it for _, all_of_it in self._done.values()) or 1
        rate = done / max(now - self._started, 0.001)
        machines = f"  to {len(self._done)} machines" if len(self._done) > 1 else ""
        return (
            f"{self._label} {100 * done // total:3d}%  {format_size(done)} of {format_size(total)}"
            f"  {format_size(rate)}/s{machines}"
        )

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write("\r\033[K")
            self._stream.flush()
        self._done = {}
        self._drawn = 0.0
