"""What a task of an attempt gets in all: of its kind, of its devices, and of the launcher that starts its processes. Pure."""

from __future__ import annotations

from dataclasses import replace

from trainyard.server.launch.kinds import ascend, find_kind, has_ssh, mpi, pytorch
from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace, path
from trainyard.spec import rendezvous
from trainyard.spec.launching import ONE_STARTS_ALL


def part_of(gang: TaskGang, place: TaskPlace) -> TaskPart:
    """All of it; what a kind says goes before what its devices and its launcher say."""
    kind = find_kind(gang.spec.kind)
    found = kind.part(gang, place)
    if kind.meets or gang.spec.launcher:
        found = joined(_common(gang, place), found)
    if gang.spec.launcher and "WORLD_SIZE" not in found.env:
        found = joined(pytorch.meeting(*_among_trainers(gang, place), pytorch.TORCH_PORT), found)
    if has_ssh(gang.spec) and not kind.has_ssh:
        late, files = mpi.launching(gang)
        found = joined(TaskPart(late=late, files=files), found)
    if place.devices and ascend.is_npu(place.device_type):
        found = joined(ascend.part(gang, place), found)
    return found


def joined(one: TaskPart, other: TaskPart) -> TaskPart:
    """Both; the second goes before the first."""
    return TaskPart(
        env={**one.env, **other.env},
        late={**one.late, **other.late},
        ports={**one.ports, **other.ports},
        files={**one.files, **other.files},
        command=other.command or one.command,
    )


def _among_trainers(gang: TaskGang, place: TaskPlace) -> tuple[TaskGang, TaskPlace]:
    """Those that a launcher in every task starts processes in, and the task among them: not who stands by, such as ps0."""
    if not gang.spec.launcher or gang.spec.launcher in ONE_STARTS_ALL or not place.runs:
        return gang, place
    trainers, by_name = gang.once("trainers", lambda: _trainers(gang))
    return trainers, by_name[place.name]


def _trainers(gang: TaskGang) -> tuple[TaskGang, dict[str, TaskPlace]]:
    runs = [one for one in gang.places if one.runs]
    places = tuple(replace(one, rank=rank) for rank, one in enumerate(runs))
    return replace(gang, places=places), {one.name: one for one in places}


def _common(gang: TaskGang, place: TaskPlace) -> TaskPart:
    """What launchers go by: see spec/launching.py."""
    trainers, one = _among_trainers(gang, place)
    env = {
        **rendezvous.launcher_variables(len(trainers.places), one.rank),
        "TRAINYARD_NUM_DEVICES": str(len(place.devices)),
    }
    if not has_ssh(gang.spec):
        return TaskPart(env=env)
    slots, listed = gang.once("slots", lambda: _slots(gang))
    return TaskPart(
        env={**env, "TRAINYARD_NUM_SLOTS": str(slots)},
        late={"TRAINYARD_HOSTFILE": path(mpi.HOSTFILE), "TRAINYARD_HOROVOD_HOSTS": listed},
    )


def _slots(gang: TaskGang) -> tuple[int, str]:
    hosts = mpi.host_slots(gang)
    return sum(one.slots for one in hosts), rendezvous.horovod_hosts(hosts)
