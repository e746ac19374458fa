"""The platform's jobs with real frameworks in them. Slow, all of it: each process loads hundreds of megabytes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from framework_lab import BIN, PROGRAMS, VISIBLE, needs

from netns import why_not

pytestmark = pytest.mark.slow

PATIENCE = 900.0


def finish(up, command, **given):
    """Submit a job, wait for its end, and give what it printed."""
    job = up.submit(command, **given)
    deadline = time.monotonic() + PATIENCE
    while (found := up.job(job))["state"] not in {"succeeded", "failed", "cancelled"}:
        assert time.monotonic() < deadline, "\n".join([found["message"], *up.lines(job)[-60:]])
        time.sleep(0.2)
    lines = up.lines(job)
    assert found["state"] == "succeeded", "\n".join([found["message"], *lines[-60:]])
    return lines


def said(lines, pattern):
    """Processes that share a pipe may print on one line: Python writes a line and its end separately."""
    return sorted(re.findall(pattern, "\n".join(lines)))


@needs("torch")
@pytest.mark.parametrize("launcher", ["torchrun", "own"])
def test_processes_on_two_nodes_learn_the_same_when_torch_trains_data_parallel(cluster, launcher):
    lines = finish(
        cluster,
        f"python {PROGRAMS}/ddp.py",
        kind="PyTorchJob",
        launcher=launcher,
        processes=2,
        roles=[{"name": "worker", "replicas": 2, "cpu": 1}],
    )
    assert said(lines, r"rank \d of [^\]]*\]") == [
        f"rank {rank} of 4, local {rank % 2}: learned [3.0, -2.0, 1.0]" for rank in range(4)
    ]


@needs("torch")
def test_the_users_own_torchrun_works_when_it_reads_what_dlc_gives(cluster):
    """As the manual of DLC writes it: WORLD_SIZE counts nodes there, and RANK is the node's."""
    words = "--nnodes=$WORLD_SIZE --node_rank=$RANK --nproc_per_node=2 --master_addr=$MASTER_ADDR"
    lines = finish(
        cluster,
        f"torchrun {words} --master_port=$MASTER_PORT {PROGRAMS}/ddp.py",
        kind="PyTorchJob",
        roles=[{"name": "worker", "replicas": 2, "cpu": 1}],
    )
    assert len(said(lines, r"rank \d of 4")) == 4


@needs("torch")
def test_the_weights_are_the_same_when_a_training_of_four_tasks_is_disturbed_and_resumes(cluster, tmp_path):
    """One of its processes is killed in the middle; the job is tried again, and begins at its last checkpoint."""
    folders = [tmp_path / "quiet", tmp_path / "disturbed"]
    for folder in folders:
        folder.mkdir()
    jobs = [
        cluster.submit(
            f"python {PROGRAMS}/ddp_resume.py {folder} 60",
            kind="PyTorchJob",
            launcher="own",
            restart="on_failure",
            max_retries=3,
            roles=[{"name": "worker", "replicas": 4, "cpu": 0.5}],
        )
        for folder in folders
    ]
    deadline = time.monotonic() + PATIENCE
    while not (folders[1] / "step").exists() or int((folders[1] / "step").read_text() or 0) < 10:
        assert time.monotonic() < deadline, cluster.lines(jobs[1])[-40:]
        time.sleep(0.02)
    os.kill(int((folders[1] / "pid.3").read_text()), signal.SIGKILL)
    ends = [cluster.until(job, "succeeded", "failed", seconds=PATIENCE) for job in jobs]
    assert [end["state"] for end in ends] == ["succeeded"] * 2, [cluster.lines(job)[-40:] for job in jobs]
    assert [end["attempt"] for end in ends] == [1, 2]
    lines = cluster.lines(jobs[1])
    assert not said(lines, r"rank 0 of 4 begins at step 0\b")  # those of the last attempt
    assert folders[0].joinpath("weights").read_text() == folders[1].joinpath("weights").read_text()


@needs("mindspore")
def test_sixteen_ranks_are_right_on_both_servers_when_the_manuals_job_runs_under_mindspore(cluster):
    """The two-server job of the manual, its devices made up: every process is real, and so is what they add up."""
    lines = finish(
        cluster,
        # Now and then one of MindSpore's threads aborts or fails when its interpreter goes, after all is done: 134, 139.
        f"sh {PROGRAMS}/own_crash.sh python {PROGRAMS}/mindspore_sum.py",
        kind="PSDistJob",
        launcher="own",
        env={"TRAINYARD_LAUNCH_OPTIONS": "--mindspore", "GLOG_v": "3"},
        roles=[{"name": "worker", "replicas": 2, "cpu": 1, "device": "Ascend910", "devices": 8}],
    )
    found = said(lines, r"rank \d+ of 16, .*")
    assert found == sorted(
        f"rank {rank} of 16, RANK_ID {rank}, device {rank % 8}, table True: 136" for rank in range(16)
    )


@needs("tensorflow")
def test_tensorflow_reads_the_cluster_when_the_job_gives_it(cluster):
    lines = finish(
        cluster,
        f"python {PROGRAMS}/tf_config.py",
        kind="TFJob",
        env={"TF_CPP_MIN_LOG_LEVEL": "3"},
        roles=[
            {"name": "chief", "replicas": 1, "cpu": 0.1},
            {"name": "ps", "replicas": 1, "cpu": 0.1},
            {"name": "worker", "replicas": 2, "cpu": 0.1},
        ],
    )
    assert [line.partition(" of ")[0] for line in said(lines, r"(?:chief|ps|worker) \d of .*")] == [
        *("chief 0", "ps 0", "worker 0", "worker 1")
    ]
    assert all("{'chief': 1, 'ps': 1, 'worker': 2}" in line for line in said(lines, r"worker \d of .*"))


@pytest.mark.netns
@needs("horovod")
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_the_manuals_command_trains_on_sixteen_devices_word_for_word_when_horovod_is_real(tmp_path):
    """In a network that has the interface which the manual names; the example is ours, the rest of the line is not."""
    examples = tmp_path / "examples"
    examples.mkdir()
    shutil.copy(PROGRAMS / "horovod_line.py", examples / "tensorflow2_keras_mnist.py")
    network = "ip link set lo up && ip link add ib0 type bridge && ip addr add 10.201.78.1/24 dev ib0 && ip link set ib0 up"
    words = [
        sys.executable,
        str(Path(__file__).with_name("drive_horovod.py")),
        str(tmp_path),
        str(examples),
        *VISIBLE,
    ]
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", f'{network} && exec "$@"', "sh", *words],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE + 150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    log = "\n".join([found["message"], *found["lines"][-80:]])
    assert found["saved"].startswith("[3.0, -2.0, 1.0] on "), log
    assert found["state"] == "running", log  # the line ends with `sleep infinity`
    assert said(found["said"], r"rank \d+ of [^\]]*\]") == sorted(
        f"rank {rank} of 16, local {rank % 8}: learned [3.0, -2.0, 1.0]" for rank in range(16)
    )
