"""Jobs over several nodes with addresses of their own and a real sshd each: MPI, the manual's jobs, nodes that go away."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gang_lab import SHARED, GangYard, gang_lab

import netns
from trainyard.lib.process_tree import first_thread_children

REASON = netns.why_not()
PYTHON = "/usr/bin/python3"
pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,  # hosts, a platform, and real launchers
    pytest.mark.skipif(bool(REASON), reason=REASON or "-"),
    pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"the hosts have no {PYTHON}"),
]
needs_mpi = pytest.mark.skipif(not shutil.which("mpirun"), reason="OpenMPI is not installed")
HERE = Path(__file__).parent
# As the manual of the original has it, letter for letter.
MANUAL = (
    "cd ~ && mkdir -p ~/checkpoints && horovodrun -np 16 -hostfile /home/${DLWS_USER_NAME}/ib_config "
    "-p $DLWS_SD_worker0_SSH_PORT --network-interface ib0 python /examples/tensorflow2_keras_mnist.py "
    "~/checkpoints/ ~/tensorboard/${DLWS_JOB_ID}/logs/ && sleep infinity"
)
HOME = "/home/admin"  # of who submits
EXAMPLE = """
import os, sys
print("horovod", os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"], os.environ["DLWS_ROLE_NAME"],
      os.environ["DLWS_ROLE_IDX"], *sys.argv[1:], flush=True)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GangYard]:
    with gang_lab(tmp_path_factory.mktemp("across"), 3, devices={"V100": 8}) as found:
        shutil.copy(HERE.parents[1] / "runtime" / "mpi" / "allreduce.py", found.shared)
        yield found


def worker(**more: Any) -> dict[str, Any]:
    return {"name": "worker", "cpu": 0.5, **more}


def spread(count: int, **more: Any) -> list[dict[str, Any]]:
    """So many workers, no two on one node: each takes all devices."""
    return [worker(replicas=count, devices=8, **{"device": "V100", **more})]


def test_the_master_is_found_by_its_address_when_workers_are_elsewhere(lab):
    command = 'echo "$RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT $NPROC_PER_NODE $(hostname)"'
    job, lines = lab.run(command, kind="PyTorchJob", roles=spread(3))
    assert job["state"] == "succeeded", lines
    told = sorted(line.split() for line in lines if line[:1].isdigit())
    assert [words[:2] for words in told] == [["0", "3"], ["1", "3"], ["2", "3"]]
    assert {words[3] for words in told} == {"23456"}
    assert {words[4] for words in told} == {"8"}
    assert len({words[5] for words in told}) == 3
    assert len({words[2] for words in told}) == 1


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_run_on_every_node_when_an_mpi_job_calls_mpirun(lab, count):
    command = f"mpirun -np {2 * count} --map-by ppr:2:node {PYTHON} -S {SHARED}/allreduce.py"
    job, lines = lab.run(command, kind="MPIJob", roles=spread(count))
    assert job["state"] == "succeeded", lines
    ranks = [line for line in lines if line.startswith("rank=")]
    total = sum(range(1, 2 * count + 1))
    assert len(ranks) == 2 * count, lines
    assert all(f"sum={total} " in line for line in ranks), ranks
    assert len({line.split("on=")[1].split()[0] for line in ranks}) == count


@needs_mpi
@pytest.mark.mpi
def test_processes_run_in_the_workers_when_the_parameter_server_calls_mpirun(lab):
    show = 'sh -c "echo rank=\\$OMPI_COMM_WORLD_RANK on=\\$DLWS_ROLE_NAME\\$DLWS_ROLE_IDX gpus=\\$CUDA_VISIBLE_DEVICES"'
    command = (
        f'mpirun -np 16 --hostfile "$TRAINYARD_HOSTFILE" --oversubscribe {show} && cat "$TRAINYARD_HOSTFILE"'
    )
    job, lines = lab.run(command, kind="Distributed Job", roles=spread(2))
    assert job["state"] == "succeeded", lines
    ranks = [line for line in lines if line.startswith("rank=")]
    assert len(ranks) == 16
    assert {line.split(" ", 1)[1] for line in ranks} == {
        "on=worker0 gpus=0,1,2,3,4,5,6,7",
        "on=worker1 gpus=0,1,2,3,4,5,6,7",
    }
    assert [line.split()[1] for line in lines[-2:]] == ["slots=8", "slots=8"]


def test_the_command_runs_in_every_worker_and_not_in_ps0_when_the_devices_are_npus(lab):
    lab.up.call("PATCH", "/api/v1/nodes/n0", {"devices": {"V100": 8, "huawei_npu_arm64": 8}})
    lab.up.call("PATCH", "/api/v1/nodes/n1", {"devices": {"V100": 8, "huawei_npu_arm64": 8}})
    command = (
        'echo "role=$DLWS_ROLE_NAME index=$DLWS_ROLE_IDX npu=$DLWS_IS_NPU_JOB of=$DLWS_NUM_WORKER"; '
        f'{PYTHON} -c \'import json,os; print("ranks", json.load(open(os.environ["MINDSPORE_HCCL_CONFIG_PATH"]))'
        '["group_list"][0]["device_num"])\''
    )
    roles = [worker(replicas=2, devices=8, device="huawei_npu_arm64")]
    job, lines = lab.run(command, kind="PSDistJob", roles=roles)
    assert job["state"] == "succeeded", lines
    assert sorted(line for line in lines if line.startswith("role=")) == [
        "role=worker index=0 npu=true of=2",
        "role=worker index=1 npu=true of=2",
    ]
    assert lines.count("ranks 16") == 2


@pytest.mark.skipif(
    not shutil.which("bwrap"), reason="bubblewrap is not installed: tasks have no /home of their own"
)
def test_horovodrun_reaches_all_workers_when_the_job_is_the_manuals(lab):
    (lab.shared / "bin").mkdir()
    shutil.copy(HERE / "horovodrun", lab.shared / "bin")
    (lab.shared / "bin/python").symlink_to(PYTHON)
    examples = lab.up.folder / "examples"
    examples.mkdir()
    (examples / "tensorflow2_keras_mnist.py").write_text(EXAMPLE)
    lab.add_storage("examples", examples, "/examples")
    job = lab.up.submit(
        MANUAL, kind="Distributed Job", roles=spread(2), env={"PATH": f"{SHARED}/bin:/usr/sbin:/usr/bin:/bin"}
    )
    _await(
        lambda: len(_told(lab, job)) == 16 or lab.up.job(job)["state"] == "failed",
        why=lambda: lab.up.lines(job),
    )
    told = _told(lab, job)
    assert sorted(int(words[1]) for words in told) == list(range(16))
    assert {tuple(words[2:5]) for words in told} == {("16", "worker", "0"), ("16", "worker", "1")}
    assert {tuple(words[5:]) for words in told} == {
        (f"{HOME}/checkpoints/", f"{HOME}/tensorboard/{job}/logs/")
    }
    assert lab.up.job(job)["state"] == "running", "it sleeps, as it was told"
    lab.up.call("PUT", f"/api/v1/jobs/{job}/desired", {"desired": "cancel"})
    lab.up.until(job, "cancelled")


@contextlib.contextmanager
def isolated(lab: GangYard, isolation: str) -> Iterator[None]:
    """All nodes keep their tasks apart so."""
    try:
        for name in ("n0", "n1", "n2"):
            lab.up.call("PATCH", f"/api/v1/nodes/{name}", {"options": {"isolation": isolation}})
        yield
    finally:
        for name in ("n0", "n1", "n2"):
            lab.up.call("PATCH", f"/api/v1/nodes/{name}", {"options": {"isolation": "auto"}})


def run_shared(lab: GangYard, command: str) -> list[str]:
    """Run a job of three workers, two of which share a node, while the command runs on another one."""
    roles = [worker(name="ps", devices=4, device="V100"), worker(replicas=3, devices=4, device="V100")]
    job, lines = lab.run(command, kind="PSDistJob", processes=1, roles=roles)
    assert job["state"] == "succeeded", "\n".join(lines)
    tasks = lab.up.call("GET", f"/api/v1/jobs/{job['id']}/tasks")["items"]
    nodes = {task["name"]: task["node"] for task in tasks}
    assert nodes["ps-0"] == nodes["worker-2"] != nodes["worker-1"] == nodes["worker-0"], nodes
    return lines


@pytest.mark.parametrize("isolation", ["auto", "off"])
def test_horovodrun_with_one_port_reaches_the_right_tasks_when_two_share_a_node_among_others(lab, isolation):
    """Whichever port it names, ssh goes by the name; without a view of its own a task knows the names by its ssh alone."""
    shutil.copy(HERE / "horovodrun", lab.shared / "horovodrun")
    path = lab.shared if isolation == "off" else Path(SHARED)
    command = (
        f"cd /tmp && {path}/horovodrun -np 3 -hostfile $TRAINYARD_HOSTFILE -p $DLWS_SD_worker0_SSH_PORT --network-interface eth0 "
        "sh -c 'echo rank=$HOROVOD_RANK in=$TRAINYARD_TASK' && "
        "ssh worker-2 'ssh -p $DLWS_SD_worker0_SSH_PORT worker-1 echo from=$TRAINYARD_TASK in=\\$TRAINYARD_TASK'"
    )
    with isolated(lab, isolation):
        lines = run_shared(lab, command)
    said = sorted(line for line in lines if line.startswith("rank="))
    assert said == [f"rank={number} in=worker-{number}" for number in range(3)], lines
    assert "from=worker-2 in=worker-1" in lines, lines


@needs_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("isolation", ["auto", "off"])
def test_mpirun_starts_one_process_in_each_task_when_two_share_a_node_among_others(lab, isolation):
    show = 'sh -c "echo rank=\\$OMPI_COMM_WORLD_RANK in=\\$TRAINYARD_TASK"'
    with isolated(lab, isolation):
        lines = run_shared(lab, f"mpirun -np 3 --map-by ppr:1:node {show}")
    said = sorted(line for line in lines if line.startswith("rank="))
    assert said == [f"rank={number} in=worker-{number}" for number in range(3)], lines


def _told(lab: GangYard, job: str) -> list[list[str]]:
    return [line.split() for line in lab.up.lines(job) if line.startswith("horovod ")]


def test_the_missing_tasks_are_named_in_time_when_nodes_do_not_reach_each_other(lab):
    with cut_off(lab, "n0"):
        job, lines = lab.run("echo began", kind="PyTorchJob", roles=spread(3), ready_seconds=2)
    assert (job["state"], job["exit_code"]) == ("failed", 204), job
    assert "not reached within 2 s: " in job["message"]
    assert "began" not in lines
    said = [line for line in lines if "not reached within 2 s" in line]
    assert said, lines
    assert all("worker-" in line or "master-0" in line for line in said), said


def test_the_job_fails_in_time_when_the_ssh_of_a_worker_is_not_reached(lab):
    with cut_off(lab, "n0"):
        job, lines = lab.run("echo began", kind="MPIJob", roles=spread(3), ready_seconds=2)
    assert (job["state"], job["exit_code"]) == ("failed", 204), (job, lines)
    assert any("not reached within 2 s" in line for line in lines), lines


def test_a_job_that_waits_for_its_tasks_starts_elsewhere_when_a_node_is_lost_meanwhile(lab):
    host = lab.network.add_host("n3")
    lab.add_nodes(host, devices={"V100": 8})
    for name in ("n1", "n2"):
        lab.up.call("PUT", f"/api/v1/nodes/{name}/desired", {"desired": "cordoned"})
    with cut_off(lab, "n3"):
        job = lab.up.submit("echo began", kind="PyTorchJob", roles=spread(2))
        _await(lambda: any("under initialization" in line for line in lab.up.lines(job)))
        lab.lose(host)
    for name in ("n1", "n2"):
        lab.up.call("PUT", f"/api/v1/nodes/{name}/desired", {"desired": "ready"})
    found = lab.up.until(job, "succeeded", "failed", seconds=120)
    assert (found["state"], found["attempt"]) == ("succeeded", 2), found


@contextlib.contextmanager
def cut_off(lab: GangYard, name: str) -> Iterator[None]:
    """The node reaches no other node, while the server reaches it."""
    host = next(host for host in lab.network.hosts if host.name == name)
    inner = first_thread_children(host.process.pid)[0]
    words = ["nsenter", f"--net=/proc/{inner}/ns/net", "ip", "route"]
    others = [other.address for other in lab.network.hosts if other is not host]
    for address in others:
        subprocess.run([*words, "add", "blackhole", address], check=True)
    try:
        yield
    finally:
        if host.process.poll() is None:
            for address in others:
                subprocess.run([*words, "del", "blackhole", address], check=True)


def test_the_result_is_the_same_when_a_node_is_lost_in_the_middle(lab):
    def train(name: str, pause: float) -> tuple[str, Path]:
        folder = lab.shared / name
        folder.mkdir()
        folder.chmod(0o777)  # tasks of nodes of root are users of their own
        command = f"{PYTHON} -S {SHARED}/allreduce_sockets.py {SHARED}/{name} 150 {pause}"
        roles = [worker(replicas=4)]
        return lab.up.submit(command, kind="PyTorchJob", roles=roles, max_retries=3), folder

    plain, _ = train("undisturbed", 0.0)
    assert lab.up.until(plain, "succeeded", "failed")["state"] == "succeeded"
    job, folder = train("disturbed", 0.03)
    _await(lambda: (folder / "checkpoint.json").exists())
    tasks = lab.up.call("GET", f"/api/v1/jobs/{job}/tasks")["items"]
    lost = next(task["node"] for task in tasks if task["name"] == "worker-1")
    host = next(host for host in lab.network.hosts if host.name == lost)
    lab.lose(host)
    assert lab.up.until(job, "succeeded", "failed", seconds=120)["state"] == "succeeded"
    weights = [{line for line in lab.up.lines(one) if line.startswith("weight")} for one in (plain, job)]
    assert weights[0] == weights[1]
    assert lab.up.job(job)["attempt"] > 1
    resumed = [line for line in lab.up.lines(job) if "begins at step" in line]
    assert any(not line.endswith("step 0") for line in resumed), resumed


def _await(condition: Any, seconds: float = 60.0, why: Any = str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)
