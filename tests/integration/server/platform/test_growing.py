"""An elastic training on a real platform: it grows when others leave, goes on from its checkpoint, and counts every step once."""

from __future__ import annotations

import time
import urllib.error
from typing import Any

import pytest

from platforms import Up, platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # a platform of its own

STEPS = 40
# Rank 0 counts for all; asked to go it saves what it has, and the next start goes on from there.
TRAIN = r"""
import os, pathlib, signal, sys, time
saved = pathlib.Path("checkpoint")
gone = []
signal.signal(signal.SIGTERM, lambda *_: gone.append(1))
rank, size = os.environ["TRAINYARD_RANK"], os.environ["TRAINYARD_TASKS"]
step = int(saved.read_text()) if saved.exists() else 0
print(f"begin {step} with {size}", flush=True)
while not gone and (rank != "0" or step < int(os.environ["STEPS"])):
    if rank == "0":
        step += 1
        with open("steps", "a") as steps:
            print(step, file=steps)
        if pathlib.Path("hurry").exists() is False and step == 5:
            step_limit = time.monotonic() + 100
            while not gone and not pathlib.Path("hurry").exists() and time.monotonic() < step_limit:
                time.sleep(0.02)
    elif pathlib.Path("done").exists():
        break
    time.sleep(0.02)
if rank == "0":
    saved.write_text(str(step))
    if not gone:
        pathlib.Path("done").touch()
sys.exit(143 if gone else 0)
"""


def tasks_of(up: Up, job: str) -> list[Any]:
    attempt = up.job(job)["attempt"]
    return [one for one in up.call("GET", f"/api/v1/jobs/{job}/tasks")["items"] if one["attempt"] == attempt]


def test_a_training_that_checkpoints_grows_and_counts_every_step_once_when_others_have_left(tmp_path):
    folder = tmp_path / "it's $(a) folder 中文"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    with platform(tmp_path / "platform", "--devices", "V100=4") as up:
        other = up.submit("sleep 100", roles=[{"devices": 3, "cpu": 0.1}])
        up.until(other, "running")
        role = {"replicas": 4, "minimum": 1, "devices": 1, "cpu": 0.1}
        given = {"working_dir": str(folder), "env": {"STEPS": str(STEPS)}}
        with pytest.raises(urllib.error.HTTPError) as refused:
            up.submit("x", grow_seconds=1, roles=[{"replicas": 4}], **given)
        assert refused.value.code == 422 and b"elastic" in refused.value.read()
        job = up.submit("python3 train.py", grow_seconds=1, roles=[role], **given)
        up.until(job, "running")
        assert len(tasks_of(up, job)) == 1
        up.call("PUT", f"/api/v1/jobs/{other}/desired", {"desired": "cancel"})
        deadline = time.monotonic() + 60
        while up.job(job)["attempt"] < 2 or up.job(job)["state"] != "running":
            assert time.monotonic() < deadline, up.job(job)
            time.sleep(0.05)
        assert len(tasks_of(up, job)) == 4
        (folder / "hurry").touch()
        ended = up.until(job, "succeeded", "failed")
        assert (ended["state"], ended["attempt"], ended["failures"]) == ("succeeded", 2, 0)
        told = up.call("GET", f"/api/v1/events?subject_id={job}&limit=200")["items"]
        grown = [one["data"] for one in told if one["code"] == "growing" and "to" in one["data"]]
        assert grown == [{"from": 1, "to": 4}]
        steps = (folder / "steps").read_text().split()
        assert steps == [str(step) for step in range(1, STEPS + 1)]
