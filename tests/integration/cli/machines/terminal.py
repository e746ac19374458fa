"""The program in a real terminal: a pty driven by pexpect, its picture kept by pyte."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pexpect
import pyte

BIN = Path(sys.executable).parent
PATIENCE = 60.0  # a loaded machine with two cores starts the program in seconds


class Terminal:
    """One run of a program in a terminal of a given size."""

    def __init__(
        self, *words: str, columns: int = 80, rows: int = 40, program: str = "trainyard", **env: str
    ) -> None:
        self.screen_buffer = pyte.HistoryScreen(columns, rows, history=2000)
        self._stream = pyte.ByteStream(self.screen_buffer)
        environ = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **env}
        environ.pop("COLUMNS", None)
        environ.pop("LINES", None)
        self.raw = b""
        self.child = pexpect.spawn(
            str(BIN / program), list(words), dimensions=(rows, columns), env=environ, timeout=PATIENCE
        )
        self.child.delaybeforesend = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.close(force=True)

    @property
    def text(self) -> str:
        """What the terminal shows, lines without blanks at their ends, nothing after the last."""
        return "\n".join(line.rstrip() for line in self.screen_buffer.display).rstrip() + "\n"

    def read(self, seconds: float) -> bool:
        """Take what has come; False at the end."""
        try:
            piece = self.child.read_nonblocking(65536, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += piece
        self._stream.feed(piece)
        return True

    def wait_for(self, text: str) -> None:
        """Wait until the terminal shows a text."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.text:
            if not self.read(0.05) or time.monotonic() > deadline:
                raise AssertionError(f"{text!r} did not appear; the terminal shows:\n{self.text}")

    def type(self, text: str) -> None:
        """Press keys."""
        self.child.send(text)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.child.sendintr()

    def finish(self) -> int:
        """Wait for the end; the exit status (128 + signal where one ended it)."""
        deadline = time.monotonic() + PATIENCE
        while self.read(0.2):
            if time.monotonic() > deadline:
                raise AssertionError(f"it does not end; the terminal shows:\n{self.text}")
        self.child.wait()
        return self.child.exitstatus if self.child.exitstatus is not None else 128 + self.child.signalstatus


def shows(*words: str, **options: object) -> str:
    """What a whole run leaves on the terminal."""
    with Terminal(*words, **options) as terminal:  # type: ignore[arg-type]  # passed through
        terminal.finish()
        return terminal.text
