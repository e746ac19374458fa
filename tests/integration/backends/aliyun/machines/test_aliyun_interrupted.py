"""Ctrl-C while machines are made, once and twice, at the command line and in a script: nothing is forgotten.

What this call made is released; where that is cut short, the person is told the very command that does it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulation import PROGRAM, Emulation, emulated, until

# Whole programs are started and interrupted: some seconds each.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

KIND = "ecs.g7.large"
SCRIPT = f"""
import trainyard
trainyard.set_backend("aliyun")
trainyard.make_job(name="cut", num_tasks=2, instance_type="{KIND}", confirm_cost=True, skip_setup=True)
"""
DOORS = {
    "command line": [*PROGRAM, "create", "--name", "cut", "-np", "2", "-i", KIND, "-y", "--skip-setup"],
    "script": [sys.executable, "-c", SCRIPT],
}
SOON = 10.0
COMMAND = re.compile(r"`trainyard (kill [^`]+)`")


@pytest.fixture(scope="module")
def module_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    with emulated(tmp_path_factory.mktemp("cloud") / "state", "--set", "machines=false") as cloud:
        yield cloud


@pytest.fixture
def cloud(module_cloud: Emulation) -> Iterator[Emulation]:
    yield module_cloud
    module_cloud.control("DELETE", "faults")
    module_cloud.control("POST", "options", {"timing": {"visible": 0, "starting": 0}})
    module_cloud.control("POST", "clock", {"advance_seconds": 7200})
    left = [row["InstanceId"] for row in module_cloud.instances()]
    if left:
        module_cloud.ecs("DeleteInstances", InstanceId=left, Force=True)


class Person:
    """Somebody at a terminal."""

    def __init__(self, cloud: Emulation, home: Path) -> None:
        self.cloud = cloud
        self.home = home
        self.env = {**os.environ, "HOME": str(home), "USER": "alice", **cloud.environ()}
        self.env["TRAINYARD_HOME"] = str(home / "trainyard")

    def begin(self, words: list[str]) -> subprocess.Popen[str]:
        # Not the test's own process group, where a Ctrl-C would reach the test as well.
        return subprocess.Popen(
            words,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )

    def journal(self) -> list[Path]:
        return list((self.home / "trainyard" / "aliyun" / "journal").glob("*"))


@pytest.fixture
def person(cloud: Emulation, tmp_path: Path) -> Person:
    return Person(cloud, tmp_path)


def made(cloud: Emulation) -> list[str]:
    """The names of what exists, listed or not."""
    found = cloud.control("GET", "state")["instances"].values()
    return sorted(one["name"] for one in found if not one["deleting"])


def reached(process: subprocess.Popen[str], is_so: Callable[[], object]) -> None:
    """Wait until it has come so far."""
    until(lambda: is_so() or process.poll() is not None)
    assert is_so(), process.communicate()[0]


def interrupt(
    process: subprocess.Popen[str], *, again_when: Callable[[], object] | None = None
) -> tuple[str, float]:
    """Press Ctrl-C, and once more when that is so; what was said in all, and how long it took to end."""
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        if again_when is not None:
            until(lambda: again_when() or process.poll() is not None)
            process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return said, time.monotonic() - started


@pytest.mark.parametrize("door", list(DOORS))
def test_nothing_is_left_when_a_launch_is_interrupted_before_its_answer(cloud, person, door):
    cloud.control("PUT", "faults", [{"action": "RunInstances", "kind": "slow", "seconds": 1.5, "times": 1}])
    process = person.begin(DOORS[door])
    reached(process, lambda: cloud.control("GET", "faults")[0]["struck"])
    said, seconds = interrupt(process)
    assert process.returncode in {130, -signal.SIGINT}, said
    assert made(cloud) == []
    assert person.journal() == []
    assert "giving back what was made of cut" in said
    assert "was given back" not in said
    assert seconds < SOON
    if door == "command line":
        assert "Traceback" not in said


def test_nothing_is_sent_when_a_launch_is_interrupted_while_it_waits_for_its_turn(cloud, person):
    """To ask whether it was made, the call would have to be made: that is known without."""
    cloud.control("PUT", "faults", [{"action": "RunInstances", "kind": "throttle"}])
    process = person.begin(DOORS["command line"])
    reached(process, lambda: cloud.control("GET", "faults")[0]["struck"])
    reached(process, person.journal)
    cloud.control("DELETE", "faults")
    said, seconds = interrupt(process)
    assert process.returncode == 130, said
    assert made(cloud) == []
    assert person.journal() == []
    assert "giving back" not in said
    assert seconds < SOON


@pytest.mark.parametrize("door", list(DOORS))
def test_the_command_that_releases_them_is_told_when_giving_back_is_cut_short(cloud, person, door):
    """Not yet listed, and not yet to be deleted, as a provider's new machines are for a while."""
    cloud.control("POST", "options", {"timing": {"visible": 3600, "starting": 3600}})
    process = person.begin(DOORS[door])
    reached(process, lambda: made(cloud))
    deletions = len([each for each in actions(cloud) if each == "DeleteInstances"])
    said, seconds = interrupt(process, again_when=lambda: actions(cloud).count("DeleteInstances") > deletions)
    assert process.returncode in {130, -signal.SIGINT}, said
    assert seconds < 2 * SOON  # a script gives up by itself then
    assert made(cloud) == ["task0.cut", "task1.cut"]
    assert "not all that was made of cut was given back" in said
    assert {match[1] for match in COMMAND.finditer(said)} == {"kill {cut}"}
    cloud.control("POST", "clock", {"advance_seconds": 7200})
    done = person.run("kill", "-y", "{cut}")
    assert done.returncode == 0, done.stderr
    assert made(cloud) == []


def test_the_script_goes_on_after_a_while_and_tells_when_giving_back_takes_longer(cloud, person):
    cloud.control("POST", "options", {"timing": {"visible": 3600, "starting": 3600}})
    sooner = "import trainyard.lib.portal\ntrainyard.lib.portal._CLEANUP_SECONDS = 3\n"  # ten otherwise
    process = person.begin([sys.executable, "-c", sooner + SCRIPT])
    reached(process, lambda: made(cloud))
    said, seconds = interrupt(process)
    assert 2.9 < seconds < 2 * SOON
    assert "KeyboardInterrupt" in said
    assert {match[1] for match in COMMAND.finditer(said)} == {"kill {cut}"}
    assert "not all that was made of cut was given back" in said


@pytest.mark.parametrize("door", list(DOORS))
def test_the_machines_stay_and_the_command_is_told_when_they_were_made_and_are_booting(cloud, person, door):
    cloud.control("POST", "options", {"timing": {"starting": 3600}})
    process = person.begin(DOORS[door])
    reached(process, lambda: made(cloud))
    reached(process, lambda: not person.journal())  # it has seen them, and only waits for them to run
    said, seconds = interrupt(process)
    assert seconds < SOON
    assert "stay and cost money" in said
    assert {match[1] for match in COMMAND.finditer(said)} == {"kill task0.cut task1.cut"}
    assert made(cloud) == ["task0.cut", "task1.cut"]
    cloud.control("POST", "clock", {"advance_seconds": 7200})
    assert person.run("kill", "-y", "task0.cut", "task1.cut").returncode == 0
    assert made(cloud) == []


def actions(cloud: Emulation) -> list[str]:
    return [call["action"] for call in cloud.control("GET", "calls")["calls"]]
