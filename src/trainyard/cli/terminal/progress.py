"""Computes progress lines: the sum over all machines, with a limited number of redraws. `output.py` prints them."""

from __future__ import annotations

import time

from trainyard.cli.terminal.output import Output
from trainyard.lib.units import format_size

REDRAW_SECONDS = 0.1
BAR = 20


class TransferBar:
    """`uploading [######----]  43%  1.2 GB of 2.8 GB  310 MB/s`, over all machines; nothing if not a terminal."""

    def __init__(self, output: Output, label: str) -> None:
        self.label = label
        self._output = output
        self._machines: dict[str, tuple[int, int]] = {}
        self._started = 0.0
        self._drawn = 0.0

    def update(self, machine: str, done: int, total: int) -> None:
        """One machine has got further."""
        now = time.monotonic()
        if not self._machines:
            self._started = now
        self._machines[machine] = (done, total)
        if now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._output.draw(self._text(now))

    def close(self) -> None:
        """Take it away."""
        self._output.erase()
        self._machines = {}

    def _text(self, now: float) -> str:
        done = sum(have for have, _ in self._machines.values())
        total = sum(all_of_it for _, all_of_it in self._machines.values())
        rate = done / max(now - self._started, 0.001)
        share = min(1.0, done / total) if total else 1.0
        bar = "#" * round(share * BAR)
        text = (
            f"{self.label} [{bar:-<{BAR}}] {100 * share:3.0f}%  {format_size(done)} of {format_size(total)}"
        )
        text += f"  {format_size(rate)}/s" if now - self._started > 0.5 else ""
        return text + (f"  to {len(self._machines)} machines" if len(self._machines) > 1 else "")


class CountBar:
    """`starting [#####-----]  1 of 2 machines  3 s`."""

    def __init__(self, output: Output, label: str) -> None:
        self.label = label
        self._output = output
        self._started = time.monotonic()

    def update(self, done: int, total: int) -> None:
        """So many are ready."""
        bar = "#" * round(BAR * done / max(total, 1))
        seconds = time.monotonic() - self._started
        elapsed = f"  {seconds:.0f} s" if seconds >= 1 else ""
        noun = "machine" if total == 1 else "machines"
        self._output.draw(f"{self.label} [{bar:-<{BAR}}] {done} of {total} {noun}{elapsed}")

    def close(self) -> None:
        """Take it away."""
        self._output.erase()
