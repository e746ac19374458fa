"""The launcher of one process for each device, as the one file that nodes carry: what it starts, shows and ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainyard.engines.nodes.agent_bundle import bundle

PATIENCE = 20.0


@pytest.fixture
def program(tmp_path):
    path = tmp_path / bundle().file_name
    path.write_bytes(bundle().content)
    return str(path)


@pytest.fixture
def launch(program, tmp_path):
    """Start the launcher; it is waited for, or ended with the test."""
    folder = tmp_path / "here"
    folder.mkdir()
    started: list[subprocess.Popen[str]] = []

    def start(*words, python=sys.executable, cwd=folder, env=None, stdout=subprocess.PIPE):
        process = subprocess.Popen(
            [python, "-IS", program, "launch", *words],
            cwd=cwd,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **(env or {})},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    start.folder = folder
    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finish(process):
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def wait_for(condition):
    until = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < until, "it did not come to be"
        time.sleep(0.01)
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def pids_in(folder, count):
    """The process ids that programs have written to files of their own."""

    def found():
        texts = [path.read_text() for path in folder.glob("pid.*")]
        return [int(text) for text in texts] if len(texts) == count and all(texts) else None

    return wait_for(found)


def noted(name="$RANK"):
    """Shell that leaves its process id in a file, all at once."""
    return f"echo $$ > note.{name}; mv note.{name} pid.{name}; "


def find_python(version):
    """In PATH, or beside the one that we run on, as version managers lay them out."""
    beside = Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python3")
    for path in filter(None, (shutil.which(f"python{version}"), *map(str, beside))):
        if not subprocess.run([path, "-c", "1"], capture_output=True).returncode:
            return path
    return None


@pytest.mark.slow  # starts the interpreter for every version there is
@pytest.mark.parametrize("version", ["3.8", "3.9", "3.13"])
def test_ranks_and_devices_are_right_on_every_node_whatever_python_it_has(launch, version):
    found = find_python(version)
    if found is None:
        pytest.skip(f"there is no Python {version} here")
    text = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $RANK_ID $RANK_SIZE $DEVICE_ID"'
    code, out, err = finish(
        launch("--processes", "2", "--nodes", "2", "--node-rank", "1", "--", text, python=found)
    )
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["[2] 2 0 4 2 4 0", "[3] 3 1 4 3 4 1"]


@pytest.mark.parametrize("version", ["3.6", "3.7"])
def test_a_sentence_is_said_when_the_python_of_a_task_is_too_old(launch, version):
    found = find_python(version)
    if found is None:
        pytest.skip(f"there is no Python {version} here")
    code, _, err = finish(launch("--", "true", python=found))
    assert (code, err) == (1, "trainyard: this python3 is older than 3.8; put a newer one into PATH\n")


def test_lines_are_whole_and_kept_in_files_when_processes_print_at_once(launch):
    text = 'for i in $(seq 300); do echo "$RANK says $i"; echo "$RANK also $i" >&2; done; printf "no end"'
    code, out, _ = finish(launch("--processes", "3", "--", text))
    lines = out.splitlines()
    assert code == 0
    for rank in range(3):
        mine = [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}] ")]
        assert len(mine) == 601
        assert all(line.startswith(f"{rank} ") for line in mine[:-1])
        assert mine[-1] == "no end"
        kept = (launch.folder / "launch-logs" / f"rank-{rank}.log").read_text()
        assert kept.splitlines() == mine
    assert len(lines) == 3 * 601


def test_words_reach_the_program_as_they_are(launch, hostile_path):
    script = hostile_path / "a program"
    script.write_text('#!/bin/sh\nprintf "%s|" "$@" > "$PWD/words"\n')
    script.chmod(0o755)
    words = ["", "$(x)", "a b", "--processes", "中文", "q\"'"]
    pattern = f"{hostile_path}/run {{rank}}"
    code, _, err = finish(launch("--log-dir", "", "--work-dir", pattern, "--", str(script), *words))
    assert (code, err) == (0, "")
    assert (hostile_path / "run 0" / "words").read_text() == "|".join(words) + "|"
    assert not (launch.folder / "launch-logs").exists()


def test_all_are_ended_and_the_code_is_the_first_failures_when_one_fails(launch):
    text = (
        noted()
        + "[ $RANK = 1 ] && { until [ -s pid.0 ] && [ -s pid.2 ]; do sleep 0.01; done; exit 7; }; sleep 600 & sleep 600"
    )
    code, _, err = finish(launch("--processes", "3", "--", text))
    assert code == 7
    assert err == "launch: process 1 ended with status 7; the others are ended\n"
    assert not any(map(is_alive, pids_in(launch.folder, 3)))


def test_the_others_are_killed_when_they_do_not_listen(launch):
    text = (
        noted() + "trap '' TERM; [ $RANK = 0 ] && { until [ -s pid.1 ]; do sleep 0.01; done; kill -9 $$; }; "
    )
    code, _, err = finish(
        launch("--processes", "2", "--grace", "0.3", "--", text + "while :; do sleep 1; done")
    )
    assert code == 128 + signal.SIGKILL
    assert "process 0 was ended by SIGKILL" in err


def test_a_program_that_does_not_exist_is_said_with_its_code(launch):
    code, out, _ = finish(launch("--processes", "2", "--", "no such program", "x"))
    assert code == 127
    assert "no such program: No such file or directory" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_processes_may_save_their_work_when_the_launcher_is_asked_to_go(launch, number):
    name = number.name.removeprefix("SIG")
    # `wait` hears a signal at once, where a shell that waits for a program in front would think about it first.
    text = f"trap 'echo saved; exit 0' {name}; " + noted() + "sleep 600 & wait"
    process = launch("--processes", "2", "--", text)
    pids = pids_in(launch.folder, 2)
    process.send_signal(number)
    code, out, _ = finish(process)
    assert (code, out.count("[0] saved"), out.count("[1] saved")) == (0, 1, 1)
    assert not any(map(is_alive, pids))


def test_the_signals_code_is_returned_when_processes_die_of_it(launch):
    process = launch("--processes", "2", "--", noted() + "exec sleep 600")
    pids_in(launch.folder, 2)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 128 + signal.SIGTERM


def test_interrupting_again_kills_at_once_when_processes_take_their_time(launch):
    text = "trap ': > heard.$RANK' INT; " + noted() + "while :; do sleep 0.05; done"
    process = launch("--processes", "2", "--", text)
    pids = pids_in(launch.folder, 2)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: len(list(launch.folder.glob("heard.*"))) == 2)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 128 + signal.SIGINT
    assert not any(map(is_alive, pids))


def test_other_signals_are_passed_on_when_programs_use_them(launch):
    text = "trap 'echo checkpoint; exit 0' USR1; " + noted() + "while :; do sleep 0.05; done"
    process = launch("--processes", "2", "--", text)
    pids_in(launch.folder, 2)
    process.send_signal(signal.SIGUSR1)
    code, out, _ = finish(process)
    assert (code, out.count("checkpoint")) == (0, 2)


def test_nobody_is_left_when_the_launcher_is_killed(launch):
    """Neither the processes, nor what they have started in sessions of their own and deaf to everything else."""
    inner = "trap '' TERM HUP INT; echo $$ > note.in.$RANK; mv note.in.$RANK pid.in.$RANK; while :; do sleep 1; done"
    text = noted() + f'setsid sh -c "{inner.replace("$", chr(92) + "$")}" & while :; do sleep 1; done'
    process = launch("--processes", "2", "--", text)
    pids = pids_in(launch.folder, 4)
    process.kill()
    wait_for(lambda: not any(map(is_alive, pids)))


def test_nobody_is_left_when_a_group_is_killed_with_the_launcher(launch):
    process = launch("--processes", "2", "--", noted() + "sleep 600 & sleep 600")
    pids = pids_in(launch.folder, 2)
    os.killpg(process.pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, pids)))


def test_what_runs_on_in_the_background_is_ended_when_all_processes_have(launch):
    text = noted("outer.$RANK") + "setsid sleep 600 & echo $! > note.$RANK; mv note.$RANK pid.$RANK; exit 0"
    assert finish(launch("--processes", "2", "--", text))[0] == 0
    assert not any(map(is_alive, pids_in(launch.folder, 4)))


def test_training_goes_on_when_nobody_reads_what_it_prints(launch):
    reader, writer = os.pipe()
    process = launch("--", "seq 200000; echo done > finished", stdout=writer)
    os.close(writer)
    os.close(reader)
    assert finish(process)[0] == 0
    assert (launch.folder / "finished").exists()
    assert len((launch.folder / "launch-logs" / "rank-0.log").read_text().splitlines()) == 200000


@pytest.mark.slow  # waits a second for a reader that does not read
def test_a_launcher_can_be_ended_when_its_reader_does_not_read(launch):
    reader, writer = os.pipe()
    process = launch(
        "--processes", "2", "--grace", "0.5", "--", noted() + "trap '' TERM; exec yes", stdout=writer
    )
    os.close(writer)
    pids = pids_in(launch.folder, 2)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: not any(map(is_alive, pids)))
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    os.close(reader)


@pytest.mark.slow  # the program takes its time
def test_its_time_is_kept_by_others_when_it_runs_in_a_task(launch):
    """A task's supervisor ends it when its grace is over, which may be much longer than ours."""
    text = "trap 'sleep 0.5; echo saved; exit 0' TERM; " + noted() + "while :; do sleep 0.05; done"
    process = launch("--grace", "0", "--", text, env={"TRAINYARD_MARK": "m"})
    pids_in(launch.folder, 1)
    process.send_signal(signal.SIGTERM)
    code, out, _ = finish(process)
    assert (code, out.count("[0] saved")) == (0, 1)


def test_the_scheduler_ends_with_the_workers_when_mindspore_is_wanted(launch):
    text = 'echo "$MS_ROLE $MS_NODE_ID"; [ $MS_ROLE = MS_WORKER ] || sleep 0.1'
    code, out, _ = finish(launch("--processes", "2", "--mindspore", "--", text))
    assert code == 0
    shown = [line.split() for line in sorted(out.splitlines())]
    assert [words[-1] for words in shown if "MS_WORKER" in words] == ["0", "1"]
    assert ["[scheduler]", "MS_SCHED"] in shown


def test_programs_run_when_their_output_cannot_be_kept_in_files(launch):
    (launch.folder / "launch-logs").write_text("a file")
    assert finish(launch("--", "echo here"))[:2] == (0, "[0] here\n")
    code, _, err = finish(launch("--log-dir", "launch-logs/x", "--", "echo here"))
    assert (code, "cannot be made" in err) == (2, True)
    (launch.folder / "logs" / "rank-0.log").mkdir(parents=True)
    code, out, err = finish(launch("--log-dir", "logs", "--", "echo here"))
    assert (code, out) == (0, "[0] here\n")
    assert "rank-0.log is not written: Is a directory" in err


def test_those_that_were_started_are_ended_when_not_all_can_be(launch, program):
    """Each process costs the launcher two files while it starts: 24 are enough for some of forty."""
    text = 'ulimit -n 24; exec "$0" -IS "$@"'
    words = [program, "launch", "--processes", "40", "--log-dir", "", "--", noted() + "sleep 600"]
    done = subprocess.run(
        ["sh", "-c", text, sys.executable, *words],
        cwd=launch.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 126
    assert "not all processes can be started: Too many open files" in done.stderr
    pids = [int(path.read_text()) for path in launch.folder.glob("pid.*")]
    assert not any(map(is_alive, pids))


def test_a_job_can_say_more_when_its_command_was_wrapped_for_it(launch):
    env = {"TRAINYARD_LAUNCH_OPTIONS": "--processes 3 --log-dir '' --nodes 2"}
    code, out, _ = finish(launch("--processes", "2", "--", "echo $WORLD_SIZE", env=env))
    assert (code, sorted(out.splitlines())) == (0, ["[0] 4", "[1] 4"])
    assert not list(launch.folder.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is no program to start"),
        (("--nodes", "2", "--node-rank", "2", "--", "true"), "machine 2 cannot be one of 2"),
        (("--with", "srun", "--", "true"), "there is no launcher 'srun'"),
        (("--work-dir", "/dev/null/x", "--", "true"), "cannot be made"),
    ],
    ids=str,
)
def test_mistakes_are_said_with_a_hint_before_anything_is_started(launch, words, said):
    code, out, err = finish(launch(*words))
    assert (code, out) == (2, "")
    assert said in err
    assert "hint: " in err


@pytest.mark.parametrize("name", ["torchrun", "mpirun", "horovodrun"])
def test_another_launcher_gets_what_the_task_knows_when_it_is_wanted(launch, tmp_path, name):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / name).write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
    (folder / name).chmod(0o755)
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "NNODES": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "23456",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TRAINYARD_HOSTFILE": "/job/hostfile",
        "TRAINYARD_HOROVOD_HOSTS": "worker-0:2,worker-1:2",
    }
    code, out, err = finish(launch("--with", name, "--", "python", "train.py", "a b", env=env))
    words = out.splitlines()
    assert (code, err, words[0], words[-3:]) == (0, "", name, ["python", "train.py", "a b"])
    wanted = {
        "torchrun": [
            "--nnodes=2",
            "--node_rank=1",
            "--master_addr=10.0.0.1",
            "--nproc_per_node=2",
            "--no-python",
        ],
        "mpirun": ["--hostfile", "/job/hostfile", "--npernode", "2"],
        "horovodrun": ["-np", "4", "-H", "worker-0:2,worker-1:2"],
    }
    assert [word for word in words if word in wanted[name]] == wanted[name]
    if name == "torchrun":
        code, out, _ = finish(launch("--with", name, "--", "train.py", "--lr", "1", env=env))
        assert "--no-python" not in out


def test_the_same_launcher_answers_when_it_is_called_by_the_command_line(launch, tmp_path):
    # The second one waits: its end takes the first one along, which might have said nothing yet.
    command = 'echo "$RANK"; mkdir "$RANK"; until [ -e 0 ]; do sleep 0.02; done; exit $((RANK * 3))'
    words = ["launch", "--processes", "2", "--log-dir", "", "--", command]
    program = str(Path(sys.executable).with_name("trainyard"))
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 3
    assert sorted(done.stdout.splitlines())[0] == "[0] 0"
    assert "process 1 ended with status 3" in done.stderr
    done = subprocess.run(
        [program, "launch", "--nodes", "2", "--node-rank", "5", "true"], capture_output=True, text=True
    )
    assert (done.returncode, "hint: " in done.stderr) == (2, True)


def test_lines_are_objects_when_json_is_asked_for(launch):
    words = [str(Path(sys.executable).with_name("trainyard")), "launch", "--processes", "2", "--json", "--"]
    done = subprocess.run(
        [*words, 'echo "a \\"b\\" 中"; printf no-end'],
        cwd=launch.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((one["process"], one["line"]) for one in told) == [
        *(("0", 'a "b" 中'), ("0", "no-end"), ("1", 'a "b" 中'), ("1", "no-end"))
    ]


def test_a_table_that_is_waited_for_is_named(launch):
    process = launch("--rank-table", "not there.json", "--wait", "2", "--", "true")
    status, _, err = finish(process)
    assert status == 2
    assert "launch: the rank table not there.json is not there; waiting for up to 2 s" in err
    assert "error: the rank table not there.json is not there" in err
