"""Jobs that say who starts their processes, on two nodes: our own launcher, OpenMPI's, and stand-ins for the others.

The same jobs with the real frameworks are in tests/frameworks (`make test-frameworks`).
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from platforms import platform

# One platform for all: a start takes longer than the jobs.
pytestmark = pytest.mark.slow

# What a collective does, with nothing but sockets: all send their rank to the first, which answers with the sum.
MEET = """
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", port)) as server:
        peers = [server.accept()[0] for _ in range(size - 1)]
    total = sum(int(peer.recv(100)) for peer in peers)
    for peer in peers:
        peer.sendall(str(total).encode())
else:
    deadline = time.monotonic() + 60
    while True:
        try:
            peer = socket.create_connection((address, port))
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    peer.sendall(str(rank).encode())
    total = int(peer.recv(100))
names = ("RANK_ID", "RANK_SIZE", "DEVICE_ID", "LOCAL_RANK", "NODE_RANK")
print("sum", total, *(os.environ[name] for name in names), flush=True)
"""


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Launchers that only say how they were called."""
    folder = tmp_path_factory.mktemp("bin")
    folder.chmod(0o755)  # tasks of nodes of root are users of their own
    for name in ("torchrun", "horovodrun"):
        (folder / name).write_text('#!/bin/sh\necho "$TRAINYARD_TASK: ${0##*/} $*"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, stand_ins):
    with platform(tmp_path_factory.mktemp("launchers")) as up:
        for name in ("atlas-1", "atlas-2"):
            body = {"name": name, "address": {"backend": "local"}, "devices": {"Ascend910": 8}}
            up.call("POST", "/api/v1/nodes", body)
            up.call("PATCH", f"/api/v1/nodes/{name}", {"options": {"visible": [str(stand_ins)]}})
        wait_for(lambda: all(node["state"] == "ready" for node in up.call("GET", "/api/v1/nodes")["items"]))
        yield up


def wait_for(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)
    return found


def finish(up, command, **given):
    job = up.submit(command, **given)
    found = up.until(job, "succeeded", "failed", "cancelled", seconds=100)
    return found, up.lines(job)


def said(lines, word):
    """What processes of our own launcher have said, without who they are."""
    return sorted(line.partition("] ")[2].split() for line in lines if f"] {word} " in line)


def workers(**changes):
    return [{"name": "worker", "replicas": 2, "cpu": 0.1, **changes}]


NPUS = {"device": "Ascend910", "devices": 8}


@pytest.mark.parametrize("kind", ["PSDistJob", "PyTorchJob"])
def test_sixteen_processes_meet_with_the_right_ranks_when_two_servers_give_eight_devices_each(cluster, kind):
    """The manual's job on Ascend: its own script counts ranks from 0 on both servers, and would never meet."""
    command, env = 'python3 -c "$PROGRAM"', {"PROGRAM": MEET}  # a closed view shows no file of ours
    found, lines = finish(cluster, command, kind=kind, launcher="own", env=env, roles=workers(**NPUS))
    assert found["state"] == "succeeded", lines
    wanted = [
        ["sum", "120", str(rank), "16", str(rank % 8), str(rank % 8), str(rank // 8)] for rank in range(16)
    ]
    assert said(lines, "sum") == sorted(wanted)


def test_the_whole_job_fails_with_its_code_when_one_process_does(cluster, tmp_path):
    """A process of the second node fails; those of both are gone then, with what they have started."""
    note = f'echo $$ > "{tmp_path}/note.$RANK"; mv "{tmp_path}/note.$RANK" "{tmp_path}/pid.$RANK"; '
    there = " && ".join(f'[ -e "{tmp_path}/pid.{rank}" ]' for rank in range(4))
    fail = f"[ $RANK != 3 ] || {{ until {there}; do sleep 0.05; done; exit 7; }}; "
    found, lines = finish(
        cluster,
        note + fail + "sleep 600 & sleep 600",
        kind="PyTorchJob",
        launcher="own",
        processes=2,
        roles=workers(),
    )
    assert (found["state"], found["exit_code"]) == ("failed", 7), lines
    assert "launch: process 3 ended with status 7; the others are ended" in lines
    pids = [int(path.read_text()) for path in tmp_path.glob("pid.*")]
    assert len(pids) == 4
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_every_process_may_save_its_work_when_the_job_is_cancelled(cluster, tmp_path):
    text = f"trap 'echo saved $RANK; exit 0' TERM; : > \"{tmp_path}/up.$RANK\"; while :; do sleep 0.05; done"
    job = cluster.submit(text, kind="PyTorchJob", launcher="own", processes=2, roles=workers())
    wait_for(lambda: len(list(tmp_path.glob("up.*"))) == 4)
    cluster.call("PUT", f"/api/v1/jobs/{job}/desired", {"desired": "cancel"})
    assert cluster.until(job, "cancelled", "failed", "succeeded")["state"] == "cancelled"
    assert said(cluster.lines(job), "saved") == [["saved", str(rank)] for rank in range(4)]


@pytest.mark.mpi
@pytest.mark.skipif(
    not shutil.which("mpirun"), reason="OpenMPI is not installed (apt-get install openmpi-bin)"
)
@pytest.mark.parametrize("kind", ["MPIJob", "PyTorchJob"])
def test_openmpi_starts_the_processes_of_all_tasks_when_it_is_the_launcher(cluster, kind):
    found, lines = finish(
        cluster,
        'cd / && echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE local $OMPI_COMM_WORLD_LOCAL_RANK"',
        kind=kind,
        launcher="mpirun",
        processes=2,
        roles=workers(),
    )
    assert found["state"] == "succeeded", lines
    ranks = sorted(line for line in lines if line.startswith("rank "))
    assert [line.partition(" local")[0] for line in ranks] == [f"rank {rank} of 4" for rank in range(4)]


@pytest.mark.parametrize("launcher", ["torchrun", "horovodrun"])
def test_another_launcher_gets_the_right_words_when_the_job_names_it(cluster, stand_ins, launcher):
    found, lines = finish(
        cluster,
        "python train.py --lr 1",
        kind="PyTorchJob",
        launcher=launcher,
        processes=4,
        env={"PATH": f"{stand_ins}:{os.environ['PATH']}"},
        roles=workers(),
    )
    assert found["state"] == "succeeded", lines
    calls = sorted(line for line in lines if f": {launcher} " in line)
    if launcher == "torchrun":
        assert len(calls) == 2
        for rank, call in enumerate(calls):
            assert f"--nnodes=2 --node_rank={rank} " in call
            assert "--nproc_per_node=4 --no-python" in call
            assert call.endswith("-c python train.py --lr 1")
    else:
        (call,) = calls
        assert call.startswith("master-0: horovodrun -np 8 -H ")
        assert call.count(":4") == 2


def test_torchrun_waits_only_for_those_that_train_when_a_parameter_server_stands_by(cluster, stand_ins):
    found, lines = finish(
        cluster,
        "train.py --lr 1",
        kind="PSDistJob",
        launcher="torchrun",
        env={"PATH": f"{stand_ins}:{os.environ['PATH']}"},
        roles=workers(**NPUS),
    )
    assert found["state"] == "succeeded", lines
    calls = sorted(line for line in lines if ": torchrun " in line)
    assert [call.partition("--master_addr")[0] for call in calls] == [
        f"worker-{rank}: torchrun --nnodes=2 --node_rank={rank} " for rank in (0, 1)
    ]
    assert all("--nproc_per_node=8 train.py --lr 1" in call for call in calls), calls
    assert len({call.partition("--master_port=")[2].split()[0] for call in calls}) == 1, calls


def test_nothing_of_a_task_is_left_when_its_launcher_is_killed_on_the_node(cluster, tmp_path):
    note = f'echo $$ > "{tmp_path}/note.$RANK"; mv "{tmp_path}/note.$RANK" "{tmp_path}/pid.$RANK"; '
    job = cluster.submit(
        f'echo $PPID > "{tmp_path}/launcher"; {note} sleep 600 & sleep 600',
        launcher="own",
        processes=2,
        roles=[{"cpu": 0.1}],
    )
    wait_for(lambda: len(list(tmp_path.glob("pid.*"))) == 2)
    pids = [int(path.read_text()) for path in tmp_path.glob("pid.*")]
    os.kill(int((tmp_path / "launcher").read_text()), signal.SIGKILL)
    assert cluster.until(job, "failed", "succeeded")["state"] == "failed"
    wait_for(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])
