"""What an engine is asked to run: one attempt of a workload, with all its tasks. Plain values; no engine lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# On nodes of root's, tasks run as users with numbers above this one, which is the group of all of them.
FIRST_TASK_USER = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of the node, or a network storage, that a task sees."""

    source: str  # a path on the node; relative: below the folder of the platform's files there; of another kind: an address
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
    images: str = ""  # how the node runs images, in the words of its engine
    isolation: str = (
        ""  # closed where the node can; "required": closed; "open": adds mounts, hides nothing; "off"
    )
    processes: int = 4096  # and threads, that the task may have; 0: as many as the node


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another task of the attempt, and where it listens, as one of its tasks sees it."""

    task: str
    names: tuple[str, ...]  # of its host, as the tasks know it
    address: str  # empty: known when it has started, see LatePeers
    ssh_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is done in a task, inside its view, before its command.

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
