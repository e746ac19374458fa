"""What people see, as committed pictures at 80 and 120 columns. `--update-screens` writes them anew."""

from __future__ import annotations

import re

import pytest
from terminal import Terminal, shows

pytestmark = pytest.mark.slow  # every picture is a start of the program, a fifth of a second each

WIDTHS = (80, 120)
PROGRAMS = ("trainyard", "fastgpu", "ecluster")


def too_wide(terminal, columns):
    """Lines that the terminal had to break."""
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", terminal.raw).decode()
    return [line for line in plain.splitlines() if len(line) > columns]


def test_help_says_the_same_however_it_is_asked_for(golden, lab):
    text = shows("--help", rows=90)
    golden("help_80", text)
    assert text == lab().stdout == lab("-h").stdout == lab("help").stdout
    assert lab("create", "-h").stdout == lab("help", "create").stdout


def test_ls_speaks_the_dialect_of_the_name_it_is_called_by(golden, lab, monkeypatch):
    monkeypatch.setenv("TRAINYARD_LOCAL_GPUS", "16")
    lab.create("perseus-bert", 2, "-i", "ecs.gn6v-c8g1.16xlarge", "--skip_setup")
    lab.create("tfbenchmark", 1, "--gpus", "0", "--skip_setup")
    lab.pin("task0.perseus-bert", address="127.77.209.1", hours=125.4)
    lab.pin("task1.perseus-bert", address="127.77.209.2", hours=125.4)
    lab.pin("task0.tfbenchmark", address="127.77.209.3", hours=0.5)
    for name, words in {"ls": ["ls"], "ls_all": ["ls", "-a"]}.items():
        _compare(golden, name, words)
    lab("stop", "-y", "task1.perseus-bert")
    lab.pin("task1.perseus-bert", address="127.77.209.2", hours=125.4)
    for name, words in {"ls_stopped": ["ls"], "ls_stop": ["ls", "--stop"]}.items():
        _compare(golden, name, words)


def _compare(golden, name, words):
    kinds = [(program, columns) for program in PROGRAMS for columns in WIDTHS]
    for (program, columns), terminal in zip(kinds, _show_all(words, kinds), strict=True):
        assert not too_wide(terminal, columns)
        golden(f"{name}_{program}_{columns}", terminal.text)


def _show_all(words, kinds):
    terminals = [Terminal(*words, columns=columns, program=program) for program, columns in kinds]
    for terminal in terminals:
        with terminal:
            terminal.finish()
            yield terminal


def test_an_empty_ls_says_how_to_begin_when_there_are_no_machines(golden, lab):
    for program in PROGRAMS:
        golden(f"ls_empty_{program}_80", shows("ls", program=program))


def test_kill_lists_what_it_touches_and_asks_when_on_a_terminal(golden, lab):
    lab.create("bert", 2)
    lab("run", "-d", "task0.bert", "sleep 300 # the long training that somebody is waiting for")
    for index in (0, 1):
        lab.pin(f"task{index}.bert", address=f"127.77.209.{index + 1}")
    for columns in WIDTHS:
        with Terminal("kill", "{bert}", columns=columns) as terminal:
            terminal.wait_for("[y/N]")
            terminal.type("n\n")
            assert terminal.finish() == 1
        golden(f"kill_{columns}", terminal.text)
    assert lab.names() == ["task0.bert", "task1.bert"]


def test_create_tells_how_to_reach_the_machines_when_done(golden, lab):
    with Terminal("create", "--name", "bert", "-np", "2", "--install_cuda") as terminal:
        assert terminal.finish() == 0
    assert b"starting [--------------------] 0 of 2 machines" in terminal.raw
    assert b"setting up [" in terminal.raw
    golden("create_80", _pinned_addresses(terminal.text))


def test_running_a_command_on_a_job_shows_names_when_there_are_several_tasks(golden, lab):
    lab.create("bert", 2)
    text = shows("run", "{bert}", "echo first; echo $TRAINYARD_TASK second | cut -d' ' -f2; exit 3")
    lines = sorted(text.splitlines()[:4]) + text.splitlines()[4:]
    golden("run_group_80", "\n".join(lines) + "\n")


def test_colours_only_appear_on_a_terminal_that_has_them_and_wants_them(lab):
    lab.create("bert", 1, "--skip_setup")
    with Terminal("ls") as terminal:
        terminal.finish()
    assert b"\x1b[32mrunning" in terminal.raw
    for quiet in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        with Terminal("ls", **quiet) as terminal:
            terminal.finish()
        assert b"\x1b" not in terminal.raw
    assert "\x1b" not in lab("ls").stdout


def test_names_stay_whole_and_columns_go_when_the_terminal_is_narrow(lab):
    lab.create(
        "a-rather-long-name-for-a-job", 1, "-i", "ecs.gn6v-c8g1.16xlarge", "--gpus", "0", "--skip_setup"
    )
    for columns in (40, 60, 80, 100):
        with Terminal("ls", columns=columns) as terminal:
            terminal.finish()
        assert not too_wide(terminal, columns)
        assert "task0.a-rather-long-name-for-a-job" in terminal.text


def _pinned_addresses(text):
    """Loopback addresses differ by home, and the table is as wide as they are."""
    text = re.sub(r"(Public|Private) IP +", r"\1 IP  ", text)
    return re.sub(r"127\.77\.\d+\.(\d) +", r"127.77.x.\1  ", text)
