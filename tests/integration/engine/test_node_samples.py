"""What the agent of a node reads of its tasks and devices: a real driver that hangs, real networks, no server."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainyard.engines.nodes.agent import sampling
from trainyard.engines.nodes.agent.sampling import Sampler
from trainyard.engines.nodes.agent.supervisor import MARK
from trainyard.engines.nodes.readings import readings_of


def task(pid: int, name: str = "worker-0", **order: object) -> Any:
    return SimpleNamespace(
        folder=SimpleNamespace(attempt="j.1", name=name),
        history={"at": "running", "pid": pid, "started": time.time() - 1},
        order={"env": {}, **order},
    )


def until(is_so: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := is_so()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.fixture
def shell() -> Iterator[Callable[[str], int]]:
    """Starts a supervisor's stand-in that runs a command below it; both are ended in the end."""
    started = []

    def start(command: str) -> int:
        child = subprocess.Popen(["sh", "-c", f"{command} & wait"], start_new_session=True)
        started.append(child)
        until(lambda: len(sampling.descendants(sampling.all_processes(), child.pid)) > 1)
        return child.pid

    yield start
    for child in started:
        os.killpg(child.pid, 9)
        child.wait()


def test_a_driver_that_hangs_costs_only_its_own_readings_when_it_is_asked(monkeypatch, tmp_path: Path, shell):
    tools = tmp_path / "a b'c"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(sampling, "DRIVER_SECONDS", 0.2)
    sampler, pid = Sampler(), shell("exec sleep 1000")
    sampler.configure(0.01, "nvidia-smi")
    until(lambda: sampler.poll([task(pid)]) or sampler._driver)
    asked = sampler._driver._pid
    try:
        frame = until(lambda: sampler.poll([task(pid)]))
    finally:
        sampler.stop()
        os.waitpid(asked, 0)  # the agent's loop does this
    node, tasks = readings_of(frame)
    assert node is None  # nothing to compare with yet
    assert tasks[("j.1", "worker-0")].devices == ()
    assert tasks[("j.1", "worker-0")].processes >= 1


def test_traffic_is_the_tasks_own_when_it_moves_into_a_network_of_its_own(shell):
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("nobody may have a network of their own here")
    sampler = Sampler()
    sampler.configure(0.01, "")
    pids = {"here": shell("exec sleep 1000"), "apart": shell("exec unshare -rn sleep 1000")}
    until(lambda: sampling.own_network(sampling.descendants(sampling.all_processes(), pids["apart"])))
    for _ in range(2):
        frame = until(lambda: sampler.poll([task(pid, name) for name, pid in pids.items()]))
        found = readings_of(frame)[1]
        assert not found[("j.1", "here")].has_own_network
        assert found[("j.1", "apart")].has_own_network
        assert found[("j.1", "apart")].received_bytes == 0


def test_no_traffic_is_told_when_a_task_has_only_now_another_network(monkeypatch, shell):
    sampler, pid = Sampler(), shell("exec sleep 1000")
    sampler.configure(0.01, "")
    networks = iter([(1e9, 1e9), None, (5e8, 5e8)])
    monkeypatch.setattr(sampling, "own_network", lambda _pids: next(networks))
    for _ in range(3):
        (found,) = readings_of(until(lambda: sampler.poll([task(pid)])))[1].values()
        assert (found.received_bytes, found.sent_bytes) == (0, 0)


def test_processes_of_a_container_count_when_they_are_below_its_service_and_not_below_us(shell):
    sampler, client = Sampler(), shell("exec sleep 1000")  # what started the container, and waits for it
    mark = "platform/j.1/worker-0"
    inside = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: mark})
    other = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: f"{mark}1"})
    try:
        sampler.configure(0.01, "")
        for view, count in (({"image": "x"}, 2), ({}, 1)):
            frame = until(lambda view=view: sampler.poll([task(client, mark=mark, view=view)]))
            assert readings_of(frame)[1][("j.1", "worker-0")].processes == count
    finally:
        for child in (inside, other):
            child.kill()
            child.wait()
