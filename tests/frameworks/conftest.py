"""Real frameworks, where `make test-frameworks` has installed them into .venv-frameworks; else these tests are skipped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from framework_lab import BIN, VISIBLE

from platforms import Up, platform


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Up]:
    """A platform with two nodes of eight declared NPUs each, whose tasks find the frameworks in PATH."""
    env = {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with platform(tmp_path, env=env) as up:
        for name in ("atlas-1", "atlas-2"):
            body = {"name": name, "address": {"backend": "local"}, "devices": {"Ascend910": 8}}
            up.call("POST", "/api/v1/nodes", body)
            up.call("PATCH", f"/api/v1/nodes/{name}", {"options": {"visible": VISIBLE}})
        deadline = time.monotonic() + 60
        while any(node["state"] != "ready" for node in up.call("GET", "/api/v1/nodes")["items"]):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield up
