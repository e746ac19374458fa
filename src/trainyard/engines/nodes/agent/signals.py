"""Signals by name; and whether somebody asked us to go, with a way to wait that misses neither that nor the end of a child."""

from __future__ import annotations

import os
import select
import signal


class EndSignal:
    """A signal that asks us to go, heard for good.

    A handler of Python's runs between two of its steps: who has just gone to wait for a child would hear of a signal only
    when that has ended. So the signal itself writes into a pipe, and who waits looks at that.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self.is_told = False
        self._wakes, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake)
        for number in numbers or (signal.SIGTERM,):
            signal.signal(number, self._hear)

    def _hear(self, _number: int, _frame: object) -> None:
        self.is_told = True

    def pause(self, seconds: float | None) -> None:
        """Wait for a signal, at most so long; not at all where one came since the last time."""
        if select.select([self._wakes], [], [], seconds)[0]:
            os.read(self._wakes, 4096)


def _wake(_number: int, _frame: object) -> None:
    """A signal that is only to wake us."""


def signal_name(number: int) -> str:
    """SIGTERM and the like; those of the real-time range have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
