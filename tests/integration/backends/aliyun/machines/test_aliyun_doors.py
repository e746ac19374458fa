"""The command line and scripts on the emulated cloud: what things cost is shown, and asked before money is spent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from emulation import Emulation

# Whole programs against a real emulator: about a second each.
pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(120)]

PROGRAMS = Path(sys.executable).parent
KIND = "ecs.g7.large"


class Door:
    """A user's shell."""

    def __init__(self, lab: Emulation, home: Path) -> None:
        self.env = {**os.environ, "HOME": str(home), "USER": "alice", **lab.environ()}
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


def shown(door: Door, *words: str) -> str:
    """What a terminal of 80 columns is sent, without colours."""
    child = pexpect.spawn(
        str(PROGRAMS / words[0]), list(words[1:]), dimensions=(200, 80), env=door.env, timeout=60
    )
    try:
        text = child.read().decode()
    finally:
        child.close(force=True)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n")


@pytest.fixture
def door(lab: Emulation, tmp_path: Path) -> Door:
    return Door(lab, tmp_path)


def test_nothing_is_spent_when_the_plan_is_only_shown(door: Door, lab: Emulation) -> None:
    done = door.run("trainyard", "create", "--name", "dry", "-np", "2", "-i", KIND, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "make 2 ecs.g7.large machines, for 1.18 CNY an hour" in done.stdout
    assert "cn-beijing-" in done.stdout
    planned = door.run("trainyard", "create", "--name", "dry", "-i", KIND, "--dry-run", "--json")
    assert json.loads(planned.stdout)["new"] == ["task0.dry"]
    assert lab.instances() == []
    assert lab.control("GET", "state")["vpcs"] == {}


def test_the_flag_is_named_when_nobody_can_be_asked(door: Door, lab: Emulation) -> None:
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
    assert lab.instances() == []


def test_a_machine_is_made_listed_and_cleaned_up_when_the_cost_is_agreed_to(
    door: Door, lab: Emulation
) -> None:
    made = door.run("fastgpu", "create", "--name", "whole", "-i", KIND, "--spot", "-y", "--max-hours", "300")
    assert made.returncode == 0, made.stderr
    listed = door.run("trainyard", "ls", COLUMNS="200")
    assert "Per hour(CNY)" in listed.stdout
    assert "spot" in listed.stdout
    assert "Released at" in listed.stdout
    said = door.run("trainyard", "run", "task0.whole", "echo in $HOME")
    assert "in /root" in said.stdout or lab.ready["isolation"] == "home"
    stopped = door.run("trainyard", "stop", "task0.whole")
    assert stopped.returncode == 0, stopped.stderr
    (row,) = lab.instances()
    assert row["AutoReleaseTime"] == ""  # whoever stops a machine wants its files back
    assert "goes on costing" in door.run("trainyard", "ls", "--stop").stderr
    assert door.run("trainyard", "start", "task0.whole").returncode == 0
    assert lab.instances()[0]["AutoReleaseTime"]
    assert door.run("trainyard", "kill", "-y", "task0.whole").returncode == 0
    assert lab.instances() == []
    cleaned = door.run("trainyard", "cleanup", "-y")
    assert cleaned.returncode == 0, cleaned.stderr
    assert "removed VPC ncluster-vpc" in cleaned.stdout
    assert door.run("trainyard", "cleanup").stdout == "nothing is left behind\n"


def test_the_region_is_named_when_there_are_no_machines(door: Door) -> None:
    for program in ("fastgpu", "ecluster"):
        assert door.run(program, "ls").stdout.splitlines()[0] == "region=cn-beijing"


def test_price_spot_price_and_zones_are_shown_when_the_terminal_is_narrow(door: Door) -> None:
    rows = json.loads(door.run("trainyard", "querygpu", "--json").stdout)
    there = [row for row in rows if row["In stock"] != "-"]
    assert len(there) > 50
    assert all(row["In stock"].startswith("cn-beijing-") for row in there)
    narrow = shown(door, "trainyard", "querygpu").splitlines()
    assert narrow[0].split() == ["Type", "GPU", "Price/h", "Spot/h", "In", "stock"]
    assert max(map(len, narrow)) <= 80


def test_the_cheapest_spot_machine_comes_first_when_only_gpus_are_asked_for(door: Door) -> None:
    rows = json.loads(door.run("trainyard", "querygpu", "--json").stdout)
    spot = {
        row["Type"]: float(row["Spot/h"].split()[0])
        for row in rows
        if row["GPU"].endswith(" x 1") and row["Spot/h"] != "-"
    }
    plan = json.loads(
        door.run(
            "trainyard", "create", "--name", "cheap", "--gpus", "1", "--spot", "--dry-run", "--json"
        ).stdout
    )
    assert plan["options"][0]["type"] == min(spot, key=lambda name: spot[name])


def test_every_line_of_a_plan_fits_when_the_terminal_is_narrow(door: Door) -> None:
    plan = shown(
        door, "fastgpu", "create", "--name", "dry", "--gpus", "1", "--spot", "--dry-run"
    ).splitlines()
    assert len(plan) == 7
    assert max(map(len, plan)) <= 80


def test_places_with_the_same_refusal_are_told_once(door: Door, lab: Emulation) -> None:
    words = ["create", "--name", "dear", "--gpus", "1", "--spot", "--spot-price-limit", "0.01", "-y"]
    done = door.run("trainyard", *words)
    assert done.returncode == 7
    assert done.stderr.count("is above the limit that was given") == 1
    assert "likewise" in done.stderr
    done = door.run("trainyard", "create", "--name", "dear", "-i", KIND, "--max-price-per-hour", "0.1", "-y")
    assert "nobody in cn-beijing has ecs.g7.large for 0.1 an hour or less" in done.stderr
    assert lab.instances() == []


def test_doctor_says_whether_the_cloud_answers(door: Door) -> None:
    assert "Alibaba Cloud answers at 127.0.0.1:" in door.run("trainyard", "doctor").stdout
    done = door.run("trainyard", "doctor", ALIYUN_ACCESS_KEY_SECRET="wrong")
    assert done.returncode == 1
    assert "broken  cloud" in done.stdout


def test_what_stays_is_told_when_the_install_script_fails(door: Door, lab: Emulation) -> None:
    done = door.run(
        "fastgpu", "create", "--name", "bad", "-i", KIND, "-y", "--install_script", "echo hello; exit 3"
    )
    assert done.returncode == 3
    assert "warning: the machines that were made stay and cost money" in done.stderr
    assert "`fastgpu kill task0.bad`" in done.stderr
    assert len(lab.instances()) == 1


def test_local_machines_are_listed_beside_those_of_the_cloud(door: Door) -> None:
    assert door.run("trainyard", "create", "--backend", "local", "--name", "here").returncode == 0
    try:
        rows = json.loads(door.run("trainyard", "ls", "--json").stdout)
        assert [row["backend"] for row in rows] == ["local"]
    finally:
        assert door.run("trainyard", "kill", "-y", "task0.here").returncode == 0


def test_no_secret_is_shown_when_everything_is_told(door: Door, lab: Emulation) -> None:
    secret = lab.ready["access_key_secret"]
    for words in (["ls", "--json"], ["create", "--name", "x", "-i", "ecs.no.such", "-y", "--debug"]):
        done = door.run("trainyard", *words)
        assert secret not in done.stdout + done.stderr


def test_the_missing_right_is_named_when_machines_may_not_be_seen(door: Door, lab: Emulation) -> None:
    """The provider answers with an empty list then: nobody may take that for an empty account."""
    lab.control("POST", "options", {"account": {"denied": ["ecs:DescribeInstances"]}})
    try:
        alone = door.run("trainyard", "ls", "--backend", "aliyun")
        assert alone.returncode == 5
        assert "may not call ecs:DescribeInstances" in alone.stderr
        assert "hint: " in alone.stderr
        beside = door.run("trainyard", "ls")
        assert "ecs:DescribeInstances" in beside.stderr
        made = door.run("trainyard", "create", "--name", "blind", "-i", KIND, "-y")
        assert made.returncode == 5
        killed = door.run("trainyard", "kill", "-y", "task0.blind")
        assert killed.returncode == 5, killed.stderr  # it may be there: nobody can say
    finally:
        lab.control("POST", "options", {"account": {"denied": []}})
    assert lab.instances() == []


def test_both_are_released_when_two_machines_have_one_name(door: Door, lab: Emulation) -> None:
    """Another computer made the same one, and died before the two could settle it."""
    assert door.run("trainyard", "create", "--name", "twin", "-i", KIND, "-y").returncode == 0
    (first,) = lab.instances()
    tags = [{"Key": tag["TagKey"], "Value": tag["TagValue"]} for tag in first["Tags"]["Tag"]]
    (second,) = lab.launch(
        {
            "VSwitchId": first["VpcAttributes"]["VSwitchId"],
            "SecurityGroupId": first["SecurityGroupIds"]["SecurityGroupId"][0],
        },
        InstanceName="task0.twin",
        Tag=[tag for tag in tags if tag["Key"] != "trainyard-kept"],
    )
    rows = json.loads(door.run("trainyard", "ls", "--json").stdout)
    assert {row["id"] for row in rows} == {first["InstanceId"], second}
    refused = door.run("trainyard", "run", "task0.twin", "true")
    assert refused.returncode == 4
    assert "`trainyard kill task0.twin`" in refused.stderr
    done = door.run("trainyard", "kill", "-y", "task0.twin")
    assert done.returncode == 0, done.stderr
    assert lab.instances() == []


def test_machines_are_stopped_at_the_end_when_a_script_asks_for_it(door: Door, lab: Emulation) -> None:
    script = (
        "import trainyard as ty\nty.set_backend('aliyun')\n"
        f"job = ty.make_job(name='done', instance_type='{KIND}', confirm_cost=True, stop_when_done=True)\n"
        "job.run('sleep 1; echo trained > result', non_blocking=True)\n"
    )
    done = door.run("python", "-c", script)
    assert done.returncode == 0, done.stderr
    assert lab.instances()[0]["Status"] == "Stopped"
    assert door.run("trainyard", "start", "task0.done").returncode == 0
    assert "trained" in door.run("trainyard", "run", "task0.done", "cat result").stdout
    assert door.run("trainyard", "kill", "-y", "task0.done").returncode == 0
