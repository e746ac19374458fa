"""Order, sweeps, templates, schedules and code of jobs, through the program and a real platform."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a whole platform, and many runs of the program


def test_a_job_runs_after_another_when_it_is_told_so(program, up, tmp_path):
    gate = tmp_path / "open"
    line = f"until [ -e {gate} ]; do sleep 0.1; done"
    first = program("jobs", "submit", "--name", "first of two", "--", line).stdout.strip()
    late = program("jobs", "submit", "--name", "late", "--after", "first of two", "--", "echo late")
    job = late.stdout.strip()
    assert f"It waits for {first} to succeed." in program("jobs", "explain", job).stdout
    gate.touch()
    up.until(job, "succeeded")
    assert up.job(first)["state"] == "succeeded"
    assert up.job(job)["started_at"] >= up.job(first)["ended_at"]
    missing = program("jobs", "submit", "--after", f"{first}:failed", "--", "true")
    assert missing.returncode != 0 and "can never be failed" in missing.stderr


def test_a_sweep_runs_every_combination_when_it_is_submitted_by_flags(program, up):
    words = ("--name", "swept", "--cpu", "0.1", "--sweep", "lr=0.1,中文 'x'", "--sweep", "seed=1..2")
    shown = program("jobs", "submit", *words, "--dry-run", "--", 'echo "{seed}" "$lr"')
    assert len(shown.stdout.splitlines()) == 4, shown.stderr
    sweep = program("jobs", "submit", *words, "--", 'echo "{seed}" "$lr"').stdout.strip()
    jobs = program.json("jobs", "ls", "--sweep", sweep)
    assert {job["origin"] for job in jobs} == {f"sweep:{sweep}"}
    said = set()
    for job in jobs:
        up.until(job["id"], "succeeded")
        said |= set(up.lines(job["id"]))
    assert said == {"1 0.1", "2 0.1", "1 中文 'x'", "2 中文 'x'"}
    assert sweep in program("jobs", "sweeps").stdout


def test_a_sweep_is_stopped_as_a_whole_when_it_comes_from_a_document(program, up, tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("name: long\ncommand: sleep {n}\ncpu: 0.1\ngrace_seconds: 1\nsweep:\n  n: 300..302\n")
    made = json.loads(program("jobs", "submit", "--json", str(path)).stdout)
    assert made["parameters"] == {"n": ["300", "301", "302"]}
    up.until(made["items"][0]["id"], "running")
    assert program("jobs", "stop", "--sweep", made["id"]).returncode == 0
    for job in made["items"]:
        up.until(job["id"], "cancelled")
    none = program("jobs", "stop")
    assert none.returncode == 2 and "No job was named" in none.stderr
