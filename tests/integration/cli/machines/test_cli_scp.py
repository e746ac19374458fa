"""Copying from the command line: both directions, files and folders, one machine and many."""

from __future__ import annotations

import json
import os

import pytest
from terminal import Terminal

pytestmark = pytest.mark.slow  # every step is a start of the program, a fifth of a second each


@pytest.fixture
def pair(lab):
    lab.create("bert", 2, "--skip_setup")
    return lab


@pytest.fixture
def tree(hostile_path):
    folder = hostile_path / "code"
    (folder / "sub").mkdir(parents=True)
    (folder / "a b'c.py").write_text("one")
    (folder / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "sub" / "run.sh").chmod(0o755)
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (1.7e9, 1.7e9))  # what was written a moment ago is sent again to be sure
    return folder


def listing(lab, name, path="."):
    return sorted(lab("ssh", name, f"cd '{path}' && find . -type f").stdout.splitlines())


FILES = ["./a b'c.py", "./sub/run.sh"]


def test_a_folder_arrives_whole_on_every_task_when_copied_to_a_group(pair, tree):
    done = pair("scp", "-r", str(tree), "{bert}:code")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for name in ("task0.bert", "task1.bert"):
        assert listing(pair, name, "code") == FILES
    assert pair("ssh", "task1.bert", "stat -c %a code/sub/run.sh").stdout == "755\n"


def test_only_what_changed_travels_and_nothing_nests_when_copied_again(pair, tree):
    pair("scp", str(tree), "task0.bert:code")
    again = json.loads(pair("scp", str(tree), "task0.bert:code", "--json").stdout)
    assert listing(pair, "task0.bert", "code") == FILES
    assert again["files"] == 2
    assert again["sent_bytes"]["task0.bert"] == 0


def test_a_folder_goes_inside_when_the_target_is_another_folder(pair, tree):
    pair("ssh", "task0.bert", "mkdir work")
    assert pair("scp", str(tree), "task0.bert:work").returncode == 0
    assert listing(pair, "task0.bert", "work/code") == FILES
    assert pair("scp", str(tree), "task0.bert:").returncode == 0
    assert listing(pair, "task0.bert", "code") == FILES


def test_files_and_folders_come_back_when_copied_from_a_machine(pair, tree, tmp_path):
    pair("scp", str(tree), "task0.bert:code")
    target = tmp_path / "back"
    assert pair("scp", "task0.bert:code", str(target)).returncode == 0
    assert (target / "a b'c.py").read_text() == "one"
    target = tmp_path / "file here"
    assert pair("scp", "task0.bert:code/a b'c.py", str(target)).returncode == 0
    assert target.read_text() == "one"


def test_each_task_gets_a_folder_when_a_group_is_copied_from(pair, tmp_path):
    pair("run", "{bert}", "echo $HOME > result")
    target = tmp_path / "results"
    assert pair("scp", "{bert}:result", str(target)).returncode == 0
    assert sorted(path.name for path in target.iterdir()) == ["task0.bert", "task1.bert"]
    assert "task1.bert" in (target / "task1.bert" / "result").read_text()


def test_machines_exchange_files_through_the_client_when_both_sides_are_machines(pair, tree):
    pair("scp", str(tree), "task0.bert:code")
    done = pair("scp", "task0.bert:code", "task1.bert:copy")
    assert done.returncode == 0, done.stderr
    assert listing(pair, "task1.bert", "copy") == FILES


def test_what_is_ignored_stays_behind_when_an_ignore_file_or_option_says_so(pair, tree):
    (tree / "big.bin").write_text("x")
    (tree / "other.log").write_text("x")
    (tree / ".trainyardignore").write_text("*.bin\n")
    assert pair("scp", "--exclude", "*.log", str(tree), "task0.bert:code").returncode == 0
    assert "./big.bin" not in listing(pair, "task0.bert", "code")
    assert "./other.log" not in listing(pair, "task0.bert", "code")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["/nothing/here", "task0.bert:"], 3, "there is no file '/nothing/here'"),
        (["task0.bert:nothing", "."], 3, "does not exist"),
        (["a", "b"], 2, "neither side is on a machine"),
        (["task0.bert:x", "/etc/hosts", "/tmp/x"], 2, "partly here"),
        (["/etc/hosts", "nowhere:"], 3, "there is no machine 'nowhere'"),
        (["/etc/hosts", "{bert:"], 2, "is not a name"),
        (["/etc/hosts"], 2, "argument"),
    ],
)
def test_a_mistake_is_a_sentence_when_made(pair, words, status, message):
    done = pair("scp", *words)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bar_moves_and_goes_when_a_copy_takes_a_while(pair, tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(300_000_000)
    with Terminal("scp", str(large), "{bert}:") as terminal:
        assert terminal.finish() == 0
    assert b"uploading [" in terminal.raw
    assert "uploading" not in terminal.text
    assert "1 file on 2 machines" in terminal.text
