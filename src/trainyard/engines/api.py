"""The seam between deciding and running: values that cross it, and what an engine must do. No engine lives here.

An engine takes whole gangs (a `Launch` has all tasks of one attempt of a workload) and says what it sees. It knows
nothing of the database; who calls it repeats a call until it is answered, and repeating is always harmless.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from trainyard.lib.errors import Error, UnreachableError
from trainyard.transport.api import Process, TerminalSize

# After a node was silent for its `fence_seconds`, it takes at most so long until its tasks have ended by themselves.
FENCE_MARGIN_SECONDS = 15.0


# On nodes of root's, tasks run as users with numbers above this one, which is the group of all of them.
FIRST_TASK_USER = 2_000_000


class NotSentError(UnreachableError):
    """The node does not answer, and nothing of the order was sent to it: it cannot have been taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of the node, or a network storage, that a task sees."""

    source: str  # a path on the node; for another kind, its address
    target: str
    read_only: bool = False
    kind: str = "folder"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a task sees of its node and of the world. None of it where the node cannot: then an event says so."""

    image: str = ""
    username: str = ""  # at the registry of the image
    password: str = field(default="", repr=False)
    mounts: tuple[Mount, ...] = ()
    shared_memory_mib: int = 0
    home: str = ""  # where the task's user lives, as the task sees it
    user: str = ""  # its name, as the task sees it
    uid: int = (
        0  # whom the task runs as on a node that is root's; 0: one user for all whose server does not say
    )
    hosts: Mapping[str, str] = field(default_factory=dict)  # name → address, for /etc/hosts
    images: str = ""  # of the node: "ignore"; "podman", "docker": by this one; else by either
    isolation: str = (
        ""  # closed where the node can; "required": closed; "open": adds mounts, hides nothing; "off"
    )
    hidden: tuple[str, ...] = ()  # folders of the node that no task may see
    processes: int = 4096  # and threads, that the task may have; 0: as many as the node


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another task of the attempt, and where it listens, as one of its tasks sees it."""

    task: str
    names: tuple[str, ...]  # of its host, as the tasks know it
    address: str
    ssh_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is done in a task, inside its view, before its command. The steps are those of the agent's entry.py.

    Texts may hold marks that are filled in there: %host:TASK%, %name:TASK:NAME%, %address:TASK%, %port:TASK:VARIABLE%,
    %path:PATH%, %exports%.
    """

    files: Mapping[str, str] = field(default_factory=dict)  # path, as the task sees it → text
    secret_files: Mapping[str, str] = field(default_factory=dict, repr=False)  # the same, without marks
    env: Mapping[str, str] = field(default_factory=dict)  # more variables, known only when all have met
    peers: tuple[Peer, ...] = ()  # itself included; the first is the one at whose gate the others report
    meets: tuple[str, ...] = ()  # tasks that report here: none begins before all have
    reports: bool = False  # to the first of `peers`, which lets it begin
    waits_for: tuple[str, ...] = ()  # tasks whose ssh has to answer before the command
    ready_seconds: float = 600.0
    barrier_ports: tuple[int, ...] = ()  # the first of these that is free
    barrier_address: str = (
        ""  # only there; empty: at all addresses of the node, and the others come by the first peer's
    )
    token: str = field(
        default="", repr=False
    )  # the key by which tasks of one attempt know each other; it is never sent
    ssh_port: int = 0  # where its own ssh listens; 0: none
    ssh_address: str = ""  # as for the gate
    ssh_key: str = field(default="", repr=False)  # of the whole attempt, as its public key is
    ssh_public_key: str = ""
    host_key: str = field(default="", repr=False)
    host_public_key: str = ""
    code: Mapping[str, str] = field(default_factory=dict)  # url, branch, commit, target, token
    requirements: tuple[str, ...] = ()
    requirements_dir: str = ""
    stands_by: bool = False  # has no command: it serves the others until it is ended


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLaunch:
    """One task of an attempt: where it runs, and what."""

    name: str  # in its workload: worker-0
    role: str
    number: int  # in its role
    rank: int  # in the workload
    node: str
    command: str  # of any length; run by bash where the node has it, else sh
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = (
        ""  # empty: a fresh folder of the task; relative: from the home; made where it is missing
    )
    devices: tuple[int, ...] = ()  # indices of `device_type` on the node; no others are shown to the task
    device_type: str = ""
    cpu_milli: int = 0
    memory_mib: int = 0
    disk_mib: int = 0  # of the node's disk, for its own folder and its log; 0: the platform's default
    ports: Mapping[str, int] = field(
        default_factory=dict
    )  # variable → a port of the node for it, or the next that is free
    view: View | None = None
    entry: Entry | None = None  # None: the command and nothing before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One attempt of a workload, all its tasks."""

    attempt_id: str  # <workload>.<attempt>: letters, digits, '-', '_', '.'
    workload_id: str
    attempt: int
    tasks: tuple[TaskLaunch, ...]
    workspace_id: str = ""
    user: str = ""  # whose it is; told to the tasks
    grace_seconds: float = 30.0  # for what its program leaves behind when it ends by itself
    hidden: tuple[str, ...] = field(default=(), repr=False)  # secrets: stars where its tasks print them

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that it runs on, each once, in the order of the tasks."""
        return tuple(dict.fromkeys(task.node for task in self.tasks))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """A node and the way to it. `backend` is "local", "ssh", or where its machine was bought.

    `host` names an entry of the inventory; `machine` says how its backend reaches a machine that was bought.
    """

    name: str
    backend: str = "local"
    host: str = ""
    machine: tuple[tuple[str, str], ...] = ()
    fence_seconds: float = 0.0  # so long without a server, it ends its tasks by itself; 0: never


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
    boot_id: str
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


Observation = TaskStarted | TaskEnded | TaskNoted | TaskCleared | TaskUnknown | NodeSeen | NodeLost


class LogSink(Protocol):
    """Where the output of tasks goes. Called on the event loop, so it must not wait for anything but a local file."""

    def append(
        self, workload_id: str, attempt: int, task: str, offset: int, data: bytes, time: float
    ) -> None:
        """Keep `data`, which begins at byte `offset` of the task's output. What is there is dropped; a gap is a ConflictError."""
        ...

    def size(self, workload_id: str, attempt: int, task: str) -> int:
        """How many bytes of the task's output were taken so far."""
        ...

    def skip(self, workload_id: str, attempt: int, task: str, offset: int, time: float) -> None:
        """Note that what is missing up to `offset` is lost for good, and go on from there."""
        ...

    def hide(self, attempt_id: str, values: Collection[str]) -> None:
        """Keep stars instead of these, as many, wherever tasks of the attempt print them."""
        ...

    def unhide(self, attempt_id: str) -> None:
        """Nothing more comes of this attempt."""
        ...

    def cleaned(self, attempt_id: str, text: str) -> str:
        """A message about an attempt, without what is hidden of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """What one device did, as its driver says. None: it does not say."""

    index: int
    busy_percent: float | None = None
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    uuid: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)  # by the names of runtime/device_metrics.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a task, or a node, used in the last seconds. Rates are by the second."""

    cpu_cores: float
    read_bytes: float
    written_bytes: float
    received_bytes: float
    sent_bytes: float
    memory_mib: float
    processes: int = 0
    has_own_network: bool = False  # of a task; else what it received and sent is all that its node did
    devices: tuple[DeviceReading, ...] = ()


class Meter(Protocol):
    """Where readings go. Called on the event loop, so it must not wait."""

    def take(
        self, node: str, time: float, own: Reading | None, tasks: Mapping[tuple[str, str], Reading]
    ) -> None:
        """Keep what a node and its tasks, by (attempt_id, task), used until `time`, by the clock of the server."""
        ...


class Engine(Protocol):
    """Runs gangs. One at a time leads: an engine of a lower `epoch` is refused by nodes that know a higher one."""

    async def launch(self, launch: Launch) -> None:
        """Start all tasks; returns when every node has taken its own. Launching twice is launching once.

        UnreachableError names the node that did not answer: repeat, or `end`. ConflictError where the attempt was
        ended before. Other errors are the node's refusal (no room on its disk, a working folder that cannot be).
        What other nodes have taken stays taken: `end` the attempt after an error that is not repeated.
        """
        ...

    async def launch_many(self, launches: Sequence[Launch]) -> dict[str, Error | None]:
        """Launch many, in one message to each node. attempt_id → what went wrong, or None."""
        ...

    async def end(
        self, attempt_id: str, nodes: Iterable[str], *, grace_seconds: float
    ) -> Mapping[str, frozenset[str]]:
        """Ask all processes of the attempt to go; kill them after `grace_seconds`. Returns when the nodes have taken it.

        Ending twice is ending once (a shorter grace wins). An attempt that was never launched is refused from then on.
        The answer names the tasks that each node has: what is not there never ran, never will, and is never
        observed. UnreachableError names the node that did not answer.
        """
        ...

    async def end_many(
        self, endings: Mapping[str, tuple[Iterable[str], float]]
    ) -> dict[str, Mapping[str, frozenset[str]] | Error]:
        """End many, in one message to each node. attempt_id → (nodes, grace) in; what `end` returns or raises out."""
        ...

    async def forget(self, attempt_ids: Iterable[str], nodes: Iterable[str]) -> None:
        """Remove what the nodes keep of these attempts. Only after all tasks are cleared or given up for good."""
        ...

    def is_reachable(self, node: str) -> bool:
        """Whether an order could be sent to the node this moment."""
        ...

    def expect(self, node: str, tasks: Iterable[tuple[str, str]]) -> None:
        """Say which (attempt_id, task) the node was given earlier: what it does not have then is `TaskUnknown`.

        For a new leader, before `add_node`. What this engine launches itself is expected already.
        """
        ...

    def observe(self) -> AsyncIterator[Sequence[Observation]]:
        """What happens, in batches; never ends by itself. One reader.

        Whenever a node is connected, the state of all its tasks is said again, until they are forgotten.
        """
        ...

    async def exec(
        self, attempt_id: str, task: str, node: str, command: str, terminal: TerminalSize | None
    ) -> Process:
        """Run a command beside the task, in its folder with its environment; an empty one is a login shell.

        It ends with the task, or where that has ended by itself and is kept for a look, when it is forgotten.
        NotFoundError where the node does not have the task, or it was told to end.
        """
        ...

    async def add_node(self, address: NodeAddress) -> None:
        """Begin to watch over a node; it is connected in the background. Another address or fence replaces the first."""
        ...

    async def remove_node(self, name: str) -> None:
        """Let go of a node. What runs there runs on, and may be found again; its program stays until it is idle."""
        ...

    async def leave(self) -> None:
        """Tell all nodes that the server goes away on purpose: they keep their tasks, whatever their fence is."""
        ...

    async def aclose(self) -> None:
        """Close all connections. Tasks run on."""
        ...


class ExecClient(Protocol):
    """A way into what runs, for any server, whoever leads. It starts and ends no workload."""

    def exec(
        self, address: NodeAddress, attempt_id: str, task: str, command: str, terminal: TerminalSize | None
    ) -> AbstractAsyncContextManager[Process]:
        """Run a command beside the task, as `Engine.exec` does; it ends with the block, or with the task."""
        ...

    async def aclose(self) -> None:
        """Close all connections. Tasks run on."""
        ...
