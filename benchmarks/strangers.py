"""What connections without an account cost one `trainyard up`: how soon /health answers, and memory.

Idle connections, half-sent headers and bodies are opened by this process over loopback. `python -m benchmarks strangers`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.measure import Row

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from platforms import Up, platform
from strangers import connections, memory_mib

LOOKS = 20
HALF = b"GET /api/v1/health HTTP/1.1\r\nx: " + b"a" * 4000
BODY = b"POST /api/v1/jobs HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n" + b"{" * 50_000


def measure(*, quick: bool = False) -> list[Row]:
    """Nobody; then each kind."""
    idle = 500 if quick else 5000
    with tempfile.TemporaryDirectory(prefix="bench-strangers-") as folder, platform(Path(folder)) as up:
        _health_seconds(up)  # what is loaded at the first request
        rows = [Row("health, no strangers", _health_seconds(up), "", None)]
        for case, count, said in (
            (f"{idle} idle connections", idle, b""),
            ("1200 half-sent headers", 1200, HALF),
            ("300 bodies that do not end", 300, BODY),
        ):
            before = memory_mib(up)
            with connections(up, count, said):
                rows.append(Row(f"health, {case}", _health_seconds(up), "", None))
                rows.append(Row(f"memory of {case}", memory_mib(up) - before, "", None, unit="MiB"))
    return rows


def _health_seconds(up: Up) -> float:
    """The median of some answers, each over a new connection."""
    times = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        with urllib.request.urlopen(f"{up.url}/api/v1/health", timeout=60) as answer:
            answer.read()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
