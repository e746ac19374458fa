"""What an engine says that happened: to nodes, and to tasks. Plain values; no engine lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.spec.exit_reasons import ExitReason


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node said of itself when it was connected. Zero and empty mean: not found out."""

    cpu_milli: int = 0
    memory_mib: int = 0
    disk_free_mib: int = 0  # where its tasks and their logs live
    disk_total_mib: int = 0
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # type: indices
    device_errors: tuple[str, ...] = ()  # what a driver said instead of an answer
    device_ips: Mapping[str, str] = field(default_factory=dict)  # of NPUs in their own network, by index
    address: str = ""  # where other nodes reach it
    clock_skew_seconds: float = 0.0  # how far its clock is ahead of ours
    python: str = ""
    kernel: str = ""
    os: str = ""
    user: str = ""  # whom its tasks run as
    agent: str = ""  # version of the program on it
    containers: str = ""  # what runs images there: podman or docker
    isolation: str = ""  # why it cannot keep tasks apart; empty: it can
    refusal: str = ""  # why it takes no tasks now: its disk is full
    notices: tuple[str, ...] = ()  # for its operator: folders of tasks that could not be read or removed
    labels: Mapping[str, str] = field(default_factory=dict)  # that its engine knows; those of people win
    taints: tuple[str, ...] = ()  # likewise, beside those of people
    binds_peers: bool = False  # its tasks get their addresses when they start: see LatePeers


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """The task's program runs."""

    attempt_id: str
    task: str
    time: float
    address: str  # of its node, for the other tasks
    ran_seconds: float = (
        0.0  # so far, by the node's clock that nobody sets; `time` is by the one that people set
    )


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """The task's program has ended; what it left behind may still run. A signal n gives exit code 128 + n."""

    attempt_id: str
    task: str
    exit_code: int
    signal: int  # 0: none
    message: str  # a sentence where there is more to say than the code
    time: float
    reason: ExitReason = ExitReason.EXITED
    is_fenced: bool = False  # it was ended because no server was heard of
    was_told: bool = False  # it was asked to end before it had: its exit code is not its own verdict
    ran_seconds: float | None = (
        None  # by a clock of the node that nobody sets; None: nobody was there to count
    )


@dataclass(frozen=True, slots=True)
class TaskNoted:
    """Something about the task that its user should know: its image is being fetched, its node cannot keep it apart."""

    attempt_id: str
    task: str
    code: str  # of an event
    message: str
    time: float


@dataclass(frozen=True, slots=True)
class TaskCleared:
    """No process of the task is left, and its whole log is with the sink. Nothing comes after it."""

    attempt_id: str
    task: str
    log_bytes: int


@dataclass(frozen=True, slots=True)
class TaskUnknown:
    """The node answers and does not have the task: it was started anew since, or its files are gone."""

    attempt_id: str
    task: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The node is connected; what it knew of its tasks has been reported before this."""

    node: str
    incarnation: str  # another one after it was started anew: nothing that ran before runs then
    facts: NodeFacts


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The node does not answer. Its tasks may well run on."""

    node: str
    reason: str  # a sentence
    hint: str = ""
    is_refused: bool = (
        False  # it answers, but cannot be a node: no python3, no rights. Trying again needs a person
    )


@dataclass(frozen=True, slots=True)
class NodeDiscovered:
    """The engine has found a node that nobody declared. What it is, whether it answers, and how that changes comes after this."""

    node: str
    engine: str
    pool: str = "default"


@dataclass(frozen=True, slots=True)
class NodesListed:
    """All nodes that an engine has found. Those that it had found before and are not among them are gone for good."""

    engine: str
    nodes: frozenset[str]


Observation = (
    TaskStarted
    | TaskEnded
    | TaskNoted
    | TaskCleared
    | TaskUnknown
    | NodeSeen
    | NodeLost
    | NodeDiscovered
    | NodesListed
)
