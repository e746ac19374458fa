"""What exists outlives the emulator, however it ends; its machines end with it, or are taken over by the next."""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
import threading
import time
from datetime import datetime, timedelta

import pytest

from emulation import PROGRAM, Emulation, emulated, until

pytestmark = [pytest.mark.slow, pytest.mark.ssh]  # emulators are started and ended, with machines on them


def listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex((address, port)) == 0


def answers(cloud: Emulation, instance: dict) -> bool:
    return listens(instance["VpcAttributes"]["PrivateIpAddress"]["IpAddress"][0], cloud.ready["ssh_port"])


def only(cloud: Emulation) -> dict:
    [instance] = cloud.instances()
    return instance


def test_machines_end_with_the_emulator_and_come_back_with_it(tmp_path):
    with emulated(tmp_path / "state") as cloud:
        cloud.launch(cloud.network(), InstanceName="task0.kept", ClientToken="once")
        before = only(cloud)
        until(lambda: answers(cloud, before))
        assert cloud.stop() == 0
        assert not answers(cloud, before)
    with emulated(tmp_path / "state") as cloud:
        after = only(cloud)
        assert {name: after[name] for name in ("InstanceId", "InstanceName", "CreationTime")} == {
            name: before[name] for name in ("InstanceId", "InstanceName", "CreationTime")
        }
        until(lambda: answers(cloud, after))
        cloud.ecs("DeleteInstances", InstanceId=[after["InstanceId"]], Force=True)
        until(lambda: not answers(cloud, after))


def test_nothing_is_lost_or_doubled_when_the_emulator_is_killed(tmp_path):
    """Each round the emulator is killed right after an answer; what was answered has to be there."""
    made: dict[str, list[str]] = {}
    cloud = Emulation(tmp_path / "state")
    network = cloud.network()
    given = {"Amount": 2, "InstanceType": "ecs.c7.large"}
    try:
        for number in range(3):
            made[f"token{number}"] = cloud.launch(network, ClientToken=f"token{number}", **given)
            cloud.kill()
            cloud = Emulation(tmp_path / "state")
            for token, ids in made.items():
                assert cloud.launch(network, ClientToken=token, **given) == ids
        known = sorted(one["InstanceId"] for one in cloud.instances())
        assert known == sorted(name for ids in made.values() for name in ids)
        cloud.control("POST", "settle")
        assert all(answers(cloud, one) for one in cloud.instances())
        cloud.ecs("DeleteInstances", InstanceId=known, Force=True)
        cloud.control("POST", "settle")
    finally:
        if cloud.process.poll() is None:
            cloud.stop()


def test_a_token_is_worth_one_instance_when_the_emulator_is_killed_at_any_moment(tmp_path):
    """Calls go on while it is killed; those without an answer are repeated with their tokens."""
    chance = random.Random(5)
    cloud = Emulation(tmp_path / "state")
    network = cloud.network()
    tokens: list[str] = []
    answered: dict[str, list[str]] = {}
    given = {"InstanceType": "ecs.c7.large", "SystemDisk": {"Category": "cloud_essd"}}

    def ask() -> None:
        for number in range(50):
            tokens.append(f"{len(tokens)}-{number}")
            try:
                answered[tokens[-1]] = cloud.launch(network, ClientToken=tokens[-1], **given)
            except (OSError, http.client.HTTPException):
                return  # killed in the middle of it

    try:
        for _ in range(3):
            asking = threading.Thread(target=ask)
            asking.start()
            time.sleep(chance.uniform(0.02, 0.25))  # a moment like any other
            cloud.kill()
            asking.join()
            cloud = Emulation(tmp_path / "state")
        made = {token: cloud.launch(network, ClientToken=token, **given) for token in tokens}
        assert {token: made[token] for token in answered} == answered
        ids = sorted(one for ids in made.values() for one in ids)
        assert len(ids) == len(tokens)
        assert sorted(cloud.control("GET", "state")["instances"]) == ids
    finally:
        if cloud.process.poll() is None:
            cloud.stop()


def test_keys_tokens_clock_and_region_are_those_of_the_last_time(tmp_path):
    with emulated(tmp_path / "state", "--region", "cn-zhangjiakou") as cloud:
        cloud.control("POST", "clock", {"advance_seconds": 86400 * 30})
        first = cloud.ready
        then = cloud.control("GET", "clock")["now"]
        cloud.stop(signal.SIGINT)
    with emulated(tmp_path / "state") as cloud:
        same = ("access_key_id", "access_key_secret", "region")
        assert {name: cloud.ready[name] for name in same} == {name: first[name] for name in same}
        assert cloud.control("GET", "clock")["now"] > then


def test_the_port_is_that_of_the_last_time_when_none_is_asked_for(tmp_path):
    with emulated(tmp_path / "state") as cloud:
        endpoint = cloud.endpoint
    words = [*PROGRAM, "emulate", "aliyun", "--state", str(tmp_path / "state"), "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert f'"endpoint": "{endpoint}"' in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    process.stdout.close()


def test_a_machine_is_gone_for_good_when_its_time_is_up(tmp_path):
    with emulated(tmp_path / "state") as cloud:
        network = cloud.network()
        now = cloud.control("GET", "clock")["now"]
        release = (datetime.fromisoformat(now) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
        cloud.launch(network, AutoReleaseTime=release)
        row = only(cloud)
        until(lambda: answers(cloud, row))
        cloud.control("POST", "clock", {"advance_seconds": 7300})
        assert cloud.instances() == []
        until(lambda: not answers(cloud, row))
        until(lambda: not list((cloud.folder / "machines" / "machines").glob("i-*")))


def test_a_wrong_state_is_told_in_a_sentence(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "emulator.json").write_text("{")
    words = [*PROGRAM, "emulate", "aliyun", "--state", str(folder)]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "is damaged" in ended.stderr
    assert "Remove it" in ended.stderr
    assert "Traceback" not in ended.stderr
    for option in (
        ["--region", "mars"],
        ["--set", "timing"],
        ["--set", "timing.tea=3"],
        ["--faults", "/nowhere"],
    ):
        ended = subprocess.run(
            [*PROGRAM, "emulate", "aliyun", "--state", str(tmp_path / "other"), *option],
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 2, option
        assert "hint:" in ended.stderr, option


def test_a_folder_with_a_hostile_name_works(hostile_path):
    with emulated(hostile_path / "state") as cloud:
        cloud.launch(cloud.network())
        row = only(cloud)
        until(lambda: answers(cloud, row))
        assert not os.path.exists("pwned")


def test_ctrl_c_ends_the_machines_too_when_they_are_in_the_midst_of_booting(tmp_path):
    """A terminal sends it to the whole group of processes, at any moment."""
    for wait in (0.0, 0.3):
        with emulated(tmp_path / f"state{wait}") as cloud:
            network = cloud.network()
            cloud.launch(network, Amount=4)
            rows = cloud.instances()
            time.sleep(wait)  # a moment like any other
            os.killpg(cloud.process.pid, signal.SIGINT)
            assert cloud.stop() == 0
            assert not any(answers(cloud, row) for row in rows)


def test_the_screen_says_what_to_export(tmp_path):
    words = [*PROGRAM, "emulate", "aliyun", "--port", "0", "--state", str(tmp_path / "state")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = list(iter(process.stdout.readline, "Ctrl-C ends it with its machines; what exists is kept.\n"))
    exports = dict(line.split()[1].split("=", 1) for line in lines if line.startswith("    export "))
    assert set(exports) == {
        "TRAINYARD_ALIYUN_ENDPOINT",
        "ALIYUN_ACCESS_KEY_ID",
        "ALIYUN_ACCESS_KEY_SECRET",
        "ALIYUN_DEFAULT_REGION",
        "TRAINYARD_BACKEND",
    }
    address, _, port = exports["TRAINYARD_ALIYUN_ENDPOINT"].partition(":")
    assert listens(address, int(port))
    process.send_signal(signal.SIGINT)
    _, remarks = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "what exists in it is kept in" in remarks
