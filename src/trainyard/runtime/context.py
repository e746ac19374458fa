"""What the tasks and jobs of one client share: the backend, who is told what happens, where logs go.

A value that is passed along, never a global: the blocking door keeps one per process in `sync.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from trainyard.backends.api import Backend
from trainyard.lib.clock import Clock, SystemClock


class Reporter(Protocol):
    """Somebody who is told what happens: a terminal, a log, a test."""

    def log(self, name: str, message: str, level: str = "INFO") -> None:
        """One line about a task or job."""
        ...

    def output(self, name: str, piece: bytes) -> None:
        """Bytes that a command printed just now; `name` is '' where no task's name should be shown."""
        ...

    def transfer(self, machine: str, done: int, total: int) -> None:
        """How many bytes of a copy have reached a machine."""
        ...


class SilentReporter:
    """A reporter that says nothing."""

    def log(self, name: str, message: str, level: str = "INFO") -> None:
        """Say nothing."""

    def output(self, name: str, piece: bytes) -> None:
        """Say nothing."""

    def transfer(self, machine: str, done: int, total: int) -> None:
        """Say nothing."""


@dataclass(slots=True)
class Context:
    """One client's view. `logdirs` remembers the log folder of each run, which is chosen once."""

    backend: Backend
    reporter: Reporter = field(default_factory=SilentReporter)
    clock: Clock = field(default_factory=SystemClock)
    logdir_root: str = "~/.trainyard/runs"
    logdirs: dict[str, str] = field(default_factory=dict)
