"""The kinds of jobs, one module a family: what their roles are, who decides, and what each task is given.

Pure tables and functions. `fit` brings a job into the shape of its kind when it is submitted, so that every door does the
same; `launch/job_launch.py` asks a kind for the parts of an attempt; `jobs/task_events.py` asks who decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Protocol, TypeVar

from trainyard.lib.errors import InvalidError
from trainyard.server.launch.kinds import apulis, mpi, plain, pytorch, ray, tensorflow
from trainyard.server.launch.kinds.gang import JobOwner, TaskGang, TaskPart, TaskPlace
from trainyard.server.launch.kinds.kind import JobKind, success_of
from trainyard.spec.launching import ONE_STARTS_ALL
from trainyard.spec.workload import CommandOn, RoleSpec, Success, WorkloadSpec

KINDS: dict[str, JobKind] = {
    kind.name: kind
    for kind in (
        plain.JOB,
        plain.MACHINES,
        pytorch.PYTORCH,
        tensorflow.TENSORFLOW,
        mpi.MPI,
        pytorch.XGBOOST,
        plain.BATCH,
        plain.ELASTIC_BATCH,
        ray.RAY,
        pytorch.ONEFLOW,
        plain.SLURM,
        plain.DATA_JUICER,
        apulis.REGULAR,
        apulis.DISTRIBUTED,
    )
}
# As forms write them.
_ALSO = {"Regular Job": "RegularJob", "Distributed Job": "PSDistJob", "": "job"}
_BY_LOWER = {name.lower(): name for name in [*KINDS, *_ALSO]}


class _Task(Protocol):
    @property
    def role(self) -> str: ...
    @property
    def number(self) -> int: ...


T = TypeVar("T", bound=_Task)


def find_kind(name: str) -> JobKind:
    """The kind of this name, however it is written; InvalidError names the nearest one."""
    found = KINDS.get(name)
    if found is None:
        known = _BY_LOWER.get(name.lower(), name)
        found = KINDS.get(_ALSO.get(known, known))
    if found is None:
        near = get_close_matches(name.lower(), _BY_LOWER, n=1)
        guess = f"; did you mean {_BY_LOWER[near[0]]}?" if near and near[0] else ""
        raise InvalidError(
            f"There is no kind of job {name[:40]!r}{guess}",
            hint=f"Kinds are {', '.join(KINDS)}.",
        )
    return found


def fit(spec: WorkloadSpec) -> WorkloadSpec:
    """The job in the shape of its kind: roles in order, with those that it needs, and who decides. Fitting twice is once.

    InvalidError where it has roles that its kind does not know, or two of whom there is one.
    """
    kind = find_kind(spec.kind)
    _check_roles(kind, spec)
    if len(spec.roles) == 1 and spec.kind == kind.name and not (kind.promotes or kind.adds or kind.after):
        success = _success(kind, spec)  # most jobs: nothing to do, and nothing to copy
        return spec if spec.success is success else replace(spec, success=success)
    roles = {role.name: role for role in spec.roles}
    if len(roles) < len(spec.roles):
        return spec  # a name twice: whoever checks the roles says so
    worker = roles.get("worker")
    if (
        kind.promotes
        and worker is not None
        and worker.replicas > 0
        and not any(name in roles for name in kind.leaders)
    ):
        roles |= _promoted(worker, kind.promotes)
        if worker.replicas == 1:
            del roles["worker"]
    if kind.adds is not None and kind.adds.name not in roles:
        image = worker.image if worker is not None else ""
        roles[kind.adds.name] = replace(kind.adds, image=image)
    order = {name: place for place, name in enumerate(kind.roles)}
    ordered = sorted(roles.values(), key=lambda role: order.get(role.name, len(order)))
    after = {name: tuple(one for one in wanted if one in roles) for name, wanted in kind.after.items()}
    fitted = replace(
        spec,
        kind=kind.name,
        roles=tuple(
            role if role.after else replace(role, after=after.get(role.name, ())) for role in ordered
        ),
    )
    return replace(fitted, success=_success(kind, fitted))


def _check_roles(kind: JobKind, spec: WorkloadSpec) -> None:
    if not kind.roles:
        return
    for role in spec.roles:
        if role.name not in kind.roles:
            near = get_close_matches(role.name, kind.roles, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            raise InvalidError(
                f"There is no role {role.name[:40]!r} in {kind.name}{guess or '.'}",
                hint=f"Its roles are {', '.join(kind.roles)}.",
            )
        if role.name in kind.single and role.replicas > 1:
            hint = (
                "Ask for more workers instead." if role.name != "worker" else "Choose PSDistJob for several."
            )
            raise InvalidError(f"There is one {role.name} in {kind.name}, not {role.replicas}.", hint=hint)


def _promoted(worker: RoleSpec, role: str) -> dict[str, RoleSpec]:
    least = None if worker.minimum is None else max(0, worker.minimum - 1)  # the first one is among them
    rest = max(1, worker.replicas - 1)
    return {
        role: replace(worker, name=role, replicas=1, minimum=None),
        "worker": replace(worker, replicas=rest, minimum=None if least is None else min(least, rest)),
    }


def _success(kind: JobKind, spec: WorkloadSpec) -> Success:
    where = place_of_command(spec)
    if where is CommandOn.FIRST and sum(role.replicas for role in spec.roles) > 1:
        return Success.FIRST  # the others stand by: they never end
    if where is CommandOn.WORKERS and len(spec.roles) > 1 and not spec.roles[0].command:
        return Success.ALL  # the first stands by
    return success_of(kind, spec)


def place_of_command(spec: WorkloadSpec) -> CommandOn:
    """Which tasks run the command: as the user wants it, else as the launcher needs it, else as the kind has it."""
    if spec.command_on is not CommandOn.BY_KIND:
        return spec.command_on
    if spec.launcher in ONE_STARTS_ALL:
        return CommandOn.FIRST
    return find_kind(spec.kind).command_on(spec)


def runs_command(spec: WorkloadSpec, role: RoleSpec, number: int) -> bool:
    """Whether a task runs the command; a role with a command of its own always runs that."""
    where = place_of_command(spec)
    if role.command or where is CommandOn.ALL:
        return True
    is_first_role = role.name == spec.roles[0].name
    if where is CommandOn.FIRST:
        return is_first_role and number == 0
    return not is_first_role or len(spec.roles) == 1


def has_ssh(spec: WorkloadSpec) -> bool:
    """Whether the tasks reach each other by ssh."""
    return find_kind(spec.kind).has_ssh or spec.launcher in ONE_STARTS_ALL


def meets(spec: WorkloadSpec) -> bool:
    """Whether its tasks, where there are several, begin together."""
    return find_kind(spec.kind).meets or bool(spec.launcher) or any(role.after for role in spec.roles)


def decisive(spec: WorkloadSpec, tasks: Sequence[T]) -> list[T]:
    """The tasks on whose ends it depends whether the job is done, of all in the order of ranks."""
    kind = find_kind(spec.kind)
    if spec.success is Success.FIRST:
        for name in kind.leaders:
            if found := [task for task in tasks if task.role == name]:
                return found[:1]
        return list(tasks[:1])
    roles = {role.name: role for role in spec.roles}
    found = [
        task
        for task in tasks
        if task.role not in kind.serving
        and (task.role not in roles or runs_command(spec, roles[task.role], task.number))
    ]
    return found or list(tasks)


def fatal(spec: WorkloadSpec, tasks: Sequence[T]) -> list[T]:
    """The tasks whose failure is the job's."""
    if find_kind(spec.kind).fails_with_any:
        return list(tasks)
    return decisive(spec, tasks)


def known_kinds() -> Iterable[str]:
    """The names of all kinds."""
    return KINDS


__all__ = [
    "KINDS",
    "JobKind",
    "JobOwner",
    "TaskGang",
    "TaskPart",
    "TaskPlace",
    "decisive",
    "fatal",
    "find_kind",
    "fit",
    "has_ssh",
    "known_kinds",
    "meets",
    "place_of_command",
    "runs_command",
]  # fmt: skip
