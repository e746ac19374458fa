"""What there is to say of a kind of job: its roles, who decides, who runs the command, who meets whom, and what each gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace
from trainyard.spec.workload import CommandOn, RoleSpec, Success, WorkloadSpec


def nothing(_gang: TaskGang, _place: TaskPlace) -> TaskPart:
    """A kind that gives its tasks nothing of its own."""
    return TaskPart()


def on_all(_spec: WorkloadSpec) -> CommandOn:
    """The command runs in every task."""
    return CommandOn.ALL


def on_first(_spec: WorkloadSpec) -> CommandOn:
    """The command runs in the first task; the others serve it."""
    return CommandOn.FIRST


def by_job(gang: TaskGang, place: TaskPlace) -> tuple[str, ...]:
    """Names of a task's host: with the job's id, as pods have them, and without."""
    return (f"{gang.job_id}-{place.name}", place.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """One kind. One that names no roles takes any."""

    name: str
    roles: tuple[str, ...] = ()  # in the order of ranks: whom the others look for comes first
    single: tuple[str, ...] = ()  # roles of which there is one task
    promotes: str = ""  # what the first worker becomes where none of `leaders` was asked for
    adds: RoleSpec | None = None  # a role that it cannot do without
    leaders: tuple[str, ...] = ()  # the first task of the first of these decides, under Success.FIRST
    serving: tuple[str, ...] = ()  # roles whose tasks never end by themselves: nobody waits for that
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # role → roles that run before it
    is_decided_by_first: bool = False
    fails_with_any: bool = True  # whichever task fails, the job has failed
    meets: bool = True  # several tasks begin together
    all_begin: bool = False  # those that do not run the command have something of the kind's to run
    has_ssh: bool = False  # every task can be reached by ssh from the others
    has_own_files: bool = False  # its users' commands name files that only a view of its own can have
    needs_device: bool = False  # who runs the command depends on the type of devices, so that has to be known
    command_on: Callable[[WorkloadSpec], CommandOn] = on_all
    part: Callable[[TaskGang, TaskPlace], TaskPart] = nothing
    names: Callable[[TaskGang, TaskPlace], tuple[str, ...]] = by_job


def success_of(kind: JobKind, spec: WorkloadSpec) -> Success:
    """When the job counts as done: as its user wants it, where its kind leaves that open."""
    return Success.FIRST if kind.is_decided_by_first else spec.success
