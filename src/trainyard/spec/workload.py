"""What a user asks the platform to run, and the states that it passes through. Pure data.

How a document becomes one of these is spec/document.py; who decides and who acts is the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

NO_WORDS: Mapping[str, str] = MappingProxyType({})

# Exit codes after which trying again may help: interrupted, killed, asked to go, and 138 (SIGUSR1), by which a
# program says so itself. All others are the program's own verdict.
RETRIED_EXIT_CODES = (130, 137, 138, 143)


class State(StrEnum):
    """Where a workload is. Only the loops of the server write it."""

    HELD = "held"  # not in the queue: a person has to approve or resume it
    WAITING = "waiting"
    ADMITTED = "admitted"  # has its places, nothing was started yet
    STARTING = "starting"
    RUNNING = "running"
    RETAINED = "retained"  # the program has ended; the places are kept for a look
    FINISHING = "finishing"  # what is left of it is being ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Desired(StrEnum):
    """What people want of a workload. Only services write it."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
# States that hold places on nodes.
HOLDING = frozenset({State.ADMITTED, State.STARTING, State.RUNNING, State.RETAINED, State.FINISHING})

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.HELD: frozenset({State.WAITING, State.CANCELLED}),
        State.WAITING: frozenset({State.ADMITTED, State.HELD, State.CANCELLED, State.FAILED}),
        State.ADMITTED: frozenset({State.STARTING, State.FINISHING}),
        State.STARTING: frozenset({State.RUNNING, State.FINISHING}),
        State.RUNNING: frozenset({State.RETAINED, State.FINISHING}),
        State.RETAINED: frozenset({State.FINISHING}),
        # Back to WAITING: preempted, a node was lost, or it is tried again.
        State.FINISHING: frozenset(
            {State.WAITING, State.HELD, State.SUCCEEDED, State.FAILED, State.CANCELLED}
        ),
        State.SUCCEEDED: frozenset(),
        State.FAILED: frozenset(),
        State.CANCELLED: frozenset(),
    }
)


class TaskState(StrEnum):
    """Where one task of one attempt is, as its node said last."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"  # its node does not answer, or does not know it any more


class Restart(StrEnum):
    """When a workload whose program failed goes back to the queue, as long as it has retries left."""

    NEVER = "never"
    ON_FAILURE = "on_failure"
    EXIT_CODE = "exit_code"  # only after one of RETRIED_EXIT_CODES
    ALWAYS = "always"


class Retain(StrEnum):
    """After which end the places are kept for a look."""

    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    ON_SUCCESS = "on_success"


class Success(StrEnum):
    """When a workload of several tasks counts as done."""

    ALL = "all"  # every task has ended with 0
    FIRST = "first"  # the first task of the first role decides; the others are ended then


class Launcher(StrEnum):
    """Who turns the command into one process for each device."""

    NONE = ""  # the command does it itself
    OWN = "own"
    TORCHRUN = "torchrun"
    MPIRUN = "mpirun"
    HOROVODRUN = "horovodrun"


class CommandOn(StrEnum):
    """Which tasks of a job with several roles run the command; the others stand by for them."""

    BY_KIND = ""  # as the kind of job has it: mostly all
    ALL = "all"
    FIRST = "first"  # the first task of the first role
    WORKERS = "workers"  # all roles but the first


class Condition(StrEnum):
    """How a job that another one waits for has to end."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSpec:
    """A repository that is checked out before the command."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # read by pydantic; a class variable by intent

    source: str = ""  # id or name of a code source of the workspace; or
    url: str = ""
    branch: str = ""
    commit: str = ""
    target: str = ""  # empty: a folder of the repository's name in the working folder


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSpec:
    """A storage of the workspace, or an address of one, and where tasks see it."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    source: str  # id or name of a storage, or an address such as nas://host/path
    target: str = ""  # empty: the storage's own
    path: str = ""  # only this folder of it
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedSpec:
    """A job that has to end first."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    job: str
    condition: Condition = Condition.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSpec:
    """A secret of the user or the workspace, and where tasks find it."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    name: str
    variable: str = ""  # empty: of the secret's own name, where it has no file
    file: str = ""  # an absolute path, as tasks see it


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """Replicas of one shape."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # read by pydantic; a class variable by intent

    name: str = "worker"
    replicas: int = 1
    minimum: int | None = None  # below `replicas`: how many are enough to start
    command: str = ""  # empty: the workload's
    cpu: float = 1.0  # cores
    memory_mib: int = 0
    shared_memory_mib: int = 0
    disk_mib: int = 0  # of the node's disk, for each task's own folder and log; 0: the platform's default
    device: str = ""  # type; empty where the cluster has only one
    devices: int = 0
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)  # that the node must carry
    nodes: tuple[str, ...] = ()  # only these, by name
    tolerations: tuple[str, ...] = ()  # "key" or "key=value"
    after: tuple[str, ...] = ()  # roles whose tasks have to run before these are started


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A job as its user wrote it. Validated at the border, then frozen."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    name: str
    command: str = ""
    workspace: str = ""  # empty: the user's only one
    kind: str = "job"  # or a kind of the compatible doors: PyTorchJob, TFJob …
    roles: tuple[RoleSpec, ...] = (RoleSpec(),)
    working_dir: str = ""  # empty: a fresh folder of the task
    env: Mapping[str, str] = field(default_factory=dict)
    priority: int = 5  # 1 to 9, 9 first
    preemptible: bool = False
    max_run_seconds: int = 0  # of each start, but one to grow goes on with what is left; 0: no limit
    grace_seconds: int = 30  # between being asked to go and being killed
    restart: Restart = Restart.EXIT_CODE
    max_retries: int = 0
    success: Success = Success.ALL
    retain_seconds: int = 0
    retain: Retain = Retain.ALWAYS
    tags: Mapping[str, str] = field(default_factory=dict)
    needs_approval: bool = False
    command_on: CommandOn = CommandOn.BY_KIND
    launcher: Launcher = Launcher.NONE
    processes: int = 0  # of one task, for the launcher; 0: one for each device
    ready_seconds: int = 600  # after which a job whose tasks do not reach each other has failed
    hang_seconds: int = (
        0  # without output and without use of devices, after which it counts as hung; 0: never
    )
    grow_seconds: int = (
        0  # with fewer replicas than it wants, after which it starts anew with more where it can; 0: never
    )
    code: CodeSpec | None = None
    mounts: tuple[MountSpec, ...] = ()
    requirements: tuple[str, ...] = ()  # Python packages that are installed before the command
    requirements_dir: str = ""  # a folder with requirements.txt
    after: tuple[NeedSpec, ...] = ()
    secrets: tuple[SecretSpec, ...] = ()  # resolved at every start, for the job's owner


_BARE = RoleSpec()


def tasks_of(spec: WorkloadSpec) -> list[tuple[RoleSpec, int]]:
    """Every replica with its role, in order; the first is the one that others look for."""
    return [(role, index) for role in spec.roles for index in range(role.replicas)]


def role_of(spec: WorkloadSpec, name: str) -> RoleSpec:
    """The role of this name; a bare one, with nothing of its own, where there is none."""
    return next((role for role in spec.roles if role.name == name), _BARE)


def task_name(role: str, index: int) -> str:
    """The name of one task inside its workload, as people see it and type it: worker-0."""
    return f"{role}-{index}"
