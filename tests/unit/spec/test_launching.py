"""A task's command with a launcher around it, as real shells read it. The launchers themselves are stand-ins here."""

from __future__ import annotations

import os
import subprocess

import pytest

from trainyard.lib.errors import InvalidError
from trainyard.spec.launching import ONE_STARTS_ALL, launch_lines, wrap_command
from trainyard.spec.workload import Launcher

SHELLS = ["sh", "bash"]
HOSTILE = """cd "a b" && python 'it'"'"'s.py' "$RANK_ID" --名字 $(echo 1); echo `date` \\n"""


@pytest.fixture
def words(tmp_path):
    """Run a line where every launcher prints its words, one to a line."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("torchrun", "mpirun", "horovodrun", "python3"):
        path = folder / name
        path.write_text('#!/bin/sh\nfor word in "${0##*/}" "$@"; do printf "%s\\0" "$word"; done\n')
        path.chmod(0o755)

    def run(line, shell="sh", arguments=(), **env):
        given = {"PATH": f"{folder}:{os.environ['PATH']}", "TRAINYARD_HOSTFILE": "hosts", **env}
        done = subprocess.run(
            [shell, "-c", line, "launch", *arguments], env=given, capture_output=True, text=True, check=True
        )
        return done.stdout.split("\0")[:-1]

    return run


def test_a_command_stays_as_it_is_when_no_launcher_is_wanted():
    assert wrap_command(HOSTILE, "") == HOSTILE


@pytest.mark.parametrize("shell", SHELLS)
def test_our_own_launcher_gets_the_command_as_one_word_when_it_is_wanted(words, shell):
    got = words(wrap_command(HOSTILE, "own", 8), shell, TRAINYARD_AGENT="/a b/agent.pyz")
    assert got == ["python3", "-IS", "/a b/agent.pyz", "launch", "--processes", "8", "--", HOSTILE]
    got = words(wrap_command("x", "own"), shell, TRAINYARD_AGENT="agent.pyz")
    assert got == ["python3", "-IS", "agent.pyz", "launch", "--", "x"]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "horovodrun"])
def test_every_process_runs_the_whole_command_when_it_is_more_than_a_program(words, shell, launcher):
    got = words(wrap_command(HOSTILE, launcher, 4), shell, NNODES="2")
    assert got[0] == launcher
    assert got[-3].endswith("sh")
    assert got[-2:] == ["-c", HOSTILE]
    number = {"torchrun": "--nproc_per_node=4", "mpirun": "--npernode 4", "horovodrun": "-np 8"}
    assert number[launcher] in " ".join(got)


def test_torchrun_runs_python_itself_when_the_command_is_a_script_of_it(words):
    assert words(wrap_command("train.py --lr 1", "torchrun"))[-3:] == ["train.py", "--lr", "1"]
    got = words(wrap_command("-m package 'a b'", "torchrun"))
    assert got[-3:] == ["-m", "package", "a b"]
    assert "--no-python" not in got


@pytest.mark.parametrize("launcher", [each for each in Launcher if each])
def test_every_launcher_of_a_job_is_known_and_wants_a_command(launcher):
    assert wrap_command("true", launcher) != "true"
    with pytest.raises(InvalidError, match="no command"):
        wrap_command(" \n", launcher)


def test_an_unknown_launcher_is_refused_with_the_list():
    with pytest.raises(InvalidError) as caught:
        wrap_command("true", "srun")
    assert "horovodrun" in caught.value.hint


def test_launchers_that_reach_the_other_tasks_are_told_apart():
    assert {"mpirun", "horovodrun"} == ONE_STARTS_ALL


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", list(launch_lines()))
def test_a_line_starts_the_words_that_follow_it(words, shell, name):
    given = ["train.py", HOSTILE, "", "--lr"]
    env = {"TRAINYARD_PROCESSES": "2", "TRAINYARD_NUM_DEVICES": "2", "TRAINYARD_NUM_SLOTS": "4"}
    got = words(launch_lines()[name], shell, given, TRAINYARD_HOROVOD_HOSTS="a:2,b:2", **env)
    assert got[-4:] == given
    number = {"mpirun": "--npernode 2", "horovodrun": "-np 4"}.get(name, "--nproc_per_node=2")
    assert number in " ".join(got)
