"""The command line and scripts on the emulated cloud: what things cost is shown, and asked before money is spent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from emulation import Emulation

# Whole programs against a real emulator: about a second each.
pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(120)]

PROGRAMS = Path(sys.executable).parent
KIND = "ecs.g7.large"


class Door:
    """A user's shell."""

    def __init__(self, yard: Emulation, home: Path) -> None:
        self.env = {**os.environ, "HOME": str(home), "USER": "alice", **yard.environ()}
        self.env["TRAINYARD_HOME"] = str(home / "home")

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAMS / words[0]), *words[1:]],
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )


@pytest.fixture
def door(yard: Emulation, tmp_path: Path) -> Door:
    return Door(yard, tmp_path)


def test_nothing_is_spent_when_the_plan_is_only_shown(door: Door, yard: Emulation) -> None:
    done = door.run("trainyard", "create", "--name", "dry", "-np", "2", "-i", KIND, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "make 2 ecs.g7.large machines, for 1.18 CNY an hour" in done.stdout
    assert "cn-beijing-" in done.stdout
    planned = door.run("trainyard", "create", "--name", "dry", "-i", KIND, "--dry-run", "--json")
    assert json.loads(planned.stdout)["new"] == ["task0.dry"]
    assert yard.instances() == []
    assert yard.control("GET", "state")["vpcs"] == {}


def test_the_flag_is_named_when_nobody_can_be_asked(door: Door, yard: Emulation) -> None:
    done = door.run("fastgpu", "create", "--name", "asks", "-i", KIND)
    assert done.returncode == 2
    assert "Spend 0.59 CNY an hour?" in done.stderr
    assert "-y" in done.stderr
    script = (
        f"import trainyard as ty; ty.set_backend('aliyun'); ty.make_job(name='asks', instance_type='{KIND}')"
    )
    asked = door.run("python", "-c", script)
    assert "confirm_cost=True" in asked.stderr
    assert "FASTGPU_SKIP_COST_CONFORM" in asked.stderr
    assert yard.instances() == []


def test_a_machine_is_made_listed_and_cleaned_up_when_the_cost_is_agreed_to(
    door: Door, yard: Emulation
) -> None:
    made = door.run("fastgpu", "create", "--name", "whole", "-i", KIND, "--spot", "-y", "--max-hours", "300")
    assert made.returncode == 0, made.stderr
    listed = door.run("trainyard", "ls", COLUMNS="200")
    assert "Per hour(CNY)" in listed.stdout
    assert "spot" in listed.stdout
    assert "Released at" in listed.stdout
    said = door.run("trainyard", "run", "task0.whole", "echo in $HOME")
    assert "in /root" in said.stdout or yard.ready["isolation"] == "home"
    stopped = door.run("trainyard", "stop", "task0.whole")
    assert stopped.returncode == 0, stopped.stderr
    (row,) = yard.instances()
    assert row["AutoReleaseTime"] == ""  # whoever stops a machine wants its files back
    assert "goes on costing" in door.run("trainyard", "ls", "--stop").stderr
    assert door.run("trainyard", "start", "task0.whole").returncode == 0
    assert yard.instances()[0]["AutoReleaseTime"]
    assert door.run("trainyard", "kill", "-y", "task0.whole").returncode == 0
    assert yard.instances() == []
    cleaned = door.run("trainyard", "cleanup", "-y")
    assert cleaned.returncode == 0, cleaned.stderr
    assert "removed VPC ncluster-vpc" in cleaned.stdout
    assert door.run("trainyard", "cleanup").stdout == "nothing is left behind\n"


def test_local_machines_are_listed_beside_those_of_the_cloud(door: Door) -> None:
    assert door.run("trainyard", "create", "--backend", "local", "--name", "here").returncode == 0
    try:
        rows = json.loads(door.run("trainyard", "ls", "--json").stdout)
        assert [row["backend"] for row in rows] == ["local"]
    finally:
        assert door.run("trainyard", "kill", "-y", "task0.here").returncode == 0


def test_no_secret_is_shown_when_everything_is_told(door: Door, yard: Emulation) -> None:
    secret = yard.ready["access_key_secret"]
    for words in (["ls", "--json"], ["create", "--name", "x", "-i", "ecs.no.such", "-y", "--debug"]):
        done = door.run("trainyard", *words)
        assert secret not in done.stdout + done.stderr


def test_machines_are_stopped_at_the_end_when_a_script_asks_for_it(door: Door, yard: Emulation) -> None:
    script = (
        "import trainyard as ty\nty.set_backend('aliyun')\n"
        f"job = ty.make_job(name='done', instance_type='{KIND}', confirm_cost=True, stop_when_done=True)\n"
        "job.run('sleep 1; echo trained > result', non_blocking=True)\n"
    )
    done = door.run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    assert yard.instances()[0]["Status"] == "Stopped"
    assert door.run("trainyard", "start", "task0.done").returncode == 0
    assert "trained" in door.run("trainyard", "run", "task0.done", "cat result").stdout
    assert door.run("trainyard", "kill", "-y", "task0.done").returncode == 0
