"""RayJob with the real Ray: workers join the head, tasks run in all of them, and the head's driver decides."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from framework_lab import PROGRAMS, needs

pytestmark = [pytest.mark.slow, needs("ray")]  # six nodes of Ray, each a dozen processes that load it

PATIENCE = 600.0
ROLES = [{"name": "head", "cpu": 1}, {"name": "worker", "replicas": 2, "cpu": 2}]


def test_tasks_run_in_all_workers_and_the_driver_decides_when_two_ray_jobs_share_nodes(cluster, tmp_path):
    """One driver fails; the other goes on when a worker of its dies, which joins again."""
    go = tmp_path / "go"
    drivers = [f"python {PROGRAMS}/ray_tasks.py 3 {go}", f"python {PROGRAMS}/ray_tasks.py 3; exit 3"]
    jobs = [cluster.submit(driver, kind="RayJob", roles=ROLES) for driver in drivers]
    _await(cluster, jobs[0], "sum 14")
    _kill_raylet(jobs[0], "worker-1")
    _await(cluster, jobs[0], "trainyard: this worker left Ray with")
    go.touch()
    ends = [cluster.until(job, "succeeded", "failed", seconds=PATIENCE) for job in jobs]
    assert [(end["state"], end["exit_code"]) for end in ends] == [("succeeded", 0), ("failed", 3)]
    for job in jobs:
        lines = cluster.lines(job)
        assert [line for line in lines if line.startswith(("nodes", "ran in", "sum"))] == [
            *("nodes 3 cpus 5", "ran in head-0", "ran in worker-0", "ran in worker-1", "sum 14")
        ]
    assert "went on" in cluster.lines(jobs[0])
    assert not list(Path("/tmp").glob("ray.??????")), "their folders are gone with them"


def _await(up, job, text):
    deadline = time.monotonic() + PATIENCE
    while not any(line.startswith(text) for line in up.lines(job)):
        assert time.monotonic() < deadline, up.lines(job)[-40:]
        assert up.job(job)["state"] not in {"succeeded", "failed"}, up.lines(job)[-40:]
        time.sleep(0.2)


def _kill_raylet(job, task):
    """End the heart of one node of Ray."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words, env = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            wanted = {f"TRAINYARD_JOB_ID={job}".encode(), f"TRAINYARD_TASK={task}".encode()}
            if words.split(b"\0")[0].endswith(b"/raylet") and wanted <= set(env.split(b"\0")):
                found.append(int(entry.name))
    assert len(found) == 1, found
    os.kill(found[0], signal.SIGKILL)
