"""A machine loses its power: server, agent, supervisors and tasks are gone at once, and it comes up as another boot.

What ran goes back to the queue and is started again, once; what had ended stays as it was; nothing runs twice.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from platforms import Up, processes_of, stop_all

# A namespace of processes ends as a whole with its first one, as a machine does; its boot is another one each time.
SCRIPT = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"'
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="namespaces need root"),
    pytest.mark.timeout(240),
]


def switch_on(up: Up, *, port: int = 0) -> None:
    boot = up.folder / f"boot-{uuid.uuid4()}"
    boot.write_text(f"{uuid.uuid4()}\n")
    namespaces = ["unshare", "-m", "-p", "-f", "--kill-child", "--mount-proc"]
    up.python = [*namespaces, "sh", "-c", SCRIPT, "sh", str(boot), sys.executable]
    up.start(port=port)


def switch_off(up: Up) -> None:
    up.kill(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while left := list(processes_of(str(up.folder))):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def runs(ledger: Path) -> Counter[str]:
    return Counter(ledger.read_text().split())


def until_runs(ledger: Path, wanted: dict[str, int]) -> None:
    deadline = time.monotonic() + 60
    while runs(ledger) != wanted:
        assert time.monotonic() < deadline, runs(ledger)
        time.sleep(0.05)


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.deep)])
def test_jobs_run_again_once_and_ended_ones_do_not_when_the_machine_loses_its_power(
    tmp_path: Path, times: int
):
    ledger = tmp_path / "ledger"
    ledger.touch(mode=0o666)
    up = Up(tmp_path / "yard", "--cpu", "4")
    switch_on(up)
    port = up.port
    try:
        write = f'echo "$TRAINYARD_JOB_NAME" >> "{ledger}"'
        done = up.submit(f"{write}; exit 0", name="done")
        failed = up.submit(f"{write}; exit 3", name="failed")
        never = up.submit(f"{write}; exec sleep 1000", name="never", restart="never")
        again = up.submit(f"{write}; exec sleep 1000", name="again", restart="on_failure", max_retries=1)
        assert up.until(done, "succeeded", "failed")["state"] == "succeeded"
        assert up.until(failed, "succeeded", "failed")["state"] == "failed"
        wanted = {"done": 1, "failed": 1, "never": 1, "again": 1}
        until_runs(ledger, wanted)
        for _ in range(times):
            switch_off(up)
            switch_on(up, port=port)
            wanted = {**wanted, "never": wanted["never"] + 1, "again": wanted["again"] + 1}
            until_runs(ledger, wanted)
        for job in (never, again):
            found = up.until(job, "running")
            assert found["attempt"] == times + 1
            assert found["failures"] == 0  # it was not its fault
            events = up.call("GET", f"/api/v1/jobs/{job}/events?limit=100")["items"]
            codes = [event["code"] for event in events]
            assert codes.count("starting") == times + 1
            assert "task_lost" in codes
        assert up.job(done)["state"] == "succeeded"
        assert up.job(failed)["state"] == "failed"
        assert runs(ledger) == wanted
        stop_all(up)
    finally:
        switch_off(up)
