"""The context that all tasks and jobs of one client share: the backend, the reporter, the log folders.

It is a value that is passed along, never a global. The blocking API keeps one per process in `sync.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from trainyard.backends.api import Backend
from trainyard.lib.clock import Clock, SystemClock


class Reporter(Protocol):
    """Receives what tasks and jobs report. A terminal, a log and a test each implement it."""

    def log(self, name: str, message: str, level: str = "INFO") -> None:
        """Take one line about a task or job."""
        ...

    def output(self, name: str, piece: bytes) -> None:
        """Take bytes that a command has just printed. `name` is '' if no task's name should be shown."""
        ...

    def transfer(self, machine: str, done: int, total: int) -> None:
        """Take a copy's progress: `done` of `total` bytes have reached the machine."""
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
    """The context of one client. `logdirs` maps each run to its log folder, which is chosen once."""

    backend: Backend
    reporter: Reporter = field(default_factory=SilentReporter)
    clock: Clock = field(default_factory=SystemClock)
    logdir_root: str = "~/.trainyard/runs"
    logdirs: dict[str, str] = field(default_factory=dict)
