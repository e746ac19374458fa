"""`simulate` as people run it: one JSON object, files that are whole, a terminal of 80 columns."""

from __future__ import annotations

import csv
import json
import re
import time
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.slow  # every test is a start of the program and a simulation

CLUSTER = """
name = "lab"
[[nodes]]
count = 4
cpus = 64
memory = "256GiB"
devices = { A100 = 8 }
[policies.eager]
base = "easy"
reservations = 3
"""
JOBS = """id,submitted,duration,replicas,devices,user,limit
gang,0,2h,4,8,ada,4h
small-1,10m,1h,1,1,bob,2h
small-2,10m,1h,1,1,bob,2h
next,20m,1h,4,8,eve,2h
small-3,30m,10m,1,4,bob,20m
"""
SAVED = {"result.json", "jobs.csv", "queue.csv", "trace.csv", "report.html"} | {
    f"{name}.svg" for name in ("balance", "large", "wait", "queue", "busy", "fairness")
}


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "it's 中文 $(x)"
    place.mkdir()
    (place / "cluster.toml").write_text(CLUSTER)
    (place / "jobs.csv").write_text(JOBS)
    return place


def test_one_object_has_a_result_for_each_policy(lab, folder):
    words = ["simulate", "--cluster", str(folder / "cluster.toml"), "--jobs", str(folder / "jobs.csv")]
    done = lab(*words, "--policy", "default", "--policy", "fifo", "--seed", "1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert list(document["results"]) == ["default", "fifo"]
    assert document["cluster"] == {"name": "lab", "nodes": 4, "devices": 32}
    assert document["jobs"]["count"] == 5
    assert all(result["completed"] == 5 for result in document["results"].values())


def test_everything_is_saved_and_can_be_played_again(lab, folder):
    words = ["simulate", "--cluster", str(folder / "cluster.toml"), "--trace", "helios", "--days", "0.5"]
    target = folder / "new" / "out"
    done = lab(*words, "--policy", "eager", "--policy", "first-fit", "--output", str(target))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in target.iterdir()} == SAVED
    document = json.loads((target / "result.json").read_text())
    rows = list(csv.DictReader((target / "jobs.csv").read_text().splitlines()))
    assert len(rows) == 2 * document["jobs"]["count"]
    assert {row["policy"] for row in csv.DictReader((target / "queue.csv").read_text().splitlines())} == {
        "eager",
        "first-fit",
    }
    for path in target.glob("*.svg"):
        ET.parse(path)
    words = ["simulate", "--cluster", str(folder / "cluster.toml"), "--jobs", str(target / "trace.csv")]
    again = json.loads(lab(*words, "--policy", "eager", "--json").stdout)
    assert again["results"]["eager"]["wait_seconds"] == document["results"]["eager"]["wait_seconds"]


def test_a_newcomer_sees_four_policies_within_80_columns(terminals):
    terminal = terminals("simulate", "--days", "1")
    assert terminal.finish() == 0
    plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", terminal.raw.split(b"\x1b[K")[-1]).decode()
    assert all(len(line) <= 80 for line in plain.splitlines())
    for policy in ("default", "fifo", "first-fit", "easy"):
        assert re.search(rf"^{policy} +\d", plain, re.MULTILINE)
    assert "▁" in plain
    assert b"[#" in terminal.raw  # the bar was there meanwhile


def test_nothing_is_left_behind_when_it_is_interrupted(terminals, folder):
    target = folder / "out"
    terminal = terminals("simulate", "--cluster", "large", "--days", "30", "--output", str(target))
    terminal.wait_for("jobs")
    terminal.interrupt()
    assert terminal.finish() == 130
    assert list(target.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "status", "error", "hint"),
    [
        (["--policy", "defalt"], 3, "there is no policy 'defalt'", "Did you mean 'default'?"),
        (["--cluster", "nowhere.toml"], 3, "there is no file 'nowhere.toml'", "small, medium, large"),
        (["--jobs", "x.csv", "--days", "3"], 2, "--jobs has its own jobs", "Leave out"),
        (["--days", "0"], 2, "days and a load above 0", "--days 7"),
        (["--trace", "filly"], 2, "'filly'", "simulate --help"),
    ],
)
def test_mistakes_are_answered_with_what_to_type(lab, words, status, error, hint):
    done = lab("simulate", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert error in done.stderr
    assert hint in done.stderr


def test_a_line_is_named_when_a_file_is_wrong(lab, folder):
    (folder / "jobs.csv").write_text("submitted,duration\n0,soon\n")
    done = lab("simulate", "--jobs", str(folder / "jobs.csv"))
    assert done.returncode == 2
    assert "jobs.csv line 2 has 'soon' as its duration" in done.stderr
    (folder / "cluster.toml").write_bytes(b"\xff\xfe")
    done = lab("simulate", "--cluster", str(folder / "cluster.toml"))
    assert "is not UTF-8" in done.stderr


def test_a_file_in_the_way_is_found_out_before_the_simulation(lab, folder):
    started = time.monotonic()
    done = lab("simulate", "--cluster", "large", "--days", "100", "--output", str(folder / "jobs.csv"))
    assert done.returncode == 2
    assert "is no folder" in done.stderr
    assert time.monotonic() - started < 20  # a hundred days would take minutes


def test_jobs_that_can_never_start_are_named_and_left_out(lab, folder):
    (folder / "jobs.csv").write_text(JOBS + "huge,0,1h,9,8,ada,2h\n")
    words = [
        "simulate",
        "--cluster",
        str(folder / "cluster.toml"),
        "--jobs",
        str(folder / "jobs.csv"),
        "--json",
    ]
    done = lab(*words)
    assert json.loads(done.stdout)["jobs"]["impossible"] == ["huge"]
    assert "'huge'" in done.stderr
