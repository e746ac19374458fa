from __future__ import annotations

import json
import subprocess

import pytest

from trainyard.lib.errors import InvalidError
from trainyard.runtime import rendezvous
from trainyard.runtime.rendezvous import Peer
from trainyard.spec.machine import Device, DeviceKind, Machine, MachineState

SHELLS = [["sh"], ["dash"], ["bash"], ["busybox", "sh"]]
TWO = (Peer("task0.bert", "10.0.0.1", 8, 8), Peer("task1.bert", "10.0.0.2", 4, 4))
SIX = (Peer("task0.bert", "fd00::1", 2, 0), Peer("task1.bert", "fd00::2", 2, 0))


def write(shell, peers, index, folder, **options):
    text = rendezvous.script(peers, index, str(folder), **options)
    subprocess.run([*shell, "-c", text], check=True, stdin=subprocess.DEVNULL, timeout=30)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_every_task_meets_at_task0_when_there_are_two():
    first, second = (rendezvous.environment(TWO, index, "/home/u/r") for index in (0, 1))
    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == (second["MASTER_ADDR"], second["MASTER_PORT"])
    assert first["MASTER_ADDR"] == "10.0.0.1"
    assert [env["NODE_RANK"] for env in (first, second)] == ["0", "1"]
    assert [env["RANK"] for env in (first, second)] == ["0", "1"]
    assert first["NNODES"] == first["WORLD_SIZE"] == "2"
    assert (second["TRAINYARD_JOB"], second["TRAINYARD_TASK"]) == ("bert", "task1.bert")
    assert second["TRAINYARD_ADDRESSES"] == "10.0.0.1,10.0.0.2"
    assert (second["TRAINYARD_NUM_DEVICES"], second["TRAINYARD_NUM_SLOTS"]) == ("4", "12")


def test_every_variable_is_documented_when_it_is_set():
    assert set(rendezvous.environment(TWO, 0, "/r")) == set(rendezvous.VARIABLES)


def test_no_rank_is_set_when_the_job_has_one_task():
    env = rendezvous.environment(TWO[:1], 0, "/r")
    assert (env["NNODES"], env["NODE_RANK"], env["MASTER_ADDR"]) == ("1", "0", "10.0.0.1")
    assert "RANK" not in env
    assert "WORLD_SIZE" not in env


def test_port_is_the_same_when_asked_again_and_another_for_another_job():
    assert rendezvous.master_port("bert") == rendezvous.master_port("bert")
    ports = {rendezvous.master_port(f"job{number}") for number in range(100)}
    assert len(ports) > 90
    assert all(20000 <= port < 30000 for port in ports)
    assert rendezvous.environment(TWO, 1, "/r", port=1234)["MASTER_PORT"] == "1234"


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_files_hold_every_task_when_written(shell, tmp_path):
    files = write(shell, TWO, 1, tmp_path / "r")
    assert files["hostfile"] == "10.0.0.1 slots=8\n10.0.0.2 slots=4\n"
    assert files["hostfile.mpich"] == "10.0.0.1:8\n10.0.0.2:4\n"
    assert files["hostfile.horovod"] == "10.0.0.1 slots=8\n10.0.0.2 slots=4\n"
    assert files["hostfile.deepspeed"] == "10.0.0.1 slots=8\n10.0.0.2 slots=4\n"
    port = rendezvous.master_port("bert")
    assert json.loads(files["tf_config.json"]) == {
        "cluster": {"worker": [f"10.0.0.1:{port}", f"10.0.0.2:{port}"]},
        "task": {"type": "worker", "index": 1},
    }
    assert sorted(files) == sorted(
        [
            *("env.sh", "hostfile", "hostfile.deepspeed", "hostfile.horovod"),
            *("hostfile.mpich", "tf_config.json"),
        ]
    )


def test_addresses_stand_in_brackets_when_they_are_ipv6(tmp_path):
    files = write(["sh"], SIX, 0, tmp_path / "r")
    assert files["hostfile"] == "fd00::1 slots=2\nfd00::2 slots=2\n"
    assert files["hostfile.mpich"] == "[fd00::1]:2\n[fd00::2]:2\n"
    assert files["hostfile.deepspeed"] == "fd00::1 slots=1\nfd00::2 slots=1\n"
    port = rendezvous.master_port("bert")
    assert json.loads(files["tf_config.json"])["cluster"]["worker"] == [
        f"[fd00::1]:{port}",
        f"[fd00::2]:{port}",
    ]
    env = rendezvous.environment(SIX, 0, "/r")
    assert env["MASTER_ADDR"] == "fd00::1"
    assert env["TRAINYARD_HOROVOD_HOSTS"] == "[fd00::1]:2,[fd00::2]:2"


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_env_file_gives_the_same_values_when_the_folder_is_hostile(shell, hostile_path):
    folder = hostile_path / "r"
    write(shell, TWO, 1, folder)
    want = rendezvous.environment(TWO, 1, str(folder))
    names = list(want)
    show = "".join(f'printf "%s\\0" "${name}"; ' for name in names)
    done = subprocess.run(
        [*shell, "-c", f'. "$1"; {show}', "sh", want["TRAINYARD_ENV"]], capture_output=True, check=True
    )
    assert dict(zip(names, done.stdout.decode().split("\0")[:-1], strict=True)) == want


def test_files_are_replaced_and_nothing_else_is_left_when_written_twice(tmp_path):
    folder = tmp_path / "r"
    write(["sh"], TWO, 0, folder)
    files = write(["sh"], TWO[:1], 0, folder)
    assert files["hostfile"] == "10.0.0.1 slots=8\n"
    assert not [name for name in files if name.startswith(".")]
    assert (folder / "env.sh").stat().st_mode & 0o777 == 0o600


def test_script_fits_one_argument_when_the_job_has_a_thousand_tasks(tmp_path):
    peers = [Peer(f"task{i}.a", f"192.168.{i // 250}.{i % 250}", 8, 8) for i in range(1000)]
    assert len(rendezvous.script(peers, 999, str(tmp_path))) < 128 * 1024
    assert write(["sh"], peers, 999, tmp_path / "r")["hostfile"].count("\n") == 1000


@pytest.mark.parametrize("address", ["", "10.0.0.1 slots=1", "a,b", "a\nb"])
def test_an_address_is_refused_when_it_would_break_a_file(address):
    with pytest.raises(InvalidError, match=r"task0\.bert"):
        rendezvous.script([Peer("task0.bert", address)], 0, "/r")


def test_task_or_folder_is_refused_when_it_cannot_be():
    with pytest.raises(InvalidError):
        rendezvous.environment(TWO, 2, "/r")
    with pytest.raises(InvalidError):
        rendezvous.environment(TWO, 0, ".trainyard/r")


def test_slots_are_devices_else_processors_when_made_from_machines():
    def machine(name, **more):
        return Machine(
            name=name, id=name, backend="local", state=MachineState.RUNNING, address="127.77.0.1", **more
        )

    devices = (Device(DeviceKind.GPU, 0), Device(DeviceKind.GPU, 1))
    peers = rendezvous.peers_of(
        [machine("task0.a", cpus=64, devices=devices), machine("task1.a", cpus=4), machine("task2.a")]
    )
    assert [(peer.slots, peer.devices) for peer in peers] == [(2, 2), (4, 0), (1, 0)]
