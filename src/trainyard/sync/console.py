"""The reporter for scripts: prints log lines, live output and the progress of transfers to the terminal."""

from __future__ import annotations

import sys
import threading
from datetime import datetime

from trainyard.lib.progress import TransferLine

LEVELS = {"TRACE": 0, "DEBUG": 10, "INFO": 20, "WARN": 30, "WARNING": 30, "ERROR": 40, "FATAL": 50}


class ConsoleReporter:
    """Writes to the current stdout. With several tasks, live lines begin with the task's name."""

    def __init__(self, level: str = "INFO") -> None:
        self._level = LEVELS.get(level, 20)
        self._partial: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._line: TransferLine | None = None

    def log(self, name: str, message: str, level: str = "INFO") -> None:
        """`[2026-01-01 12:00:00.000 task0.bert INFO]# message`."""
        if LEVELS.get(level, 20) < self._level:
            return
        stamp = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        self._write(f"[{stamp} {name} {level}]# {message}\n".encode(errors="replace"))

    def output(self, name: str, piece: bytes) -> None:
        """Bytes as they come; with a name, whole lines behind it."""
        if not name:
            self._write(piece)
            return
        *lines, rest = (self._partial.get(name, b"") + piece).split(b"\n")
        self._partial[name] = rest
        if lines:
            head = f"{name}| ".encode()
            self._write(b"".join(head + line + b"\n" for line in lines))

    def transfer(self, machine: str, done: int, total: int) -> None:
        """A line on stderr while bytes travel."""
        if self._line is None:
            self._line = TransferLine(sys.stderr)
        self._line.update(machine, done, total)

    def _write(self, data: bytes) -> None:
        with self._lock:
            stream = sys.stdout
            buffer = getattr(stream, "buffer", None)
            if buffer is not None:
                stream.flush()
                buffer.write(data)
                buffer.flush()
            else:  # a notebook's stdout has text only
                stream.write(data.decode(errors="backslashreplace"))
                stream.flush()
