"""A job of machines as the platform keeps it: names and wishes there and back."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainyard.backends.platform import machine_job
from trainyard.client.schemas import Explanation, JobDetail, Task
from trainyard.lib.errors import ConflictError
from trainyard.spec.machine import MachineSpec, MachineState
from trainyard.spec.names import task_name
from trainyard.spec.workload import Desired, State, TaskState, WorkloadSpec

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def job(spec: WorkloadSpec, **changes: object) -> JobDetail:
    given = {
        "id": "j1", "name": spec.name, "kind": spec.kind, "workspace": "team", "workspace_id": "w1", "user": "alice",
        "state": State.RUNNING, "desired": Desired.RUN, "priority": 5, "preemptible": spec.preemptible, "version": 1,
        "attempt": 1, "failures": 0, "reason": "", "message": "", "exit_code": None, "replicas": 1, "cpu": 1.0,
        "memory_mib": 0, "devices": 0, "device": "", "position": None, "estimated_start": None, "submitted_at": NOW,
        "queued_at": NOW, "started_at": NOW, "stopped_at": None, "ended_at": None, "retain_until": None,
    }  # fmt: skip
    return JobDetail(**{**given, **changes}, spec=spec)  # type: ignore[arg-type]  # a test's shorthand


def task(rank: int, state: TaskState = TaskState.RUNNING, **changes: object) -> Task:
    given = {
        "name": f"worker-{rank}", "role": "worker", "number": rank, "rank": rank, "attempt": 1, "node": "n1",
        "devices": (), "state": state, "exit_code": None, "message": "", "address": "10.0.0.1", "started_at": NOW,
        "ended_at": None, "log_bytes": 0,
    }  # fmt: skip
    return Task(**{**given, **changes})  # type: ignore[arg-type]  # likewise


@pytest.mark.parametrize(
    "names",
    [
        ["task0.bert"],
        [task_name("bert", number) for number in (2, 0, 10, 11, 12)],
        [task_name("a.b@c", number) for number in range(0, 4000, 2)],  # more than one tag can hold
        ["alone"],
    ],
)
def test_names_come_back_in_their_order_when_they_were_kept_as_tags(names: list[str]) -> None:
    if len(names) > 1000:
        names = names[:900]
    spec = machine_job.workload(MachineSpec(), names, workspace="")
    assert all(len(value) <= 256 for value in spec.tags.values())
    assert len(spec.tags) <= 64
    found = machine_job.gang_of(job(spec))
    assert found is not None
    assert list(found.names) == names


def test_a_job_of_another_kind_holds_no_machines() -> None:
    assert machine_job.gang_of(job(WorkloadSpec(name="x", command="true"))) is None


def test_wishes_become_resources_when_a_type_is_named() -> None:
    def role(**wishes: object) -> object:
        made = machine_job.workload(MachineSpec(**wishes), ["task0.x"], workspace="").roles[0]  # type: ignore[arg-type]
        return made.cpu, made.memory_mib, made.device, made.devices

    assert role() == (1.0, 0, "", 0)
    assert role(type="4c16g") == (4.0, 16384, "", 0)
    assert role(type="0.5c1g", gpus=2) == (0.5, 1024, "", 2)
    assert role(type="V100", gpus=2) == (1.0, 0, "V100", 2)
    assert role(type="ecs.gn6v-c8g1.16xlarge") == (1.0, 0, "", 8)
    assert role(type="ecs.gn6v-c8g1.16xlarge", gpus=0) == (1.0, 0, "", 0)
    assert role(npus=8) == (1.0, 0, "", 8)


def test_the_key_is_the_same_only_when_wish_and_past_are() -> None:
    spec = machine_job.workload(MachineSpec(), ["task0.x"], workspace="")
    assert machine_job.key_of(spec, "") == machine_job.key_of(spec, "")
    assert machine_job.key_of(spec, "") != machine_job.key_of(spec, "j1")
    assert machine_job.key_of(spec, "") != machine_job.key_of(replace(spec, name="y"), "")
    assert len(machine_job.key_of(spec, "")) <= 200


@pytest.mark.parametrize(
    ("state", "desired", "of_task", "wanted"),
    [
        (State.WAITING, Desired.RUN, None, MachineState.PENDING),
        (State.HELD, Desired.RUN, None, MachineState.PENDING),
        (State.STARTING, Desired.RUN, TaskState.PENDING, MachineState.PENDING),
        (State.RUNNING, Desired.RUN, TaskState.RUNNING, MachineState.RUNNING),
        (State.RUNNING, Desired.RUN, TaskState.LOST, MachineState.LOST),
        (State.RUNNING, Desired.PAUSE, TaskState.RUNNING, MachineState.STOPPING),
        (State.FINISHING, Desired.PAUSE, TaskState.RUNNING, MachineState.STOPPING),
        (State.FINISHING, Desired.RUN, TaskState.RUNNING, MachineState.PENDING),
        (State.HELD, Desired.PAUSE, None, MachineState.STOPPED),
    ],
)
def test_a_machine_is_in_the_state_that_its_job_and_task_have(
    state: State, desired: Desired, of_task: TaskState | None, wanted: MachineState
) -> None:
    spec = machine_job.workload(MachineSpec(), ["task0.x"], workspace="")
    found = machine_job.gang_of(job(spec, state=state, desired=desired))
    assert found is not None
    tasks = () if of_task is None else (task(0, of_task),)
    assert [machine.state for machine in replace(found, tasks=tasks).machines()] == [wanted]


def test_a_machine_is_gone_when_it_has_left_its_job() -> None:
    spec = machine_job.workload(MachineSpec(), ["task0.x", "task1.x"], workspace="")
    found = machine_job.gang_of(job(spec))
    assert found is not None
    left = replace(found, tasks=(task(0, TaskState.ENDED, exit_code=0), task(1)))
    assert [machine.name for machine in left.machines()] == ["task1.x"]
    told = replace(found, tasks=(task(0, TaskState.ENDED, exit_code=143), task(1)))
    assert len(told.machines()) == 2


def test_the_queue_is_in_the_details_when_the_job_waits() -> None:
    spec = machine_job.workload(MachineSpec(), ["task0.x"], workspace="")
    found = machine_job.gang_of(job(spec, state=State.WAITING, attempt=0))
    assert found is not None
    told = Explanation(state="waiting", starts_now=False, position=3, reason="NoNodeFits", sentence="Full.")
    details = replace(found, explanation=told).machines()[0].details
    assert (details["queue"], details["position"], details["reason"]) == ("Full.", "3", "NoNodeFits")


def test_a_machine_of_another_kind_is_a_conflict() -> None:
    found = machine_job.gang_of(
        job(machine_job.workload(MachineSpec(type="4c16g"), ["task0.x"], workspace=""))
    )
    assert found is not None
    machine_job.check_fits(MachineSpec(), found, "task0.x")
    machine_job.check_fits(MachineSpec(type="4c16g"), found, "task0.x")
    with pytest.raises(ConflictError):
        machine_job.check_fits(MachineSpec(type="8c16g"), found, "task0.x")
    with pytest.raises(ConflictError):
        machine_job.check_fits(MachineSpec(gpus=1), found, "task0.x")


@pytest.mark.parametrize(
    ("word", "status", "left"), [("all", 143, []), ("one", 0, ["released"]), ("", 143, None)]
)
def test_files_go_when_the_machine_was_released_and_stay_when_it_was_told_to_go(
    isolation: Path, hostile_path: Path, word: str, status: int, left: list[str] | None
) -> None:
    home = hostile_path
    place = home / "places" / "j1.worker-0"
    script = Path(machine_job.__file__).with_name("place.sh")
    holding = subprocess.Popen(
        ["sh", str(script)],
        env={"HOME": str(home), "PLACE": "places/j1.worker-0", "PATH": "/usr/bin:/bin"},
        start_new_session=True,
    )
    while not (place / "pid").exists() or not (place / "pid").read_text():
        assert holding.poll() is None
    (place / "home" / "work").write_text("kept")
    if word:
        (place / "released").write_text(f"{word}\n")
    # As the supervisor of a task does: everybody is told.
    os.killpg(holding.pid, signal.SIGTERM)
    assert holding.wait(10) == status
    names = sorted(path.name for path in place.iterdir()) if place.exists() else []
    assert names == (["home", "pid"] if left is None else left)
    assert not list((home / "places").glob("*.gone.*"))
