"""The Reporter of the command line: prints the runtime's log lines, live output and transfers."""

from __future__ import annotations

import json
import time

from trainyard.cli.terminal.output import TASK_COLOURS, Output
from trainyard.cli.terminal.progress import TransferBar

SHOWN_LEVELS = frozenset({"WARN", "WARNING", "ERROR", "FATAL"})
REDRAW_SECONDS = 1.0  # a progress bar of the task's own makes at most one line a second here
LONGEST_LINE = 65536  # output without line ends is broken here, so that it needs no more memory than this


class LinePrefixer:
    """Puts a task's name before each line of its output, so that several can share one terminal.

    A line that its program redraws with carriage returns shows its last state, and now and then one on the way.
    """

    def __init__(self, output: Output, name: str, *, width: int, colour: str) -> None:
        self._output = output
        self._prefix = output.paint(f"{name:<{width}} |", colour).encode() + b" "
        self._partial = b""
        self._drawn = 0.0

    def feed(self, piece: bytes) -> None:
        """Take what was printed."""
        *lines, self._partial = (self._partial + piece).split(b"\n")
        self._write(lines)
        if len(self._partial) > LONGEST_LINE:
            self.close()
        elif b"\r" in self._partial and time.monotonic() - self._drawn > REDRAW_SECONDS:
            shown, _, self._partial = self._partial.rpartition(b"\r")
            self._write([shown])

    def close(self) -> None:
        """The end of a last line without an end."""
        if self._partial:
            self._write([self._partial])
            self._partial = b""

    def _write(self, lines: list[bytes]) -> None:
        if lines:  # at once: a million lines one by one take half a minute
            self._drawn = time.monotonic()
            self._output.raw(b"".join([self._prefix + _last_state(line) + b"\n" for line in lines]))


def _last_state(line: bytes) -> bytes:
    """What a line shows in the end, if its program went back to its beginning."""
    return line.rstrip(b"\r").rpartition(b"\r")[2] if b"\r" in line else line


class Streams:
    """Live output of one task as it is, of several with names."""

    def __init__(self, output: Output, names: list[str]) -> None:
        self._output = output
        width = max((len(name) for name in names), default=0)
        self._prefixers = (
            {
                name: LinePrefixer(output, name, width=width, colour=TASK_COLOURS[place % len(TASK_COLOURS)])
                for place, name in enumerate(names)
            }
            if len(names) > 1
            else {}
        )

    def feed(self, name: str, piece: bytes) -> None:
        """A task printed something."""
        prefixer = self._prefixers.get(name)
        if prefixer is None:
            self._output.raw(piece)
        else:
            prefixer.feed(piece)

    def close(self) -> None:
        """Nothing more comes."""
        for prefixer in self._prefixers.values():
            prefixer.close()


class JsonStreams:
    """Live output for programs: one JSON object a line."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._partial: dict[str, bytes] = {}

    def feed(self, name: str, piece: bytes) -> None:
        """A task printed something."""
        *lines, self._partial[name] = (self._partial.get(name, b"") + piece).split(b"\n")
        self._write(name, lines)
        if len(self._partial[name]) > LONGEST_LINE:
            self._write(name, [self._partial.pop(name)])

    def close(self) -> None:
        """Nothing more comes."""
        for name, line in self._partial.items():
            if line:
                self._write(name, [line])
        self._partial = {}

    def _write(self, name: str, lines: list[bytes]) -> None:
        records = [{"name": name, "line": line.decode(errors="backslashreplace")} for line in lines]
        self._output.raw(
            "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records).encode()
        )


class TerminalReporter:
    """The runtime's reporter: warnings as remarks, transfers as a bar."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.bar = TransferBar(output, "copying")

    def log(self, name: str, message: str, level: str = "INFO") -> None:
        """Show warnings and errors. The commands themselves report success."""
        if level in SHOWN_LEVELS:
            self._output.note(f"{name}: {message}", "yellow")

    def output(self, name: str, piece: bytes) -> None:  # noqa: ARG002  # the reporter's signature
        """Show what a command printed."""
        self._output.raw(piece)

    def transfer(self, machine: str, done: int, total: int) -> None:
        """Move the bar."""
        self.bar.update(machine, done, total)

    def close(self) -> None:
        """Take the bar away."""
        self.bar.close()
