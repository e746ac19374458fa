"""Jobs of several tasks on one machine: what each task is told, and that they begin together or not at all."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import platforms
from trainyard.engines.nodes.agent.barrier.ssh_ports import choices
from trainyard.server.launch import rendezvous
from trainyard.server.secrets.sealing import Seal

pytestmark = pytest.mark.slow  # a platform of its own for the module, and processes that wait for each other
ALLREDUCE = Path(__file__).with_name("allreduce_sockets.py")
needs_sshd = pytest.mark.skipif(not shutil.which("sshd", path="/usr/sbin:/usr/bin"), reason="no sshd here")
needs_mpi = pytest.mark.skipif(not shutil.which("mpirun"), reason="OpenMPI is not installed")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[platforms.Up]:
    with platforms.platform(
        tmp_path_factory.mktemp("gangs 中文 $(x) 'q'"), "--cpu", "64", "--devices", "V100=4"
    ) as found:
        yield found


def run(up: platforms.Up, command: str, seconds: float = 60.0, **given: Any) -> tuple[Any, list[str]]:
    job = up.submit(command, **given)
    return up.until(job, "succeeded", "failed", seconds=seconds), up.lines(job)


def worker(**more: Any) -> dict[str, Any]:
    return {"name": "worker", "cpu": 0.1, **more}


def test_workers_become_a_master_and_workers_when_a_pytorch_job_has_only_these(up):
    command = 'echo "$RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT $NPROC_PER_NODE $PET_NNODES $PET_NODE_RANK"'
    job, lines = run(up, command, kind="PyTorchJob", roles=[worker(replicas=3)])
    assert job["state"] == "succeeded", lines
    told = sorted(line for line in lines if line[:1].isdigit())
    ports = {line.split()[3] for line in told}
    assert [line.replace(f" {port} ", " PORT ") for line in told for port in ports] == [
        f"{rank} 3 127.0.0.1 PORT 1 3 {rank}" for rank in range(3)
    ]
    tasks = up.call("GET", f"/api/v1/jobs/{job['id']}/tasks")["items"]
    assert sorted(task["name"] for task in tasks) == ["master-0", "worker-0", "worker-1"]
    begin = "Network is under initialization... Network successfully initialized."
    assert lines.count(begin) == 3


def test_the_other_tasks_may_save_their_work_when_the_first_one_decides(up):
    command = (
        'if [ $RANK = 0 ]; then until [ -e "$FLAG" ]; do sleep 0.05; done; exit 0; fi; '
        "trap 'echo saved; exit 0' TERM; touch \"$FLAG\"; while :; do sleep 0.05; done"
    )
    given = {"roles": [worker(replicas=2)], "env": {"FLAG": str(up.folder / "ready")}}
    job, lines = run(up, command, kind="PyTorchJob", success="first", **given)
    assert job["state"] == "succeeded", lines
    assert "saved" in lines


def test_two_jobs_have_ports_of_their_own_when_they_share_a_node(up):
    command = f"""exec {sys.executable} -c '
import os, socket, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("", int(os.environ["MASTER_PORT"]))); s.listen()
print("bound", os.environ["MASTER_PORT"], flush=True); time.sleep(120)'"""
    with socket.socket() as stranger:  # nobody of ours has the usual port either
        taken = False
        try:
            stranger.bind(("", 23456))
            stranger.listen()
            taken = True
        except OSError:
            pass
        jobs = [up.submit(command, kind="PyTorchJob", roles=[worker()]) for _ in range(3)]
        for job in jobs:
            up.until(job, "running")
        ports = {_line_of(up, job, "bound") for job in jobs}
        assert len(ports) == 3
        assert not taken or "bound 23456" not in ports
        for job in jobs:
            up.call("PUT", f"/api/v1/jobs/{job}/desired", {"desired": "cancel"})
    for job in jobs:
        up.until(job, "cancelled")


def _line_of(up: platforms.Up, job: str, word: str, seconds: float = 30.0) -> str:
    deadline = time.monotonic() + seconds
    while True:
        found = [line for line in up.lines(job) if line.startswith(word)]
        if found:
            return found[0]
        assert time.monotonic() < deadline, up.lines(job)
        time.sleep(0.05)


def test_a_cluster_is_told_to_all_and_servers_are_ended_when_the_workers_are_done(up):
    command = 'echo "$TF_CONFIG"; [ "$TRAINYARD_ROLE" != ps ] || sleep infinity'
    roles = [worker(replicas=2), worker(name="ps"), worker(name="evaluator")]
    job, lines = run(up, command, kind="TFJob", roles=roles)
    assert job["state"] == "succeeded", lines
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(told) == 4
    clusters = {json.dumps(one["cluster"], sort_keys=True) for one in told}
    assert len(clusters) == 1, clusters
    cluster = told[0]["cluster"]
    assert (sorted(cluster), len(cluster["worker"]), len(cluster["ps"])) == (["ps", "worker"], 2, 1)
    assert len({*cluster["worker"], *cluster["ps"]}) == 3
    assert {(one["task"]["type"], one["task"]["index"]) for one in told} == {
        ("ps", 0), ("worker", 0), ("worker", 1), ("evaluator", 0),
    }  # fmt: skip


@needs_sshd
@needs_mpi
@pytest.mark.mpi
def test_mpirun_starts_processes_in_all_tasks_when_only_one_runs_the_command(up):
    show = 'sh -c "echo rank=\\$OMPI_COMM_WORLD_RANK on=\\$TRAINYARD_TASK"'
    job, lines = run(up, f"mpirun -np 3 {show}", kind="MPIJob", roles=[worker(replicas=3)])
    assert job["state"] == "succeeded", lines
    assert sorted(line for line in lines if line.startswith("rank=")) == [
        "rank=0 on=master-0",
        "rank=1 on=worker-0",
        "rank=2 on=worker-1",
    ]


@needs_sshd
@needs_mpi
@pytest.mark.mpi
def test_the_status_of_the_launcher_is_the_jobs_when_mpirun_fails(up):
    roles = [worker(name="launcher"), worker(replicas=2)]
    job, lines = run(up, "mpirun -np 2 sh -c 'exit 7'; exit $?", kind="MPIJob", roles=roles)
    assert (job["state"], job["exit_code"]) == ("failed", 7), lines


@needs_sshd
def test_only_the_jobs_own_tasks_reach_each_other_by_ssh(up, tmp_path):
    command = (
        "ssh worker-0 'echo name=$TRAINYARD_TASK role=$DLWS_ROLE_NAME'; ssh ps-0 true; echo own=$?\n"
        'real=$(command -v -p ssh); "$real" -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=no '
        '-o UserKnownHostsFile=/dev/null -p "$DLWS_SD_worker0_SSH_PORT" "$DLWS_SD_worker0_IP" true; echo stranger=$?\n'
        'scp -q "$0" worker-1:/dev/null; echo copied=$?'
    )
    job, lines = run(up, command, kind="PSDistJob", roles=[worker(replicas=2)])
    assert job["state"] == "succeeded", lines
    for line in ("name=worker-0 role=worker", "own=0", "stranger=255", "copied=0"):
        assert line in lines, lines


def test_the_job_fails_in_time_and_says_who_is_missing_when_a_task_never_comes(up):
    # A working folder that cannot be: this task ends before it reports, and nobody else begins.
    roles = [worker(name="master"), worker(env={"TRAINYARD_NOTHING": "1"})]
    command = "echo began"
    job, lines = run(up, command, kind="PyTorchJob", roles=roles, ready_seconds=2, working_dir="/proc/none")
    assert job["state"] == "failed"
    assert "began" not in lines


def _seed(up: platforms.Up, job: str) -> str:
    return rendezvous.seed_of(Seal(up.data / "sealing.key").derive("launches"), f"{job}.1")


def _with_ports_taken(up: platforms.Up, command: str, taken: dict[int, list[int]], gate: bool) -> Any:
    """Run a job of ps-0 and two workers whose ports, by rank, somebody silent has already."""
    # It waits until its name, and so the ports of its first start, are known and taken.
    up.call("PUT", "/api/v1/nodes/local/desired", {"desired": "cordoned"})
    job = up.submit(command, kind="PSDistJob", roles=[worker(replicas=2)])
    seed = _seed(up, job)
    ports = choices(rendezvous.port_of(seed))
    places = [(rendezvous.own_address(seed, rank), ports[i]) for rank, which in taken.items() for i in which]
    if gate:
        places.append((rendezvous.own_address(seed, 0), rendezvous.barrier_ports_of(seed)[0]))
    with contextlib.ExitStack() as strangers:
        for place in places:
            stranger = strangers.enter_context(socket.socket())
            stranger.bind(place)
            stranger.listen()
        up.call("PUT", "/api/v1/nodes/local/desired", {"desired": "ready"})
        return up.until(job, "succeeded", "failed", seconds=60), up.lines(job)


@needs_sshd
def test_tasks_reach_each_other_at_once_when_somebody_else_has_their_ports(up):
    command = (
        "ssh worker-0 'echo first=$TRAINYARD_TASK'; ssh -p $DLWS_SD_worker0_SSH_PORT worker-1 'echo other=$TRAINYARD_TASK'\n"
        "ssh worker-1 ssh worker-0 ssh ps-0 \"'echo back=$TRAINYARD_TASK at=$DLWS_SD_SELF_SSH_PORT'\"\n"
        "ssh worker-0 'echo own=$DLWS_SD_SELF_SSH_PORT'; echo seen=$DLWS_SD_worker0_SSH_PORT"
    )
    found, lines = _with_ports_taken(up, command, {0: [0], 1: [0, 1]}, gate=True)
    assert (found["state"], found["attempt"]) == ("succeeded", 1), (found, lines)
    ports = choices(rendezvous.port_of(_seed(up, found["id"])))
    for line in (
        "first=worker-0",
        "other=worker-1",
        f"back=ps-0 at={ports[1]}",
        f"own={ports[2]}",
        f"seen={ports[2]}",
    ):
        assert line in lines, lines


def _repeat(listener: socket.socket, places: list[tuple[str, int]], heard: list[bytes]) -> None:
    """Say to everybody what the first ssh of the job that answers says of itself, until the listener is closed."""
    with contextlib.suppress(OSError):
        while True:
            exec_client, _ = listener.accept()
            for place in [] if heard else places:
                with contextlib.suppress(OSError), socket.create_connection(place, timeout=2) as real:
                    heard.append(real.recv(512))
            with exec_client, contextlib.suppress(OSError):
                exec_client.sendall(heard[0] if heard else b"")


@needs_sshd
def test_tasks_reach_each_other_when_a_stranger_repeats_at_another_port_what_their_ssh_says(up):
    up.call("PUT", "/api/v1/nodes/local/desired", {"desired": "cordoned"})
    job = up.submit(
        "ssh worker-0 'echo reached=$TRAINYARD_TASK'", kind="PSDistJob", roles=[worker(replicas=2)]
    )
    seed = _seed(up, job)
    address, ports = rendezvous.own_address(seed, 1), choices(rendezvous.port_of(seed))
    heard: list[bytes] = []
    places = [(rendezvous.own_address(seed, rank), ports[0]) for rank in (0, 2)] + [(address, ports[1])]
    with contextlib.ExitStack() as stack:
        for port in (ports[0], *ports[2:]):  # all but the one that is left for the task
            stranger = stack.enter_context(socket.socket())
            stranger.bind((address, port))
            stranger.listen()
            thread = threading.Thread(target=_repeat, args=(stranger, places, heard))
            thread.start()
            stack.callback(thread.join)
            stack.callback(stranger.shutdown, socket.SHUT_RDWR)
        up.call("PUT", "/api/v1/nodes/local/desired", {"desired": "ready"})
        found = up.until(job, "succeeded", "failed", seconds=60)
    assert (found["state"], found["attempt"]) == ("succeeded", 1), up.lines(job)
    assert "reached=worker-0" in up.lines(job)
    assert b"ty-" in heard[0]


@needs_sshd
def test_a_job_starts_anew_when_somebody_else_has_every_port_of_its_ssh(up):
    found, lines = _with_ports_taken(up, "ssh worker-0 echo reached", {1: [*range(5)]}, gate=False)
    assert (found["state"], found["attempt"]) == ("succeeded", 2), (found, lines)
    assert "reached" in lines


def test_tasks_meet_when_somebody_else_has_every_port_of_their_gate(up):
    up.call("PUT", "/api/v1/nodes/local/desired", {"desired": "cordoned"})
    job = up.submit("echo met", kind="PyTorchJob", roles=[worker(replicas=3)])
    seed = _seed(up, job)
    with contextlib.ExitStack() as strangers:
        for port in rendezvous.barrier_ports_of(seed):
            stranger = strangers.enter_context(socket.socket())
            stranger.bind((rendezvous.own_address(seed, 0), port))
            stranger.listen()
        up.call("PUT", "/api/v1/nodes/local/desired", {"desired": "ready"})
        found = up.until(job, "succeeded", "failed", seconds=60)
    assert (found["state"], found["attempt"], up.lines(job).count("met")) == ("succeeded", 1, 3)


@needs_sshd
def test_the_command_runs_in_the_workers_when_only_npus_are_to_be_had_and_else_the_user_is_asked(up):
    up.call(
        "POST",
        "/api/v1/nodes",
        {"name": "atlas", "address": {"backend": "local"}, "devices": {"Ascend910": 4}},
    )
    try:
        # As the manual's commands begin; the variables are kept, and the user is nobody else.
        command = """sudo -E bash -c 'echo "role=$DLWS_ROLE_NAME npu=$DLWS_IS_NPU_JOB"; [ "$DLWS_UID" = "$(id -u)" ]'"""
        with pytest.raises(urllib.error.HTTPError) as refused:
            up.submit(command, kind="PSDistJob", roles=[worker(replicas=2, devices=1)])
        said = json.loads(refused.value.read())
        assert refused.value.code == 422
        assert "does not say which devices it wants, and there are Ascend910, V100." in said["message"]
        job, lines = run(
            up, command, kind="PSDistJob", roles=[worker(replicas=2, devices=1, nodes=["atlas"])]
        )
        assert job["state"] == "succeeded", lines
        assert [line for line in lines if line.startswith("role=")] == ["role=worker npu=true"] * 2
    finally:
        up.call("PUT", "/api/v1/nodes/atlas/desired", {"desired": "drained"})
        up.call("DELETE", "/api/v1/nodes/atlas")


def test_there_is_a_process_for_each_gpu_when_our_launcher_starts_them(up):
    command = 'echo "process $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE"'
    job, lines = run(up, command, launcher="own", roles=[worker(replicas=2, devices=2)])
    assert job["state"] == "succeeded", lines
    told = sorted(line.partition("] ")[2] for line in lines if "process" in line)
    assert told == [f"process {rank} of 4, {rank % 2} of 2" for rank in range(4)]


def test_a_kind_that_nobody_knows_is_refused_with_the_nearest(up):
    with pytest.raises(urllib.error.HTTPError) as refused:
        up.submit("true", kind="PyTorchJobs")
    said = json.loads(refused.value.read())
    assert refused.value.code == 422
    assert "did you mean PyTorchJob?" in said["message"]


def test_the_result_is_the_same_when_a_worker_crashes_in_the_middle(up, tmp_path):
    results = []
    for crash in ("", "crash-2"):
        folder = tmp_path / f"run{crash}"
        folder.mkdir()
        if crash:
            (folder / crash).touch()
        job, lines = run(
            up, f"{sys.executable} -S {ALLREDUCE} {folder} 60 0.01", kind="PyTorchJob",
            roles=[worker(replicas=4)], max_retries=2,
        )  # fmt: skip
        assert job["state"] == "succeeded", lines
        results.append({line for line in lines if line.startswith("weight")})
        assert job["attempt"] == (2 if crash else 1)
    assert results[0] == results[1]
    assert len(results[0]) == 1


def test_the_result_is_the_same_when_the_job_makes_room_in_the_middle(up, tmp_path):
    def train(name: str, pause: float) -> str:
        folder = tmp_path / name
        folder.mkdir()
        return up.submit(
            f"{sys.executable} -S {ALLREDUCE} {folder} 100 {pause}", kind="PyTorchJob", preemptible=True,
            roles=[worker(replicas=4, devices=1)], grace_seconds=1, priority=1,
        )  # fmt: skip

    plain = train("undisturbed", 0.0)
    assert up.until(plain, "succeeded", "failed")["state"] == "succeeded"
    job = train("disturbed", 0.03)
    _line_of(up, job, "rank 3")
    urgent = up.submit("true", priority=9, roles=[worker(devices=1)])
    assert up.until(urgent, "succeeded", "failed")["state"] == "succeeded"
    found = up.until(job, "succeeded", "failed", seconds=90)
    assert (found["state"], found["attempt"]) == ("succeeded", 2)
    weights = [{line for line in up.lines(one) if line.startswith("weight")} for one in (plain, job)]
    assert weights[0] == weights[1]
