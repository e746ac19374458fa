"""Converts machine specs and names to a workload of the platform, and back. Pure; backend.py sends the requests.

The machines of one job are one workload: worker-0 has the first name that was asked for, and so on. Its tags hold the
names, so that any computer of the same user finds them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.client.encode import encode
from trainyard.client.schemas import Explanation, JobDetail, Task
from trainyard.lib.errors import ConflictError
from trainyard.spec.hardware import TYPES
from trainyard.spec.machine import Device, DeviceKind, Machine, MachineSpec, MachineState
from trainyard.spec.names import job_of, parse_task, task_name
from trainyard.spec.workload import HOLDING, Desired, Restart, RoleSpec, State, TaskState, WorkloadSpec
from trainyard.spec.workload import task_name as member_name

BACKEND = "platform"
KIND = "machines"
ROLE = "worker"
NAME_TAG, NUMBERS_TAG, TYPE_TAG = "trainyard.name", "trainyard.tasks", "trainyard.type"
TAG_LENGTH = 250
PLACES = ".trainyard/places"
GRACE_SECONDS = 30  # the time for removing the files of a released machine
PLACE = Path(__file__).with_name("place.sh").read_text(encoding="utf-8")
_SHAPE = re.compile(r"(?P<cpu>[0-9]+(?:\.[0-9]+)?)c(?P<memory>[0-9]+)g\Z")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*\Z")
_NPU = re.compile(r"(?i)ascend|npu|\b[39]10")


@dataclass(frozen=True, slots=True)
class MachineJob:
    """A workload that holds machines."""

    job: JobDetail
    names: tuple[str, ...]  # by rank
    tasks: tuple[Task, ...] = ()  # of its last attempt
    explanation: Explanation | None = None  # where it waits

    @property
    def is_live(self) -> bool:
        """Whether it has machines or will have some."""
        return self.job.desired is not Desired.CANCEL

    def machines(self) -> list[Machine]:
        """Return its current machines, without those that have left."""
        by_rank = {task.rank: task for task in self.tasks}
        found = []
        for rank, name in enumerate(self.names):
            task = by_rank.get(rank)
            if task is None or not _has_left(task):
                found.append(self._machine(rank, name, task if self.job.state in HOLDING else None))
        return found

    def _machine(self, rank: int, name: str, task: Task | None) -> Machine:
        role, job = self.job.spec.roles[0], self.job
        member = member_name(ROLE, rank)
        details = {"job": job.id, "task": member, "workspace": job.workspace, **self._reasons()}
        if task is not None:
            details["node"] = task.node
        return Machine(
            name=name,
            id=f"{job.id}/{member}",
            backend=BACKEND,
            state=_state(job, task),
            address=task.address if task is not None else "",
            user=job.user,
            type=job.spec.tags.get(TYPE_TAG, ""),
            cpus=max(1, round(role.cpu)),
            memory_mib=role.memory_mib,
            devices=_devices(role.device, task.devices if task is not None else ()),
            spot=job.preemptible,
            owner=job.user,
            created=job.submitted_at,
            started=job.started_at,
            details=details,
        )

    def _reasons(self) -> dict[str, str]:
        told = self.explanation
        if told is None:
            return {"reason": self.job.message} if self.job.message else {}
        words = {"queue": told.sentence, "reason": told.reason, "remedy": told.remedy}
        if told.position is not None:
            words["position"] = str(told.position)
        if told.estimated_start is not None:
            words["estimated_start"] = told.estimated_start.isoformat()
        return {name: text for name, text in words.items() if text}


def place_of(job: str, member: str) -> str:
    """Return the folder of a machine on its node, relative to the home of the node's user."""
    return f"{PLACES}/{job}.{member}"


def gang_of(job: JobDetail) -> MachineJob | None:
    """Return the machine job of a workload; None if the workload holds no machines of ours."""
    name = job.spec.tags.get(NAME_TAG, "")
    if job.kind != KIND or not name:
        return None
    parts = [job.spec.tags.get(f"{NUMBERS_TAG}.{index}", "") for index in range(_numbers_of(job))]
    numbers = _numbers(",".join(parts))
    names = tuple(task_name(name, number) for number in numbers) if numbers else (name,)
    return MachineJob(job, names)


def workload(spec: MachineSpec, names: Sequence[str], *, workspace: str) -> WorkloadSpec:
    """Return the workload to submit for these names, which belong to one job."""
    job = job_of(names[0])
    tags = {NAME_TAG: job or names[0], TYPE_TAG: spec.type[:TAG_LENGTH]}
    if job:
        text = _ranges([parsed.number for name in names if (parsed := parse_task(name))])
        tags |= {f"{NUMBERS_TAG}.{index}": part for index, part in enumerate(_split(text))}
    return WorkloadSpec(
        name=job or names[0],
        command=f'PLACE="{PLACES}/$TRAINYARD_WORKLOAD.$TRAINYARD_TASK"\n{PLACE}',
        workspace=workspace,
        kind=KIND,
        roles=(_role(spec, len(names)),),
        preemptible=spec.spot,
        max_run_seconds=round(spec.max_hours * 3600),
        grace_seconds=GRACE_SECONDS,
        restart=Restart.NEVER,
        tags={name: value for name, value in tags.items() if value},
    )


def key_of(spec: WorkloadSpec, generation: str) -> str:
    """Return the idempotency key, so that two equal requests at once give one job.

    `generation` is the id of the earlier job with these names.
    """
    text = json.dumps([encode(spec), generation], sort_keys=True)
    return f"machines-{hashlib.sha256(text.encode()).hexdigest()}"


def check_fits(spec: MachineSpec, gang: MachineJob, name: str) -> None:
    """Raise ConflictError if the machine of that name does not fit the spec."""
    has, wants = gang.job.spec, _role(spec, 1)
    hint = "Use another name, or release it first: `trainyard kill`."
    if spec.type and spec.type != has.tags.get(TYPE_TAG, ""):
        raise ConflictError(
            f"the machine {name!r} has the type {has.tags.get(TYPE_TAG, '')!r}, not {spec.type!r}", hint=hint
        )
    if (spec.gpus is not None or spec.npus) and wants.devices != has.roles[0].devices:
        raise ConflictError(
            f"the machine {name!r} has {has.roles[0].devices} devices, not {wants.devices}", hint=hint
        )


def _role(spec: MachineSpec, replicas: int) -> RoleSpec:
    """`4c16g` is 4 cores and 16 GiB, `V100` is a type of device; a type of the cloud asks for as many GPUs as it has."""
    shape = _SHAPE.match(spec.type)
    known = TYPES.get(spec.type)
    devices = spec.npus or (spec.gpus if spec.gpus is not None else known.gpus if known else 0)
    device = spec.type if known is None and not shape and devices and _MODEL.match(spec.type) else ""
    return RoleSpec(
        name=ROLE,
        replicas=replicas,
        cpu=float(shape["cpu"]) if shape else 1.0,
        memory_mib=int(shape["memory"]) * 1024 if shape else 0,
        device=device,
        devices=devices,
        labels=dict(spec.labels),
    )


def _has_left(task: Task) -> bool:
    return task.state is TaskState.ENDED and task.exit_code == 0


def _state(job: JobDetail, task: Task | None) -> MachineState:
    if job.desired is Desired.PAUSE:
        return MachineState.STOPPED if job.state in {State.HELD, State.WAITING} else MachineState.STOPPING
    if job.state is not State.RUNNING or task is None:
        return MachineState.PENDING
    by_task = {TaskState.RUNNING: MachineState.RUNNING, TaskState.LOST: MachineState.LOST}
    return by_task.get(task.state, MachineState.PENDING)


def _devices(model: str, indices: Iterable[int]) -> tuple[Device, ...]:
    kind = DeviceKind.NPU if _NPU.search(model) else DeviceKind.GPU
    return tuple(Device(kind, index, model) for index in indices)


def _numbers_of(job: JobDetail) -> int:
    return sum(tag.startswith(f"{NUMBERS_TAG}.") for tag in job.spec.tags)


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 7] → `0-2,7`. The order is kept."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and parts[-1][1] + 1 == number:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _split(text: str) -> list[str]:
    """Parts that fit into a tag each, cut at commas."""
    parts = [""]
    for word in text.split(","):
        if len(parts[-1]) + len(word) + 1 > TAG_LENGTH:
            parts.append("")
        parts[-1] += f",{word}" if parts[-1] else word
    return parts
