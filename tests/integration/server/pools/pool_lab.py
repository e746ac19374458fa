"""One platform whose only nodes are bought, and the emulated cloud that it buys from."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from emulation import Emulation
from platforms import Up, stop_all

PATIENCE = 120.0


class Lab:
    """One platform and the cloud that it buys from."""

    def __init__(self, up: Up, cloud: Emulation) -> None:
        self.up = up
        self.cloud = cloud
        self.name = ""  # of the pool of this test: the books of the others stay
        self._tests = 0
        self._seq = 0  # of the last event before this test

    def begin(self) -> None:
        """A pool's name for the next test."""
        self._tests += 1
        self.name = f"cpu{self._tests}"
        while found := self._events():
            self._seq = found[-1]["seq"]

    def end(self) -> None:
        """No jobs, no pools, no machines: as it was in the beginning, but for what is told of the past."""
        self.cloud.control("DELETE", "faults")
        if self.up.process is None:
            self.up.start()
        stop_all(self.up)
        for pool in self.pools():
            self.up.call("DELETE", f"/api/v1/pools/{pool['name']}")
        self.until(lambda: not self.pools())

    def pools(self) -> Any:
        return self.up.call("GET", "/api/v1/pools")["items"]

    def create(self, **given: Any) -> Any:
        body = {"name": self.name, "types": ["ecs.g6.large"], "most": 2, "idle_seconds": 1, **given}
        return self.up.call("POST", "/api/v1/pools", body)

    def pool(self) -> Any:
        return self.up.call("GET", f"/api/v1/pools/{self.name}")

    def explain(self, job: str, language: str = "en") -> Any:
        return self.up.call("GET", f"/api/v1/jobs/{job}/explanation?language={language}")

    def lines(self, job: str, attempt: int) -> list[str]:
        """What one attempt has printed."""
        found = self.up.call("GET", f"/api/v1/jobs/{job}/logs?attempt={attempt}")["items"]
        return [line["text"] for line in found]

    def until(self, is_so: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := is_so()):
            assert time.monotonic() < deadline, (self.up.folder / "up.err").read_text()[-3000:]
            time.sleep(0.1)
        return found

    def until_empty(self) -> Any:
        """Wait until the pool has no machine, and the provider none of ours."""
        pool = self.until(lambda: (found := self.pool())["size"] == 0 and found)
        assert self.cloud.instances() == []
        return pool

    def events(self, code: str) -> list[Any]:
        return [one for one in self._events() if one["subject"] == "pool" and one["code"] == code]

    def _events(self) -> list[Any]:
        return self.up.call("GET", f"/api/v1/events?cursor={self._seq}&limit=500")["items"]

    def bought(self) -> int:
        """Instances that were ever billed."""
        return sum(line["kind"] == "instance" for line in self.cloud.control("GET", "bill")["lines"])

    def spent(self) -> Decimal:
        return Decimal(self.cloud.control("GET", "bill")["spent"])

    def platform_id(self) -> str:
        with contextlib.closing(sqlite3.connect(self.up.data / "platform.db")) as db:
            row = db.execute("SELECT value FROM settings WHERE key = 'platform_id'").fetchone()
        return str(row[0]).strip('"')

    def program(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`trainyard`, logged in by the environment."""
        env = {**os.environ, "TRAINYARD_SERVER": self.up.url, "TRAINYARD_TOKEN": self.up.token}
        argv = [sys.executable, "-m", "trainyard.cli.main", *words]
        return subprocess.run(
            argv, env=env, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
        )
