"""Commands from the command line: run, logs, wait, ssh, tmux; who hears Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from terminal import BIN, Terminal

pytestmark = pytest.mark.slow  # every step is a start of the program, a fifth of a second each

STUBBORN = "sh -c \"trap '' INT; echo begun; while [ ! -e go ]; do sleep 0.05; done; echo over\""


@pytest.fixture
def bert(lab):
    lab.create("bert", 1)
    return lab


@pytest.fixture
def pair(lab):
    lab.create("bert", 2)
    return lab


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def states(lab, name="task0.bert"):
    return [record["state"] for record in lab.json("logs", "--list", name)]


def test_the_status_and_bytes_are_the_commands_own_when_it_runs(bert):
    done = bert("run", "task0.bert", "printf 'a\\0b'; exit 42")
    assert done.returncode == 42
    assert done.stdout == "a\0b"
    assert done.stderr == "task0.bert: the command ended with status 42\n"


def test_the_shell_remembers_folder_and_variables_when_commands_follow(bert):
    bert("run", "task0.bert", "mkdir -p code && cd code && export X=5")
    assert bert("run", "task0.bert", "basename $PWD; echo $X").stdout == "code\n5\n"
    assert bert("run", "task0.bert", "--aside", "basename $PWD; echo [$X]").stdout == "home\n[]\n"


def test_words_stay_words_when_a_command_has_several(bert):
    done = bert("run", "task0.bert", "printf", "<%s>", "a b", "$HOME", "*", "--json", "-d")
    assert done.stdout == "<a b><$HOME><*><--json><-d>"


def test_every_task_is_named_and_the_first_failure_counts_when_a_job_runs(pair):
    done = pair("run", "{bert}", "echo $TRAINYARD_NODE_RANK $NODE_RANK | cut -c1; [ $(hostname) ] && exit 3")
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert sorted(line.split(" | ")[0] for line in lines) == ["task0.bert", "task1.bert"]
    assert "task0.bert: the command ended with status 3" in done.stderr
    assert "task1.bert: the command ended with status 3" in done.stderr
    records = pair.json("logs", "--list", "{bert}")
    assert [(record["name"], record["state"]) for record in records] == [
        ("task0.bert", "3"),
        ("task1.bert", "3"),
    ]


def test_output_and_status_are_fields_when_a_program_asks(pair):
    done = pair("run", "--json", "{bert}", "echo hi; exit 1")
    assert done.returncode == 1
    assert [(record["name"], record["status"], record["output"]) for record in json.loads(done.stdout)] == [
        ("task0.bert", 1, "hi\n"),
        ("task1.bert", 1, "hi\n"),
    ]


def test_ctrl_c_interrupts_the_command_as_its_terminal_would_when_pressed_once(bert):
    with Terminal(
        "run", "task0.bert", "sh -c \"trap 'echo saving; exit 5' INT; echo begun; sleep 300 & wait\""
    ) as terminal:
        terminal.wait_for("begun")
        terminal.interrupt()
        assert terminal.finish() == 5
    assert "saving" in terminal.text
    assert states(bert) == ["5"]


def test_ctrl_c_leaves_the_command_running_when_pressed_again(bert):
    with Terminal("run", "task0.bert", STUBBORN) as terminal:
        terminal.wait_for("begun")
        terminal.interrupt()
        terminal.wait_for("Ctrl-C again")
        terminal.interrupt()
        assert terminal.finish() == 130
    assert "was left" in terminal.text
    assert states(bert) == ["running"]
    bert("ssh", "task0.bert", "touch go")
    assert bert("wait", "task0.bert").stdout == "task0.bert: command 1 ended with status 0\n"


def test_ctrl_c_is_not_heard_when_a_script_runs_the_command_in_the_background(bert):
    """Shells without job control make what they start in the background ignore it: it ends the script alone."""
    command = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo over"
    script = subprocess.Popen(
        [
            "sh",
            "-c",
            '( "$@"; echo "status $?" ) & wait',
            "-",
            f"{BIN}/trainyard",
            "run",
            "task0.bert",
            command,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert script.stdout is not None
    with script.stdout as said:
        assert said.readline() == "begun\n"
        os.killpg(script.pid, signal.SIGINT)
        assert script.wait(timeout=20) == -signal.SIGINT
        assert states(bert) == ["running"]
        bert("ssh", "task0.bert", "touch go")
        assert said.read() == "over\nstatus 0\n"


def test_a_killed_client_loses_nothing_when_the_command_goes_on(bert):
    client = subprocess.Popen([str(BIN / "trainyard"), "run", "task0.bert", STUBBORN], stdout=subprocess.PIPE)
    assert client.stdout.readline() == b"begun\n"
    client.send_signal(signal.SIGKILL)
    client.wait()
    client.stdout.close()
    assert states(bert) == ["running"]
    bert("ssh", "task0.bert", "touch go")
    assert bert("logs", "-f", "task0.bert").stdout == "begun\nover\n"


def test_a_second_command_says_what_it_waits_for_when_the_shell_is_busy(bert):
    bert("run", "-d", "task0.bert", STUBBORN)
    with Terminal("run", "task0.bert", "echo mine") as terminal:
        terminal.wait_for("task0.bert is busy with command 1: sh -c")
        assert bert("run", "--aside", "task0.bert", "echo beside").stdout == "beside\n"
        bert("ssh", "task0.bert", "touch go")
        assert terminal.finish() == 0
    assert "mine" in terminal.text


def test_the_same_text_runs_twice_when_it_is_typed_twice(bert):
    line = "until [ -e go ]; do sleep 0.05; done; echo ran >> count"
    bert("run", "-d", "task0.bert", line)
    bert("run", "-d", "task0.bert", line)
    bert("ssh", "task0.bert", "touch go")
    bert("wait", "task0.bert")
    assert bert("ssh", "task0.bert", "cat count").stdout == "ran\nran\n"


def test_waiting_ends_and_the_command_does_not_when_time_is_up(bert):
    bert("run", "-d", "task0.bert", STUBBORN)
    done = bert("wait", "--timeout", "0.2s", "task0.bert")
    assert done.returncode == 9
    assert "still runs" in done.stderr
    done = bert("run", "--timeout", "0.2s", "task0.bert", "echo later")
    assert done.returncode == 9
    bert("ssh", "task0.bert", "touch go")
    assert bert("wait", "task0.bert").returncode == 0
    assert bert("logs", "task0.bert").stdout == "later\n"


def test_ctrl_c_stops_the_stream_and_not_the_command_when_following(bert):
    bert("run", "-d", "task0.bert", STUBBORN)
    for verb in (["logs", "-f"], ["wait"]):
        with Terminal(*verb, "task0.bert") as terminal:
            if verb[0] == "logs":
                terminal.wait_for("begun")
            else:
                assert terminal.read(1.0)
            terminal.interrupt()
            assert terminal.finish() == 130
        assert "runs on" in terminal.text
        assert states(bert) == ["running"]
    bert("ssh", "task0.bert", "touch go")
    assert bert("wait", "task0.bert").returncode == 0


def test_following_goes_on_with_what_waits_when_a_command_ends(bert):
    bert("run", "-d", "task0.bert", STUBBORN)
    bert("run", "-d", "task0.bert", "echo second; exit 4")
    with Terminal("logs", "-f", "task0.bert") as terminal:
        terminal.wait_for("begun")
        bert("ssh", "task0.bert", "touch go")
        assert terminal.finish() == 0
    assert terminal.text.split("\n")[:3] == ["begun", "over", "second"]
    assert "command 2 ended with status 4" in terminal.text


def test_the_last_lines_are_shown_when_there_are_many(bert):
    bert("run", "-d", "task0.bert", "seq 5000")
    bert("wait", "task0.bert")
    assert bert("logs", "task0.bert").stdout == "".join(f"{n}\n" for n in range(4001, 5001))
    assert bert("logs", "-n", "2", "task0.bert").stdout == "4999\n5000\n"
    assert bert("logs", "-n", "2", "-f", "task0.bert").stdout == "4999\n5000\n"
    assert bert("logs", "-n", "0", "task0.bert").stdout == "".join(f"{n}\n" for n in range(1, 5001))
    lines = [json.loads(line) for line in bert("logs", "-n", "1", "task0.bert", "--json").stdout.splitlines()]
    assert lines == [{"name": "task0.bert", "line": "5000"}]


def test_an_older_command_is_shown_when_its_number_is_given(bert):
    bert("run", "task0.bert", "echo one")
    bert("run", "task0.bert", "echo two")
    assert bert("logs", "--command", "1", "task0.bert").stdout == "one\n"
    assert bert("logs", "task0.bert").stdout == "two\n"
    assert bert("logs", "--command", "9", "task0.bert").returncode == 3
    records = bert.json("logs", "--list", "task0.bert")
    assert [(record["number"], record["state"], record["text"], record["size"]) for record in records] == [
        (1, "0", "echo one", 4),
        (2, "0", "echo two", 4),
    ]


def test_it_is_said_that_nothing_ran_when_nothing_did(bert):
    for words in (["logs", "task0.bert"], ["logs", "-f", "task0.bert"], ["wait", "task0.bert"]):
        done = bert(*words)
        assert done.returncode == 3
        assert "nothing was run on task0.bert yet" in done.stderr
    assert bert("logs", "--list", "task0.bert").stdout == "no commands yet\n"


def test_a_job_is_followed_with_names_when_it_has_several_tasks(pair):
    pair("run", "-d", "{bert}", "echo one; echo two")
    pair("wait", "{bert}")
    lines = pair("logs", "-f", "{bert}").stdout.splitlines()
    assert sorted(lines) == ["task0.bert | one", "task0.bert | two", "task1.bert | one", "task1.bert | two"]


def test_a_login_has_the_machines_home_and_the_commands_status_when_one_is_given(bert):
    with Terminal("ssh", "task0.bert") as terminal:
        terminal.wait_for("task0.bert:~")
        terminal.type("echo in $(basename $HOME); exit 6\n")
        assert terminal.finish() == 6
    assert "in home" in terminal.text
    assert bert("ssh", "task0.bert", "exit", "7").returncode == 7


def test_the_persons_terminal_is_attached_to_the_session_when_there_is_one(bert):
    bert("run", "task0.bert", "echo seen in the pane")
    with Terminal("tmux", "task0.bert", TMUX="/nowhere,1,0") as terminal:
        terminal.wait_for("seen in the pane")
        terminal.wait_for("task0=bert")
        terminal.type("\x02d")
        assert terminal.finish() == 0


def test_tmux_falls_back_to_a_login_when_there_is_no_session(lab):
    lab.create("bert", 1, "--skip_setup")
    with Terminal("tmux", "task0.bert", TERM="no-such-terminal") as terminal:
        terminal.wait_for("There is no tmux session yet")
        terminal.wait_for("task0.bert:~")
        terminal.type("exit\n")
        assert terminal.finish() == 0


def test_a_stopped_machine_says_how_to_start_it_when_something_is_asked_of_it(bert):
    bert("stop", "task0.bert")
    for words in (
        ["run", "task0.bert", "ls"],
        ["logs", "task0.bert"],
        ["ssh", "task0.bert"],
        ["scp", "/etc/hosts", "task0.bert:"],
    ):
        done = bert(*words)
        assert done.returncode == 2
        assert "trainyard start task0.bert" in done.stderr


def test_following_ends_when_nobody_reads_any_more(bert):
    bert("run", "-d", "task0.bert", "for i in $(seq 2000); do echo $i; sleep 0.05; done")
    begun = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", f"{BIN}/trainyard logs -f task0.bert | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (141, "1\n", "")
    assert time.monotonic() - begun < 30
    assert states(bert) == ["running"]


def test_a_terminated_client_leaves_the_command_and_the_terminal_in_order(bert):
    bert("run", "-d", "task0.bert", STUBBORN)
    with Terminal("top") as terminal:
        terminal.wait_for("task0.bert")
        terminal.child.kill(signal.SIGTERM)
        assert terminal.finish() == 143
    assert b"\x1b[?1049l" in terminal.raw
    with Terminal("logs", "-f", "task0.bert") as terminal:
        terminal.wait_for("begun")
        terminal.child.kill(signal.SIGTERM)
        assert terminal.finish() == 143
    assert states(bert) == ["running"]
    bert("ssh", "task0.bert", "touch go")


@pytest.mark.parametrize(
    "shell", ["trainyard ls >&-", "trainyard ls > /dev/full", "PYTHONIOENCODING=ascii trainyard --help"]
)
def test_a_strange_standard_output_is_no_traceback_when_it_is_written_to(lab, shell):
    done = subprocess.run(
        ["bash", "-c", shell.replace("trainyard", f"{BIN}/trainyard")], capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
