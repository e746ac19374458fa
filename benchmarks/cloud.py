"""Alibaba Cloud, emulated: from nothing to the first command on 1, 8 and 64 machines, in time and in calls.

Machines of the emulator are real sshds on this computer, so making many of them takes its processors; what the emulator
takes by itself is measured with the fewest raw calls that make as many machines. With realistic boots (Pending 2 s,
Starting 15 s) what counts is what we add to the slowest machine.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import place
from benchmarks.measure import Row, medians, timed
from trainyard.sync import Runtime

import emulation  # isort: skip  # the tests' emulator; `place` has put their folder on the path

KIND = "ecs.g7.large"
SEED_SECONDS = 196.93  # of FastGPU's manual, on the cloud itself: one machine of 8 V100, downloads included
LIMIT_SECONDS = 1.5  # that may be added to the slowest machine
ROUNDS = 3
MORE_CALLS = 1.5  # calls for 64 machines, as a multiple of those for one
REGION_SETTINGS = {"TRAINYARD_OWN_ADDRESS": "127.0.0.1"}


def measure(*, quick: bool = False) -> list[Row]:
    """Instant boots, then realistic ones."""
    rows = _instant((1, 8) if quick else (1, 8, 64), rounds=1 if quick else 3)
    return rows if quick else rows + _realistic(8) + _phases()


# -- boots that take no time --------------------------------------------------------------------------------------------


def _instant(counts: tuple[int, ...], rounds: int) -> list[Row]:
    rows: list[Row] = []
    calls: dict[int, dict[str, int]] = {}
    for count in counts:
        samples: dict[str, list[float]] = {"ours": [], "raw": [], "found": [], "processor": []}
        for number in range(rounds if count < 64 else min(rounds, 2)):
            with _cloud(instant=True) as lab:
                if number % 2:
                    samples["raw"].append(_raw(lab, count))
                    _clear(lab)
                calls[count] = _sample(lab, count, samples)
                if not number % 2:
                    _clear(lab)
                    samples["raw"].append(_raw(lab, count))
        middle = medians(samples)
        case = f"make_job + run, {count} machine{'s' if count > 1 else ''}"
        rows += [
            Row(f"{case}, new network", middle["ours"], "the emulator alone, raw calls", middle["raw"]),
            Row(f"{case}, client's processor time", middle["processor"], "the same, elapsed", middle["ours"]),
            Row(f"{case}, found again", middle["found"], "the same, made new", middle["ours"]),
        ]
    return rows + [_call_row(count, calls[count], sum(calls[counts[0]].values())) for count in counts]


def _sample(lab: emulation.Emulation, count: int, samples: dict[str, list[float]]) -> dict[str, int]:
    """Make machines and find them again; how often each action was called for making them."""
    lab.control("DELETE", "calls")
    used = time.process_time()
    samples["ours"].append(timed(lambda: _make(count)))
    samples["processor"].append(time.process_time() - used)
    counts = _counts(lab)
    samples["found"].append(timed(lambda: _make(count)))
    return counts


def _call_row(count: int, counts: dict[str, int], single: int) -> Row:
    listed = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
    return Row(
        f"API calls, {count} machine{'s' if count > 1 else ''}, new network",
        sum(counts.values()),
        "the same, 1 machine",
        single,
        unit="calls",
        bar=MORE_CALLS if count > 1 else None,
        note=f"({listed})",
    )


def _make(count: int, *, name: str = "bench", **words: Any) -> None:
    """A new client: a job, and its first command on every machine."""
    lab = Runtime(backend="aliyun")
    try:
        lab.make_job(name, num_tasks=count, instance_type=KIND, confirm_cost=True, **words).run("true")
    finally:
        lab.close()


def _raw(lab: emulation.Emulation, count: int) -> float:
    """The fewest calls that make as many machines, until the sshd of each answers."""

    def work() -> None:
        network = lab.network()
        lab.launch(network, Amount=count, InternetMaxBandwidthOut=50)
        emulation.until(lambda: {row["Status"] for row in lab.instances()} == {"Running"})
        for address in _addresses(lab):
            _until_answering(address)

    return timed(work)


def _clear(lab: emulation.Emulation) -> None:
    ids = [row["InstanceId"] for row in lab.instances()]
    for begin in range(0, len(ids), 100):
        lab.ecs("DeleteInstances", InstanceId=ids[begin : begin + 100], Force=True)
    emulation.until(lambda: not lab.instances())
    lab.control("POST", "settle", {})


def _counts(lab: emulation.Emulation) -> dict[str, int]:
    found = lab.control("GET", "calls")["counts"]
    return {str(name).rpartition(".")[2]: int(number) for name, number in found.items()}


# -- boots that take as long as they do ---------------------------------------------------------------------------------


def _realistic(count: int) -> list[Row]:
    """What we add to the slowest machine: before it is asked for, and after it runs and its sshd answers."""
    with _cloud(instant=False) as lab:
        courses = [
            _watched(lab, count, f"real{number}", partial(_make, count, name=f"real{number}"))
            for number in range(1 + ROUNDS)
        ]
    first, *others = courses
    middle = sorted(others, key=lambda course: course.added)[ROUNDS // 2]
    return [
        _added_row(f"added to the slowest of {count}, new network", first, more=", the network 2 s"),
        _added_row(f"added to the slowest of {count}, network there", middle, bar=1.0),
    ]


def _added_row(case: str, course: Course, *, bar: float | None = None, more: str = "") -> Row:
    note = (
        f"({course.before:.2f} s before it is asked for, {course.after:.2f} s after it runs; "
        f"the machine itself took {course.machine:.2f} s{more})"
    )
    return Row(case, course.added, "limit", LIMIT_SECONDS, bar=bar, note=note)


@dataclass(frozen=True)
class Course:
    """How long the parts of making machines took."""

    before: float
    machine: float
    after: float

    @property
    def added(self) -> float:
        """What is not the machine's own."""
        return self.before + self.after


def _watched(lab: emulation.Emulation, count: int, name: str, work: Callable[[], None]) -> Course:
    """Do it while somebody else looks at the machines."""
    lab.control("DELETE", "calls")
    answered: list[float] = []
    looker = threading.Thread(target=_look, args=(lab, count, name, answered), daemon=True)
    looker.start()
    begin = time.time()
    work()
    end = time.time()
    looker.join(timeout=30)
    launches = [
        datetime.fromisoformat(call["at"]).timestamp()
        for call in lab.control("GET", "calls")["calls"]
        if call["action"] == "RunInstances"
    ]
    asked = min(launches)
    return Course(before=asked - begin, machine=answered[0] - asked, after=end - answered[0])


def _look(lab: emulation.Emulation, count: int, name: str, answered: list[float]) -> None:
    """Note when the last of the machines was called running and answered."""
    running = 0
    while running < count:
        time.sleep(0.05)
        state = lab.control("GET", "state")["instances"].values()
        running = sum(one["name"].endswith(name) and one["status"] == "Running" for one in state)
    for address in _addresses(lab, name):
        _until_answering(address)
    answered.append(time.time())


def _addresses(lab: emulation.Emulation, name: str = "") -> list[tuple[str, int]]:
    state = lab.control("GET", "state")["instances"].values()
    port = int(lab.ready["ssh_port"])
    return [
        (one["public_address"], port) for one in state if one["name"].endswith(name) and one["public_address"]
    ]


def _until_answering(address: tuple[str, int]) -> None:
    while True:
        try:
            with socket.create_connection(address, timeout=5) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            time.sleep(0.02)


# -- the seed's deploy, by phase ----------------------------------------------------------------------------------------


def _phases() -> list[Row]:
    """The steps of the manual's script, one machine, realistic boots; downloads are left out, having no network here."""
    with _cloud(instant=False) as lab, place.own_folder_of_code() as code:
        marks: list[tuple[str, float]] = []
        door = Runtime(backend="aliyun")
        begin = time.time()
        try:
            course = _watched(lab, 1, "seed", lambda: _deploy(door, code, marks))
        finally:
            door.close()
        made = marks[0][1] - begin
        total = marks[-1][1] - begin
        rest = {name: moment - marks[place_of][1] for place_of, (name, moment) in enumerate(marks[1:])}
    own = made - course.before - course.machine
    parts = {
        "prices, stock, network, key": course.before,
        "the machine: Pending, Starting, sshd": course.machine,
        "login, first boot, session, keys": own,
        **rest,
    }
    rows = [
        Row(f"deploy: {name}", seconds, "FastGPU's manual", None, note="(never published)")
        for name, seconds in parts.items()
    ]
    note = "(theirs on the cloud itself, with downloads: no comparison)"
    return [
        *rows,
        Row("deploy: all of it, without downloads", total, "FastGPU's manual", SEED_SECONDS, note=note),
    ]


def _deploy(door: Runtime, code: Path, marks: list[tuple[str, float]]) -> None:
    job = door.make_job(
        "seed", run_name="seed-1", num_tasks=1, instance_type="ecs.gn6v-c10g1.20xlarge", confirm_cost=True
    )
    marks.append(("make_job", time.time()))
    job.run("true")
    marks.append(("the first command", time.time()))
    job.upload(str(code))
    marks.append(("upload of 5 MB in 200 files", time.time()))
    for command in ("true", "true", "true", f"cd {code.name}"):
        job.run(command)
    job.tasks[0].run(f"echo training > {job.logdir}/task-cmd")
    job.tasks[0].run("sleep 1000", non_blocking=True)
    marks.append(("six commands and the log folder", time.time()))


@contextmanager
def _cloud(*, instant: bool) -> Iterator[emulation.Emulation]:
    """An emulator and a home of its own, in the environment."""
    with place.own_home() as home, emulation.emulated(home / "cloud", instant=instant) as lab:
        os.environ.update(lab.environ() | REGION_SETTINGS)
        yield lab
