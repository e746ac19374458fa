"""Order, sweeps, templates, schedules and code of jobs, through the program and a real platform."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from clocks import Clock, Clocks, clocks  # noqa: F401  # a fixture
from platforms import Up, platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a whole platform, and many runs of the program


@pytest.fixture(scope="module")
def clock(clocks: Clocks) -> Clock:  # noqa: F811  # the fixture
    """The time of day where the platform runs."""
    return clocks.make()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Up]:
    with platform(tmp_path_factory.mktemp("platform"), env=clock.env) as running:
        yield running


def test_a_job_runs_after_another_when_it_is_told_so(program, up, tmp_path):
    gate = tmp_path / "open"
    line = f"until [ -e {gate} ]; do sleep 0.1; done"
    first = program("jobs", "submit", "--name", "first of two", "--", line).stdout.strip()
    late = program("jobs", "submit", "--name", "late", "--after", "first of two", "--", "echo late")
    never = program("jobs", "submit", "--name", "in vain", "--after", f"{first}:failed", "--", "true")
    job = late.stdout.strip()
    assert f"It waits for {first} to succeed." in program("jobs", "explain", job).stdout
    gate.touch()
    up.until(job, "succeeded")
    assert up.job(first)["state"] == "succeeded"
    up.until(never.stdout.strip(), "cancelled")
    row = next(line for line in program("jobs", "ls").stdout.splitlines() if "in vain" in line)
    assert "It needed" in row
    wrong = program("jobs", "submit", "--after", f"{first}:perhaps", "--", "true")
    assert wrong.returncode == 3 and "succeeded, failed, ended" in wrong.stderr
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


def test_a_template_is_kept_from_a_job_and_submitted_with_changes(program, up):
    words = ("--name", "kept", "--cpu", "0.1", "--env", "WORD=one", "--", 'echo "$WORD $MORE"')
    job = program("jobs", "submit", *words).stdout.strip()
    up.until(job, "succeeded")
    saved = program("templates", "save", "echo", "--job", job, "--description", "says 中文")
    assert saved.returncode == 0, saved.stderr
    done = program("templates", "submit", "echo", "--env", "MORE=two", "--follow")
    assert done.stdout.splitlines()[0] == "one two", done.stderr
    assert "says 中文" in program("templates").stdout
    assert '"command": "echo' in program("templates", "show", "echo").stdout
    assert program("templates", "rm", "echo").returncode == 0
    assert program("templates", "submit", "echo").returncode != 0


def test_a_schedule_is_made_run_paused_and_removed(program, up):
    words = (
        "--name",
        "nightly",
        "--cron",
        "0 3 * * mon-fri",
        "--timezone",
        "Asia/Shanghai",
        "--",
        "echo night",
    )
    made = program("schedules", "add", *words)
    assert made.returncode == 0 and "next" in made.stdout, made.stderr
    job = program("schedules", "run", "nightly").stdout.strip()
    assert up.until(job, "succeeded")["origin"].startswith("schedule:sch")
    assert program("schedules", "pause", "nightly").returncode == 0
    assert "paused" in program("schedules").stdout
    assert program.json("schedules", "ls")[0]["next_at"] is None
    assert program("schedules", "set", "nightly", "--cron", "*/5 * * * *").returncode == 0
    assert program("schedules", "resume", "nightly").returncode == 0
    assert len(program.json("schedules", "show", "nightly")["upcoming"]) == 5
    wrong = program("schedules", "add", "--name", "x", "--cron", "0 0 31 feb *", "--", "true")
    assert wrong.returncode == 2 and "never comes" in wrong.stderr
    assert program("schedules", "rm", "nightly").returncode == 0


def test_a_schedule_submits_by_itself_when_its_minute_comes(program, up, clock):
    made = program("schedules", "add", "--name", "each", "--cron", "* * * * *", "--", "echo tick")
    assert made.returncode == 0, made.stderr
    schedule = program.json("schedules", "show", "each")["id"]
    clock.set(60)  # the minute has come; where no clock can be set, we wait for it
    deadline = time.monotonic() + 90
    while not (found := up.call("GET", f"/api/v1/schedules/{schedule}"))["last_job"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    up.until(found["last_job"], "succeeded")
    assert program("schedules", "rm", "each").returncode == 0


def test_a_job_that_says_nothing_is_ended_and_one_that_speaks_is_not(program, up):
    words = ("--cpu", "0.1", "--grace", "1s", "--retries", "1", "--restart", "on_failure")
    speaks = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.7; done"  # longer than it may be silent
    submit = ("jobs", "submit", *words, "--name")
    lively = program(*submit, "lively", "--hang", "3s", "--", speaks).stdout.strip()
    hung = program(*submit, "hung", "--hang", "1s", "--", "echo begin; sleep 300").stdout.strip()
    ended = up.until(hung, "failed")
    assert (ended["reason"], ended["attempt"]) == ("hung", 2)
    assert "It hangs: no output for" in ended["message"] and "worker-0" in ended["message"]
    assert up.until(lively, "succeeded")["attempt"] == 1


def test_flags_reach_the_job_when_they_are_given(program):
    words = (
        "--kind",
        "BatchJob",
        "--image",
        "a/b:1",
        "--shared-memory",
        "64MiB",
        "--minimum",
        "1",
        "--replicas",
        "2",
    )
    job = program(
        "jobs", "submit", "--name", "f", "--hold", *words, "--hang", "1h", "--grow", "30m", "--", "true"
    ).stdout.strip()
    spec = program.json("jobs", "show", job)["spec"]
    role = spec["roles"][0]
    assert (spec["kind"], spec["hang_seconds"], spec["grow_seconds"]) == ("BatchJob", 3600, 1800)
    shown = program("jobs", "show", job).stdout
    assert "1 to 2 × worker" in shown and "after 30m with fewer tasks" in shown
    assert (role["image"], role["shared_memory_mib"], role["minimum"], role["replicas"]) == (
        "a/b:1",
        64,
        1,
        2,
    )
