"""The emulator's clock: real time that can be moved ahead or run faster."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any


class AdjustableClock:
    """What the emulated cloud takes for now. It never steps back, and goes on while the emulator is not running."""

    def __init__(self) -> None:
        self._base = self._real = time.time()
        self.rate = 1.0
        """How many times as fast as real time it goes; changed by `set_rate`."""
        self.skew_seconds = 0.0
        """By how much the gateway believes clients' clocks to be behind: to try what a wrong clock does."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        return datetime.fromtimestamp(self._base + (time.time() - self._real) * self.rate, UTC)

    def gateway_now(self) -> datetime:
        """What signatures are compared with: clients sign with real time, however far the cloud's has been pushed."""
        return datetime.now(UTC) + timedelta(seconds=self.skew_seconds)

    def advance(self, seconds: float) -> None:
        """Let so much time have passed."""
        self._rebase()
        self._base += max(0.0, seconds)

    def set_rate(self, rate: float) -> None:
        """Let time pass so many times as fast from now on; 0 stops it."""
        self._rebase()
        self.rate = max(0.0, rate)

    def _rebase(self) -> None:
        real = time.time()
        self._base += (real - self._real) * self.rate
        self._real = real

    def save(self) -> dict[str, Any]:
        """For the store and for people."""
        return {
            "now": self.now().isoformat(),
            "rate": self.rate,
            "skew_seconds": self.skew_seconds,
            "base": self._base,
            "real": self._real,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """From the store."""
        self._base, self._real = float(saved["base"]), float(saved["real"])
        self.rate = float(saved["rate"])
        self.skew_seconds = float(saved.get("skew_seconds", 0.0))
