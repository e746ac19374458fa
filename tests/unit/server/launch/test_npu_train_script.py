"""The loop for one process a device that jobs on NPUs find below ~/.npu: right ranks, and an end when one fails."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from trainyard.server.launch.kinds import TaskGang, TaskPlace, apulis
from trainyard.spec.workload import WorkloadSpec


@pytest.fixture
def script(tmp_path: Path) -> Path:
    places = tuple(
        TaskPlace(
            name=f"worker-{number}", role="worker", number=number, rank=number, node="n", devices=(0, 1, 2)
        )
        for number in (0, 1)
    )
    gang = TaskGang(job_id="j", attempt_id="j.1", job_name="j", spec=WorkloadSpec(name="j"), places=places)
    path = tmp_path / "train 中文 $(x) 'q'.sh"
    path.write_text(apulis._train_script(gang, "/home/ada/.npu/j"))
    return path


def start(script: Path, tmp_path: Path, text: str) -> subprocess.Popen[str]:
    env = {"PATH": "/usr/bin:/bin", "DLWS_ROLE_IDX": "1"}
    words = ["bash", str(script), "sh", "-c", text]
    return subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)


def test_each_process_has_its_rank_and_folder_when_the_server_is_the_second(script, tmp_path):
    with start(script, tmp_path, 'echo "$RANK_ID of $RANK_SIZE on $DEVICE_ID in ${PWD##*/}"') as process:
        lines = sorted(process.communicate(timeout=60)[0].splitlines())
    assert lines == [f"{3 + index} of 6 on {index} in train_parallel{3 + index}" for index in range(3)]
    assert process.returncode == 0


def test_all_end_with_its_status_when_one_fails(script, tmp_path):
    with start(script, tmp_path, "[ $DEVICE_ID != 1 ] || exit 7; exec sleep 600") as process:
        process.communicate(timeout=60)
    assert process.returncode == 7


def test_all_end_when_they_are_asked_to(script, tmp_path):
    with start(script, tmp_path, "echo here; exec sleep 600") as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
