"""Signed requests at the compatible door, a second: one `trainyard up` on SQLite and one on PostgreSQL, and one, 8 and 64 clients.

Each request has a signature and a nonce of its own, which the server checks and keeps. They are signed before the clock starts.
`python -m benchmarks signed_requests`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Row

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from platforms import Up, platform
from postgres import running as running_postgres
from signed_requests import as_bytes, signed, statuses

CLIENTS = (1, 8, 64)


def measure(*, quick: bool = False) -> list[Row]:
    """SQLite, then PostgreSQL."""
    count = 320 if quick else 3200
    with tempfile.TemporaryDirectory(prefix="bench-signed-") as folder:
        rows = _measure(Path(folder), "SQLite", count)
    if not quick:
        with tempfile.TemporaryDirectory(prefix="bench-signed-") as folder, running_postgres() as postgres:
            rows += _measure(Path(folder), "PostgreSQL", count, "--database", postgres.database())
    return rows


def _measure(folder: Path, name: str, count: int, *options: str) -> list[Row]:
    rows = []
    with platform(folder / "platform", *options) as up:
        key = up.call("POST", "/api/v1/access-keys", {"name": "bench"})
        for clients in CLIENTS:
            requests = [as_bytes(signed(key["id"], key["secret"])) for _ in range(count)]
            case, before = f"{name}: signed requests, {clients} at once", _spent(up)
            seconds = asyncio.run(_send(up, requests, clients))
            rows.append(Row(case, count / seconds, "", None, unit="/s"))
            # Of the server alone, whatever else the machine does.
            spent = (_spent(up) - before) / count
            rows.append(Row(f"{case}, processor time of one", spent, "", None))
    return rows


async def _send(up: Up, requests: list[bytes], clients: int) -> float:
    began = time.perf_counter()
    found = await statuses(up.port, requests, connections=clients)
    assert set(found) == {200}
    return time.perf_counter() - began


def _spent(up: Up) -> float:
    assert up.process is not None
    fields = Path(f"/proc/{up.process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
