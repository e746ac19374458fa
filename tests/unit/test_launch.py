from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from trainyard import launch
from trainyard.lib.errors import InvalidError

SHELLS = [["sh"], ["dash"], ["bash"], ["busybox", "sh"]]


@pytest.fixture
def words(tmp_path):
    """Run a command line where every launcher is a program that prints its words and what it was given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("torchrun", "mpirun", "horovodrun", "train"):
        path = folder / name
        path.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@" "RANK=$RANK" "TF=$TF_CONFIG"\n')
        path.chmod(0o755)

    def run(line, shell=("sh",), **env):
        path = f"{folder}:{os.environ['PATH']}"
        clean = {"PATH": path, "RANK": "1", "WORLD_SIZE": "2", **env}
        done = subprocess.run([*shell, "-c", line], env=clean, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_torchrun_meets_at_the_master_when_the_task_says_where(words, shell):
    env = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "fd00::1", "MASTER_PORT": "20001"}
    got = words(launch.torchrun("train.py --lr 1 'a b'", nproc_per_node=8), shell, **env)
    assert got[:9] == [
        *("torchrun", "--nnodes=2", "--node_rank=1", "--master_addr=fd00::1", "--master_port=20001"),
        *("--nproc_per_node=8", "train.py", "--lr", "1"),
    ]
    assert got[9] == "a b"


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
@pytest.mark.parametrize(("devices", "processes"), [("", 1), ("0", 1), ("8", 8)])
def test_torchrun_starts_a_process_a_device_when_no_number_is_given(words, shell, devices, processes):
    got = words(launch.torchrun("train.py"), shell, TRAINYARD_NUM_DEVICES=devices)
    assert f"--nproc_per_node={processes}" in got


def test_torchrun_quotes_words_when_they_come_as_a_list(words):
    assert "it's; $(x)" in words(launch.torchrun(["train.py", "it's; $(x)"]))


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_mpirun_takes_all_tasks_when_no_hosts_are_named(words, shell):
    got = words(
        launch.mpirun("python train.py", npernode=8), shell, TRAINYARD_HOSTFILE="/a b/hostfile", XLA_FLAGS="1"
    )
    line = " ".join(got)
    assert "--hostfile /a b/hostfile" in line
    assert "--npernode 8" in line
    assert "-np" not in got
    assert "-x PATH" in line
    assert "-x XLA_FLAGS" in line
    assert "PYTHONPATH" not in line  # it is not set, and mpirun would warn
    assert got[-4:-2] == ["python", "train.py"]
    assert got[-2] == "RANK="


def test_mpirun_names_hosts_and_variables_when_told(words):
    line = launch.mpirun(
        "train", np=4, hosts=["10.0.0.1:2", "10.0.0.2:2"], env=["A=x y"], options="--tag-output"
    )
    got = words(line)
    assert got[got.index("--host") :][:2] == ["--host", "10.0.0.1:2,10.0.0.2:2"]
    assert got[got.index("-x") :][:4] == ["-x", "A=x y", "--tag-output", "train"]
    with pytest.raises(InvalidError):
        launch.mpirun("train", env=["a b"])


def test_horovodrun_takes_all_tasks_when_no_hosts_are_named(words):
    env = {"TRAINYARD_NUM_SLOTS": "16", "TRAINYARD_HOROVOD_HOSTS": "a:8,b:8"}
    assert words(launch.horovodrun("python t.py"), **env)[:7] == [
        *("horovodrun", "-np", "16", "-H", "a:8,b:8", "python", "t.py")
    ]
    assert words(launch.horovodrun("python t.py", np=2, hosts="c:2"))[1:5] == ["-np", "2", "-H", "c:2"]


def test_tensorflow_gets_its_configuration_when_started(words, tmp_path):
    config = tmp_path / "tf config.json"
    config.write_text('{"cluster": {}}\n')
    assert words(launch.tensorflow("train x"), TRAINYARD_TF_CONFIG=str(config))[-1] == 'TF={"cluster": {}}'


@pytest.mark.parametrize("command", ["", "  ", []])
def test_nothing_is_refused_when_there_is_no_command(command):
    with pytest.raises(InvalidError):
        launch.torchrun(command)


def test_mpi_prefix_is_the_familys_when_asked():
    assert launch.get_mpi_prefix(16, 8, "10.0.0.1:8,10.0.0.2:8") == (
        "mpirun --allow-run-as-root -np 16 --npernode 8 --host 10.0.0.1:8,10.0.0.2:8 --bind-to none "
        "-x NCCL_SOCKET_IFNAME=^lo,docker0 -mca btl_tcp_if_exclude lo,docker0 -x PATH -x XLA_FLAGS "
        "-x PYTHONPATH -x LD_LIBRARY_PATH "
    )


def run_as_rank(path, rank):
    env = {"PATH": os.environ["PATH"], "OMPI_COMM_WORLD_RANK": rank}
    return subprocess.run([path], env=env, capture_output=True, text=True)


@pytest.mark.skipif(not shutil.which("bash"), reason="the family's command files are for bash")
def test_only_rank_0_prints_and_all_keep_their_status_when_run_from_a_command_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = launch.gen_command_file("""echo "it's $OMPI_COMM_WORLD_RANK"; echo e >&2\nexit 3""")
    assert name == "command.sh"
    first, second = run_as_rank("./command.sh", "0"), run_as_rank("./command.sh", "1")
    assert (first.returncode, first.stdout, first.stderr) == (3, "it's 0\n", "e\n")
    assert (second.returncode, second.stdout, second.stderr) == (3, "", "")


def test_every_rank_prints_when_a_command_file_shows_all(tmp_path):
    path = launch.gen_command_file("false | echo x; (exit 4)", str(tmp_path / "a b.sh"), display_rank0=False)
    done = run_as_rank(path, "5")
    assert (done.returncode, done.stdout) == (4, "x\n")
