"""People who look on while the server goes and comes back: they see everything, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a platform that is killed and started again

PRINTING = "for n in $(seq 1 60); do echo line $n; sleep 0.1; done"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["stopped", "killed"])
def test_output_is_followed_without_a_gap_when_the_server_is_started_again(program, up, tmp_path, how):
    if up.process is None:
        up.start()
    job = program("jobs", "submit", "--name", "printing", "--", PRINTING).stdout.strip()
    up.until(job, "running")
    seen = tmp_path / "seen"
    with seen.open("w") as file:
        follower = subprocess.Popen(
            [str(Path(sys.executable).parent / "trainyard"), "jobs", "logs", "-f", job],
            stdout=file,
            env={**os.environ, **program.env},
        )
    try:
        deadline = time.monotonic() + 60
        while not seen.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        port = up.port
        up.kill(how)
        up.start(port=port)
        follower.wait(120)
    finally:
        follower.kill()
        follower.wait()
    assert seen.read_text().splitlines() == [f"line {n}" for n in range(1, 61)]
    assert follower.returncode == 0
    assert program("jobs", "wait", job).returncode == 0
