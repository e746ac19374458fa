"""Which processes live and which belong to which tree, asked of real ones."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from trainyard.lib import process_tree
from trainyard.lib.process_tree import ProcessId

TREE = 'sleep 4321 & setsid sh -c "sleep 4322 & echo \\$!; wait" & echo "$!"; wait'


@pytest.fixture
def tree():
    """A shell, a child of it, and a session of its own below it with one more."""
    environ = {**os.environ, "TREE_MARK": "a b"}
    with subprocess.Popen(["sh", "-c", TREE], stdout=subprocess.PIPE, env=environ, text=True) as shell:
        pids = {int(shell.stdout.readline()) for _ in range(2)}
        yield shell, pids
        for pid in [*process_tree.descendants_of(shell.pid), shell.pid]:
            os.kill(pid, signal.SIGKILL)


def test_everything_below_a_process_is_found_when_it_has_sessions_of_its_own(tree):
    shell, known = tree
    below = process_tree.descendants_of(shell.pid)
    assert len(below) == 3
    assert known <= set(below)
    assert process_tree.closure([shell.pid], process_tree.find_processes()) == {shell.pid, *below}
    assert set(process_tree.first_thread_children(shell.pid)) == set(process_tree.children_of(shell.pid))
    assert set(process_tree.find_marked(b"TREE_MARK=a b")) == {shell.pid, *below}
    assert {shell.pid, os.getpid()} <= process_tree.ancestors(below[-1], process_tree.find_processes())
    assert process_tree.variable_of(below[0], b"TREE_MARK") == "a b"
    assert process_tree.name_of(shell.pid) == "sh"


def test_a_tree_stands_still_when_it_is_frozen(tree):
    shell, _ = tree
    table = process_tree.find_processes()
    found = {table[pid].id for pid in process_tree.descendants_of(shell.pid)}
    assert process_tree.freeze(found, lambda: found) == found
    deadline = time.monotonic() + 10
    while {process_tree.stat_fields(one.pid)[0] for one in found} != {b"T"}:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_signal_reaches_no_other_process_when_the_number_was_used_again(tree):
    shell, _ = tree
    stranger = ProcessId(shell.pid, process_tree.start_time(shell.pid) - 1)
    assert process_tree.send(stranger, signal.SIGKILL)
    assert not process_tree.is_alive(stranger)
    assert shell.poll() is None


def test_a_process_is_dead_when_nobody_has_asked_for_its_status_yet():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process_tree.stat_fields(pid)[0] == b"Z"
    assert process_tree.start_time(pid) == 0
    os.waitpid(pid, 0)
    assert process_tree.find_process(pid) is None
    assert process_tree.environment_of(pid) == process_tree.children_of(pid) == []


def test_the_module_is_read_by_python_3_8_when_a_node_has_no_newer_one():
    ast.parse(Path(process_tree.__file__).read_text(), feature_version=(3, 8))
