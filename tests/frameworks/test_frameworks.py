"""The platform's jobs with real frameworks in them. Slow, all of it: each process loads hundreds of megabytes."""

from __future__ import annotations

import re
import time

import pytest

from conftest import PROGRAMS, needs

pytestmark = pytest.mark.slow

PATIENCE = 400.0


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


@needs("mindspore")
def test_sixteen_ranks_are_right_on_both_servers_when_the_manuals_job_runs_under_mindspore(cluster):
    """The two-server job of the manual, its devices made up: every process is real, and so is what they add up."""
    lines = finish(
        cluster,
        f"python {PROGRAMS}/mindspore_sum.py",
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
