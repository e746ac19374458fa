"""The emulated cloud on a disk that is full: it refuses as a cloud does, loses nothing it has acknowledged, and heals.

The disk is a small tmpfs, which only root can mount.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulation import Answer, Emulation, Refused, until

# Each starts the emulator once or twice as a program.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SECONDS = 10.0  # within which a refusal has to come; it takes milliseconds
TAGS = [{"Key": f"key{number}", "Value": "v" * 120} for number in range(15)]


class SmallDisk:
    """A tmpfs, and a file that takes its room."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Take all room but `leave` bytes."""
        self.free()
        with self._ballast.open("wb", buffering=0) as file:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue
        if leave:
            os.truncate(self._ballast, max(0, self._ballast.stat().st_size - leave))

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=96m", "trainyard-test", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def cloud(disk: SmallDisk) -> Iterator[Clouds]:
    clouds = Clouds(disk)
    try:
        yield clouds
    finally:
        disk.free()
        clouds.end()


class Clouds:
    """The emulator on the small disk, started anew at will. Its log is elsewhere."""

    def __init__(self, disk: SmallDisk) -> None:
        self._disk = disk
        self.now: Emulation = self.start()

    def start(self, *arguments: str) -> Emulation:
        folder = self._disk.folder
        self.now = Emulation(folder, *(arguments or ("--set", "machines=false")))
        return self.now

    def crash(self) -> Emulation:
        """Kill it, make room, and start it again."""
        self.now.kill()
        self._disk.free()
        return self.start()

    def end(self) -> None:
        if self.now.process.poll() is None:
            self.now.stop()


def lives(pid: int) -> bool:
    """Whether a process is there, and not only waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def refused(answer: Answer) -> bool:
    return answer.status == 503 and answer.code == "ServiceUnavailable"


def group_names(lab: Emulation) -> list[str]:
    rows: list[dict[str, Any]] = lab.ecs("DescribeSecurityGroups", MaxResults=100)["SecurityGroups"][
        "SecurityGroup"
    ]
    return sorted(row["SecurityGroupName"] for row in rows)


def make_group(lab: Emulation, vpc: str, name: str) -> Answer:
    return lab.raw(
        "ecs",
        "CreateSecurityGroup",
        timeout=SECONDS,
        RegionId=lab.region,
        VpcId=vpc,
        SecurityGroupName=name,
        ClientToken=f"token-{name}",
        Tag=TAGS,
    )


def test_every_call_is_refused_in_seconds_and_done_once_when_there_is_room_again(
    disk: SmallDisk, cloud: Clouds
):
    lab = cloud.now
    network = lab.network()
    assert make_group(lab, network["VpcId"], "before").status == 200
    disk.fill()
    for _ in range(3):  # the first meets the full disk with its effect done, the others before it
        assert refused(make_group(lab, network["VpcId"], "during"))
    assert refused(make_group(lab, network["VpcId"], "later"))
    # What nobody was told of is not shown either.
    assert refused(lab.raw("ecs", "DescribeSecurityGroups", timeout=SECONDS, RegionId=lab.region))
    assert refused(
        lab.raw("sts", "AssumeRole", timeout=SECONDS, RoleArn="acs:ram::1:role/r", RoleSessionName="s")
    )
    with pytest.raises(Refused, match="503"):
        lab.control("POST", "options", {"timing": {"pending": 0}})
    disk.free()
    until(lambda: make_group(lab, network["VpcId"], "during").status == 200, SECONDS)
    assert make_group(lab, network["VpcId"], "later").status == 200
    names = group_names(lab)
    assert [names.count(name) for name in ("before", "during", "later")] == [1, 1, 1]
    lab = cloud.crash()
    assert group_names(lab) == names
    assert make_group(lab, network["VpcId"], "during").status == 200
    assert group_names(lab) == names


def test_it_heals_by_itself_when_there_is_room_and_nobody_calls(disk: SmallDisk, cloud: Clouds):
    lab = cloud.now
    network = lab.network()
    disk.fill()
    assert refused(make_group(lab, network["VpcId"], "during"))
    disk.free()
    file = disk.folder / "emulator.json"
    until(lambda: '"during"' in file.read_text(encoding="utf-8"), SECONDS)


@pytest.mark.parametrize("leave", [0, 1, 4096, 16384])
def test_what_was_acknowledged_is_there_when_it_is_killed_on_a_disk_that_filled_up(
    disk: SmallDisk, cloud: Clouds, leave: int
):
    lab = cloud.now
    network = lab.network()
    size = (disk.folder / "emulator.json").stat().st_size
    disk.fill(leave=size + leave if leave else 0)  # the old file, a new one, and so much that it may grow
    acknowledged = []
    for number in range(40):
        answer = make_group(lab, network["VpcId"], f"group{number:02}")
        if answer.status != 200:
            assert refused(answer)
            break
        acknowledged.append(f"group{number:02}")
    else:
        pytest.fail("the disk never filled up")
    lab = cloud.crash()
    assert [name for name in group_names(lab) if name.startswith("group")] == acknowledged
    leftovers = list(disk.folder.glob(".emulator.json.*"))
    assert leftovers == []


def test_it_says_so_when_it_is_started_on_a_full_disk(disk: SmallDisk, cloud: Clouds):
    lab = cloud.now
    network = lab.network()
    lab.stop()
    disk.fill()
    with pytest.raises(AssertionError, match="No space left on device"):
        cloud.start()
    disk.free()
    vpcs = cloud.start().call("vpc", "DescribeVpcs")["Vpcs"]["Vpc"]
    assert [row["VpcId"] for row in vpcs] == [network["VpcId"]]


def test_it_ends_with_all_machines_when_the_disk_is_full(disk: SmallDisk, cloud: Clouds):
    cloud.end()
    lab = cloud.start("--set", "machines=true")
    (instance,) = lab.launch(lab.network(), RamRoleName="stopper")
    lab.control("POST", "settle", {})
    disk.fill()
    # The machine asks for keys of its role, which would have to be written down.
    base = f"http://{lab.ready['metadata']}/{instance}/latest/meta-data/ram/security-credentials/stopper"
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(base, timeout=SECONDS)
    assert answer.value.code == 503
    answer.value.close()
    (folder,) = (disk.folder / "machines" / "machines").iterdir()
    init = int((folder / "init").read_text().split()[0])
    assert lives(init)
    assert lab.stop() == 0
    assert not lives(init)


def test_a_script_is_run_once_when_its_end_could_not_be_written_down(disk: SmallDisk, cloud: Clouds):
    cloud.end()
    lab = cloud.start("--set", "machines=true")
    (instance,) = lab.launch(lab.network())
    lab.control("POST", "settle", {})
    script = "echo ran >> /run/trainyard/ran; sleep 1"
    invocation = lab.ecs("RunCommand", Type="RunShellScript", CommandContent=script, InstanceId=[instance])
    disk.fill()
    time.sleep(2)
    disk.free()

    def outcome() -> Any:
        answer = lab.raw(
            "ecs", "DescribeInvocationResults", RegionId=lab.region, InvokeId=invocation["InvokeId"]
        )
        rows = answer.body.get("Invocation", {}).get("InvocationResults", {}).get("InvocationResult", [])
        return rows and rows[0]["InvocationStatus"] not in {"Pending", "Running"} and rows[0]

    assert until(outcome)["InvocationStatus"] == "Success", json.dumps(outcome())
    (folder,) = (disk.folder / "machines" / "machines").iterdir()
    assert (folder / "shared" / "ran").read_text() == "ran\n"


def test_a_machine_boots_when_there_is_room_again(disk: SmallDisk, cloud: Clouds):
    cloud.end()
    lab = cloud.start("--set", "machines=true")
    network = lab.network()
    size = (disk.folder / "emulator.json").stat().st_size
    disk.fill(leave=size + 32 * 1024)  # room for the state, and not for a machine
    answer = lab.raw(
        "ecs",
        "RunInstances",
        RegionId=lab.region,
        ImageFamily="acs:ubuntu_22_04_x64",
        InstanceType="ecs.g7.large",
        SystemDisk={"Category": "cloud_essd"},
        ClientToken="once",
        **{name: network[name] for name in ("VSwitchId", "SecurityGroupId")},
    )
    assert answer.status == 200 or refused(answer)
    time.sleep(2)
    disk.free()

    def running() -> bool:
        machines = lab.control("GET", "state")["machines"].values()
        return bool(machines) and all(one["running"] and not one["problem"] for one in machines)

    until(running)
