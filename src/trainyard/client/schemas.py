"""The REST schemas as frozen dataclasses: one definition for the client, the server's answers and OpenAPI.

Times are RFC 3339 text on the wire and aware datetimes here. How text becomes these is decode.py; what a job is made
of is spec/workload.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from trainyard.spec.workload import Desired, State, TaskState, WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What every error answers with. `fields` names the parts of the request that are wrong, where it is those."""

    code: str
    message: str
    hint: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""  # what exactly is wrong, where there is a word for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as lists show it."""

    id: str
    name: str
    kind: str
    workspace: str  # its name
    workspace_id: str
    user: str  # the name of who submitted it
    state: State
    desired: Desired
    priority: int
    preemptible: bool
    version: int  # also the ETag
    attempt: int  # of starts, from 1; 0: never started
    failures: int
    reason: str  # a code, see the reference of reasons
    message: str
    exit_code: int | None
    replicas: int
    cpu: float  # cores of all replicas together
    memory_mib: int
    devices: int
    device: str
    position: int | None  # in the queue, 1 is next
    estimated_start: datetime | None
    submitted_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    stopped_at: datetime | None  # when the program ended
    ended_at: datetime | None  # when the state became final
    retain_until: datetime | None
    origin: str = ""  # what submitted it: sweep:…, schedule:…, template:…


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail(Job):
    """A job with what its user asked for. Values of variables that are named like secrets are shown as ***."""

    spec: WorkloadSpec
    avoid: tuple[str, ...] = ()  # nodes that failed it, by their own fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One job for every combination of some parameters."""

    id: str
    workspace: str  # its name
    user: str
    submitted_at: datetime
    jobs: int
    states: Mapping[State, int]  # how many jobs are in each
    parameters: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDetail(Sweep):
    """A sweep with its jobs."""

    items: tuple[Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One replica of one attempt of a job."""

    name: str
    role: str
    number: int
    rank: int
    attempt: int
    node: str
    devices: tuple[int, ...]
    state: TaskState
    exit_code: int | None
    message: str
    address: str
    started_at: datetime | None
    ended_at: datetime | None
    log_bytes: int
    exit_reason: str = ""  # one word for how it ended: exited, signalled, out_of_memory, no_peers …


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSeries:
    """One metric of one task, of one device of it, or of a node (whose `task` is empty)."""

    metric: str
    unit: str
    task: str
    attempt: int
    device: int | None
    of: str = "task"  # or node: all that a task's node received or sent, where it has no network of its own
    most: float | None = None  # of a device's memory: all that it has
    points: tuple[tuple[float, ...], ...]  # POSIX seconds, and the mean of the step that begins there


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAnswer:
    """Series, and the seconds between their points."""

    step: int
    series: tuple[MetricSeries, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What was used in a month; what it is not grouped by is empty."""

    job: str = ""
    job_name: str = ""
    workspace: str = ""
    user: str = ""
    device: str = ""
    day: str = ""
    device_hours: float = 0.0
    idle_device_hours: float = 0.0  # of those: in which a device did nothing
    cpu_hours: float = 0.0
    memory_gib_hours: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """What the machines of a pool have cost in a month, by the provider's prices: cost = used + idle + starting."""

    pool: str
    machine_hours: float
    used_cost: float  # while a job had a place there
    idle_cost: float  # while none had
    starting_cost: float  # before the machine was a node
    cost: float
    currency: str
    machine: str = ""  # of one, where the rows are not sums
    day: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseReport:
    """A month."""

    month: str
    currency: str
    booked_at: datetime | None  # when the books were written last
    rows: tuple[Use, ...]
    total: Use
    pools: tuple[PoolUse, ...] = ()  # what the provider bills for machines; whoever uses them pays by `rows`


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """What an hour costs: a device by type, a core, a GiB of memory."""

    currency: str
    devices: Mapping[str, float]
    cpu: float
    memory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a workspace or a user may cost in a month, and has."""

    subject: str  # workspace, user
    name: str
    amount: float
    spent: float
    currency: str
    warn_at: tuple[float, ...]
    action: str  # warn, hold, stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the exit code and the log of a job that failed tell."""

    exit_code: int | None
    meaning: str  # of the exit code
    code: str = ""  # of the cause; empty: the log tells none
    kind: str = ""  # network, image, memory, runtime, resources, configuration, system
    task: str = ""
    line: str = ""  # of its log, that tells it
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job waits or has failed, or what would happen to one that is not submitted yet."""

    state: str
    starts_now: bool
    position: int | None = None
    reason: str = ""
    sentence: str = ""
    remedy: str = ""
    estimated_start: datetime | None = None
    nodes: tuple[str, ...] = ()  # where it would run, or runs
    diagnosis: Diagnosis | None = None  # only of one that has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, with its reason; `seq` only grows, and a follower goes on after it."""

    seq: int
    time: datetime
    subject: str
    subject_id: str
    workspace_id: str | None
    code: str
    message: str
    state: str
    actor: str
    data: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a task's output. Bytes that are no UTF-8 are shown as escapes."""

    task: str
    attempt: int
    offset: int  # of its first byte in the task's output
    time: datetime | None
    text: str


class NodeDesired(StrEnum):
    """What people want of a node."""

    READY = "ready"
    CORDONED = "cordoned"  # nothing new is put there
    DRAINED = "drained"  # and what runs there goes back to the queue
    GONE = "gone"  # it will never come back: what ran there may start elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine that runs tasks."""

    name: str
    engine: str
    pool: str
    desired: NodeDesired
    state: str
    reason: str
    address: Mapping[str, object]
    cpu: float  # cores
    memory_mib: int
    devices: Mapping[str, int]
    simulated: bool
    unhealthy: Mapping[str, tuple[int, ...]]
    labels: Mapping[str, str]
    taints: tuple[str, ...]
    facts: Mapping[str, object]
    tasks: int | None  # that run there, where it was counted
    fence_seconds: int
    options: Mapping[str, object]
    avoid_until: datetime | None
    seen_at: datetime | None
    created_at: datetime
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoin:
    """A machine to take in. `address` says how it is reached: {"backend": "ssh", "host": "gpu1"}."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # read by pydantic; a class variable by intent

    name: str
    address: Mapping[str, object] = field(default_factory=lambda: {"backend": "local"})
    pool: str = "default"
    devices: Mapping[str, int] = field(default_factory=dict)  # declared, for trying things out
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    fence_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """What to change of a node; what is left out stays."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    labels: Mapping[str, str] | None = None
    taints: tuple[str, ...] | None = None
    pool: str | None = None
    devices: Mapping[str, int] | None = None
    unhealthy: Mapping[str, tuple[int, ...]] | None = None  # devices that nobody gets, by type: all of them
    fence_seconds: int | None = None
    options: Mapping[str, object] | None = None  # images, isolation, visible; one that is null goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A team and its quota."""

    id: str
    name: str
    description: str
    group_id: str | None
    quota: Mapping[str, object]
    needs_approval: bool
    max_run_seconds: int
    created_at: datetime
    archived_at: datetime | None
    version: int
    role: str = ""  # of the one who asks


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCreate:
    """A new workspace."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    name: str
    description: str = ""
    group_id: str | None = None
    quota: Mapping[str, object] = field(default_factory=dict)
    needs_approval: bool = False
    max_run_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceChange:
    """What to change of a workspace; what is left out stays."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    description: str | None = None
    group_id: str | None = None
    quota: Mapping[str, object] | None = None
    needs_approval: bool | None = None
    max_run_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A user in a workspace."""

    workspace_id: str
    user_id: str
    user: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A quota above workspaces."""

    id: str
    name: str
    quota: Mapping[str, object]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An account."""

    id: str
    name: str
    display_name: str
    email: str
    is_admin: bool
    is_active: bool
    must_change_password: bool
    created_at: datetime
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """An account that was just made; the password is shown this once."""

    user: User
    password: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What stands for a password in programs. The secret itself is shown once, when it is made."""

    id: str
    user_id: str
    name: str
    scopes: tuple[str, ...]
    kind: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token with its secret, which is shown this once."""

    token: str
    id: str
    scopes: tuple[str, ...]
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAccessKey:
    """An access key for programs that sign; the secret is shown this once."""

    id: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A wish for an account, for membership or for quota, that a person decides."""

    id: str
    kind: str
    name: str
    user_id: str | None
    workspace_id: str | None
    body: Mapping[str, object]
    state: str
    decided_by: str | None
    decided_at: datetime | None
    answer: str
    created_at: datetime
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who changed what, from where."""

    seq: int
    time: datetime
    actor: str
    address: str
    action: str
    subject: str
    workspace_id: str | None
    outcome: str
    data: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the server takes the caller for."""

    user_id: str
    name: str
    is_admin: bool
    scopes: tuple[str, ...]
    roles: Mapping[str, str]  # workspace id → role
    must_change_password: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A place of the quota tree. CPU in thousandths of a core, memory in MiB, devices counted."""

    name: str
    id: str
    kind: str  # cluster, group or workspace
    parent: str | None
    nominal: Mapping[str, float] | None
    limit: Mapping[str, float] | None
    used: Mapping[str, float]
    waiting: int
    running: int
    users: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # what each user holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether the server can serve: `ok`, `degraded` or `failing`, and the code of what is wrong."""

    status: str
    code: str = ""
    database: str
    leader: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Which server answers."""

    version: str
    api: str = "v1"
