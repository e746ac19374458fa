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

import nvidia
from trainyard.engines.nodes.agent.kernel import MARK
from trainyard.engines.nodes.agent.readings import device_drivers
from trainyard.engines.nodes.agent.readings import sampler as sampling
from trainyard.engines.nodes.agent.readings.sampler import Sampler
from trainyard.engines.nodes.agent.tasks.folder import boot_seconds
from trainyard.engines.nodes.readings import readings_of
from trainyard.runtime.device_metrics import profile_script
from trainyard.runtime.usage import devices_script


def task(pid: int, name: str = "worker-0", **order: object) -> Any:
    return SimpleNamespace(
        folder=SimpleNamespace(attempt="j.1", name=name),
        history={"at": "running", "pid": pid, "since": boot_seconds() - 1},
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
    until(lambda: sampler.poll([task(pid)]) or sampler._devices.is_asked)
    asked = sampler._devices._driver.pid
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


@pytest.fixture
def tools(monkeypatch, tmp_path: Path) -> Path:
    """Where the node's tools are."""
    folder = tmp_path / "a b'c"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    return folder


class Asked(list[int]):
    """Processes that drivers were asked by; the agent's loop takes leave of them as here."""

    def reap(self, how: int = os.WNOHANG) -> None:
        self[:] = [pid for pid in self if os.waitpid(pid, how)[0] == 0]


@pytest.fixture
def asked(monkeypatch) -> Iterator[Asked]:
    spawn, started = os.posix_spawn, Asked()

    def note(*words: Any, **options: Any) -> int:
        started.append(spawn(*words, **options))
        return started[-1]

    monkeypatch.setattr(os, "posix_spawn", note)
    yield started
    started.reap(0)


@pytest.fixture
def sampler(asked: Asked) -> Iterator[Sampler]:
    """One that is stopped in the end."""
    made = Sampler()
    yield made
    made.stop()


def frames(sampler: Sampler, asked: Asked) -> Iterator[Any]:
    """What the agent's loop would send, of a task that has the second device."""
    one = task(os.getpid(), env={"TRAINYARD_DEVICES": "1"})
    while True:
        yield until(lambda: asked.reap() or sampler.poll([one]))


def device_of(frame: Any) -> Any:
    (one,) = readings_of(frame)[1][("j.1", "worker-0")].devices
    return one


def test_a_reading_goes_without_a_profiler_when_that_takes_its_time(tools, sampler, asked, tmp_path):
    gate = tmp_path / "gate"
    closed = f"until [ -e '{gate}' ]; do sleep 0.05; done"
    nvidia.install(tools, smi=nvidia.smi(), dcgmi=nvidia.dcgmi(before=closed))
    sampler.configure(0.01, devices_script(in_detail=True), "dcgm_groups=156\n" + script_of_profile())
    several = frames(sampler, asked)
    for _ in range(3):
        one = device_of(next(several))
        assert one.figures["gpu_temp"] == 40
        assert one.uuid == nvidia.UUIDS[1]
        assert "total_energy_consumption" not in one.figures
    gate.touch()
    until(lambda: "total_energy_consumption" in device_of(next(several)).figures)
    # What it said goes with the readings after it too.
    assert device_of(next(several)).figures["total_energy_consumption"] == 156.1


def script_of_profile() -> str:
    """Without its first line, which says what to ask for."""
    return profile_script().partition("\n")[2]


def test_a_profiler_is_forgotten_when_it_falls_silent(tools, sampler, asked, monkeypatch):
    monkeypatch.setattr(sampling, "PROFILE_KEPT", 3)
    nvidia.install(tools, smi=nvidia.smi(), dcgmi=nvidia.dcgmi())
    sampler.configure(0.01, devices_script(in_detail=True), "dcgm_groups=156\n" + script_of_profile())
    several = frames(sampler, asked)
    until(lambda: "total_energy_consumption" in device_of(next(several)).figures)
    nvidia.install(tools, dcgmi="#!/bin/sh\nexit 1\n", smi=nvidia.smi(dmon=""))
    until(lambda: "total_energy_consumption" not in device_of(next(several)).figures)
    assert device_of(next(several)).figures["gpu_temp"] == 40


def test_a_profiler_is_left_alone_when_the_server_does_not_want_it(tools, sampler, asked):
    nvidia.install(tools, smi=nvidia.smi(), dcgmi=nvidia.dcgmi())
    wanted = "dcgm_groups=156\n" + script_of_profile()
    several = frames(sampler, asked)
    sampler.configure(0.01, devices_script(in_detail=True), "")
    for _ in range(3):
        assert "total_energy_consumption" not in device_of(next(several)).figures
        assert not sampler._profiler.is_asked
    # It is wanted now: at once, and not after the rest that follows where nobody could be asked.
    sampler.configure(0.01, devices_script(in_detail=True), wanted)
    until(lambda: "total_energy_consumption" in device_of(next(several)).figures)
    sampler.stop()
    sampler.configure(0.01, devices_script(in_detail=True), "")
    assert "total_energy_consumption" not in device_of(next(several)).figures


def test_it_is_asked_rarely_when_a_profiler_knows_nothing(tools, sampler, asked, tmp_path):
    noted = tmp_path / "noted"
    nvidia.install(tools, smi=nvidia.smi(dmon=""), dcgmi='#!/bin/sh\necho "$@" >> "$NOTED"\nexit 255\n')
    sampler.configure(0.01, devices_script(in_detail=True), "dcgm_groups=156\n" + script_of_profile())
    several = frames(sampler, asked)
    until(lambda: next(several) and noted.exists() and not sampler._profiler.is_asked)
    for _ in range(10):
        next(several)
    assert len(noted.read_text().splitlines()) == 1


def test_one_row_for_each_device_is_sent_when_a_profiler_has_printed_several():
    answer = (
        "columns dcgm 1001,1002\ndcgm 1 GPU-b N/A N/A\ndcgm 0 GPU-a 0.1 N/W\ndcgm 1 GPU-b 0.5 N/A\n"
        "dcgm 1 GPU-b N/A 0.7\ndcgm 0 GPU-a 0.2 N/A\ndcgm\ndcgm 1 GPU-b 9\nknown dcgm_fields 1001,1002\n"
    )
    lines = sampling.newest_rows(answer).splitlines()
    assert lines[0] == "columns dcgm 1001,1002"
    assert {"dcgm 1 GPU-b 9", "dcgm 0 GPU-a 0.2 N/W", "dcgm", "known dcgm_fields 1001,1002"} < set(lines)
    whole = sampling.newest_rows(answer.replace("dcgm 1 GPU-b 9\n", ""))
    assert "dcgm 1 GPU-b 0.5 0.7" in whole.splitlines()


def test_what_a_script_has_learnt_is_given_back_when_it_runs_again(tools, asked, monkeypatch):
    nvidia.install(tools, smi="#!/bin/sh\n")
    source = device_drivers.Source(("nvidia-smi",), 20.0)
    script = "echo \"<${a-}|${b-}>\"; echo 'known a x,y_1.z'; echo 'known b $(oops)'; echo 'known b'"
    source.configure(script)

    def ask() -> str:
        assert source.begin()
        return until(source.answer).splitlines()[0]

    assert [ask(), ask()] == ["<|>", "<x,y_1.z|>"]
    monkeypatch.setattr(device_drivers, "LEARN_SECONDS", 0.0)
    source._forget_at = 0.0
    assert ask() == "<|>"  # another tool may have come


def test_nobody_is_asked_again_when_the_one_asked_before_cannot_be_killed(tools, asked):
    nvidia.install(tools, smi="#!/bin/sh\n")
    source = device_drivers.Source(("nvidia-smi",), 0.0)
    source.configure("exec sleep 1000")
    assert source.begin()
    assert until(lambda: source.answer() is not None)
    # It is there until somebody takes leave of it, as is one that waits for hardware.
    assert not source.begin()
    asked.reap(0)
    assert source.begin()
    source.stop()
