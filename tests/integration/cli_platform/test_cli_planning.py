"""Order, sweeps, templates, schedules and code of jobs, through the program and a real platform."""

from __future__ import annotations

import json
import os
import subprocess

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


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "bert 中文"
    folder.mkdir()
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    (folder / "train.py").write_text("print('from the repository')\n")
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*who, "commit", "-q", "-m", "one")):
        subprocess.run(["git", "-C", folder, *words], env=env, check=True)
    return folder


def test_a_job_finds_its_code_when_it_names_a_repository_or_a_source(program, up, repository):
    line = 'cd "$TRAINYARD_CODE_DIR" && python3 train.py && basename "$PWD"'
    done = program("jobs", "submit", "--name", "c", "--follow", "--code", repository.as_uri(), "--", line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-3:-1] == ["from the repository", "bert 中文"]
    added = program(
        "code", "add", "bert", str(repository), "--branch", "main", "--token-env", "T", T="s3cret"
    )
    assert added.returncode == 0, added.stderr
    shown = program("code", "ls", "--json").stdout
    assert "s3cret" not in shown and '"has_token": true' in shown
    words = ("jobs", "submit", "--name", "d", "--follow", "--code", "bert", "--", f"{line}; env; cat entry/*")
    done = program(*words)
    assert "from the repository" in done.stdout and "s3cret" not in done.stdout
    assert program("code", "set", "bert", "--branch", "nothing").returncode == 0
    failed = program("jobs", "submit", "--name", "e", "--follow", "--code", "bert", "--", line)
    assert failed.returncode != 0 and "could not be fetched" in failed.stdout
    assert program("code", "rm", "bert").returncode == 0
    gone = program("jobs", "submit", "--code", "bert", "--", "true")
    assert gone.returncode != 0 and "no code source 'bert'" in gone.stderr


def test_the_known_line_is_in_the_log_when_there_are_no_requirements(program):
    done = program("jobs", "submit", "--name", "r", "--follow", "--requirements-dir", ".", "--", "echo on")
    assert done.stdout.splitlines()[:2] == [
        "WARN: ./requirements.txt not found, skip installing requirements.",
        "on",
    ]
