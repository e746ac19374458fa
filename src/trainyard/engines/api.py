"""The seam between deciding and running: what every engine does, and what some can do besides. No engine lives here.

An engine runs gangs: a `Launch` (launches.py) has all tasks of one attempt of a workload. It tells what happens by
`Observation`s (observations.py), hands logs to a `LogSink` and, where it measures, readings (usage.py) to a `Meter`. It
knows nothing of the database. Its caller repeats a call until it is answered, and repeating is always harmless.

What only some engines can do is a protocol of its own, asked for by `isinstance`, as the capabilities of backends are.
An engine is right when it passes contract.py; engine_set.py lets several serve one platform; registry.py finds them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from trainyard.engines.launches import FIRST_TASK_USER, Entry, Launch, Mount, Peer, TaskLaunch, View
from trainyard.engines.observations import (
    NodeDiscovered,
    NodeFacts,
    NodeLost,
    NodeSeen,
    NodesListed,
    Observation,
    TaskCleared,
    TaskEnded,
    TaskNoted,
    TaskStarted,
    TaskUnknown,
)
from trainyard.engines.usage import DeviceReading, Reading
from trainyard.lib.errors import Error, UnreachableError
from trainyard.transport.api import Process, TerminalSize

# After a node was silent for its `fence_seconds`, it takes at most so long until its tasks have ended by themselves.
FENCE_MARGIN_SECONDS = 15.0

TaskKey = tuple[str, str]  # attempt_id, task
Endings = Mapping[str, tuple[Iterable[str], float]]  # attempt_id → its nodes, and the grace in seconds
TasksByNode = Mapping[str, frozenset[str]]
# Which of these tasks were ever placed on a node: of those it may speak.
PlacedTasks = Callable[[str, Collection[TaskKey]], Awaitable[Collection[TaskKey]]]


class NotSentError(UnreachableError):
    """The node does not answer, and nothing of the order was sent to it: it cannot have been taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """A node that people or a pool declared, and the way to it. `backend` is "local", "ssh", or where its machine was bought.

    `host` names an entry of the inventory; `machine` says how its backend reaches a machine that was bought.
    """

    name: str
    engine: str = "nodes"
    backend: str = "local"
    host: str = ""
    machine: tuple[tuple[str, str], ...] = ()
    # So long without a server, its tasks end by themselves, by whatever is beside them there; 0: never.
    fence_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What a server gives to each of its engines, for one term of leading."""

    platform_id: str
    sink: LogSink
    epoch: int = 0
    meter: Meter | None = None
    placed: PlacedTasks | None = None
    data: Path | None = None  # the server's own folder
    sample_seconds: float = 10.0
    profile_devices: bool = True
    task_disk_mib: int = 0  # for tasks that name no limit
    disk_reserve_mib: int = 0  # of a node's disk, what tasks leave free


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


class Meter(Protocol):
    """Where readings go. Called on the event loop, so it must not wait."""

    def take(self, node: str, time: float, own: Reading | None, tasks: Mapping[TaskKey, Reading]) -> None:
        """Keep what a node and its tasks used until `time`, by the clock of the server."""
        ...


class Engine(Protocol):
    """Runs gangs. One at a time leads: an engine of a lower `epoch` is refused where a higher one is known."""

    async def launch(self, launches: Sequence[Launch]) -> Mapping[str, Error | None]:
        """Start all tasks of many attempts. attempt_id → what went wrong, or None once its nodes have taken it.

        Launching twice is launching once. UnreachableError: a node did not answer; repeat, or `end`. Every error that is a
        node's has its name in `values["node"]`.
        ConflictError where the attempt was ended before. Other errors are a refusal (no room on a disk, a working
        folder that cannot be). What other nodes have taken stays taken: `end` after an error that is not repeated.
        """
        ...

    async def end(self, endings: Endings) -> Mapping[str, TasksByNode | Error]:
        """Ask all processes of many attempts to go; kill them after the grace. Answers once the nodes have taken it.

        Ending twice is ending once (a shorter grace wins). An attempt that was never launched is refused from then on.
        The answer names the tasks that each node has: what is not there never ran, never will, and is never
        observed. UnreachableError names the node that did not answer.
        """
        ...

    async def forget(self, attempt_ids: Iterable[str], nodes: Iterable[str]) -> None:
        """Remove what is kept of these attempts. Only after all tasks are cleared or given up for good."""
        ...

    def expect(self, node: str, tasks: Iterable[TaskKey]) -> None:
        """Say which tasks the node was given earlier: what is not there then is `TaskUnknown`.

        For a new leader, before the node is added, and before `observe` where the engine discovers its nodes. What this
        engine launches itself is expected already.
        """
        ...

    def is_reachable(self, node: str) -> bool:
        """Whether an order could be sent to the node this moment."""
        ...

    def observe(self) -> AsyncIterator[Sequence[Observation]]:
        """What happens, in batches; never ends by itself. One reader.

        Whenever a node is connected, the state of all its tasks is said again, until they are forgotten. An engine that
        discovers its nodes begins to look for them now.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections. Tasks run on."""
        ...


# -- what some engines can do besides


@runtime_checkable
class DeclaredNodes(Protocol):
    """Its nodes are told to it. An engine without this finds its nodes itself, and says so by `NodeDiscovered`."""

    async def add_node(self, address: NodeAddress) -> None:
        """Begin to watch over a node; it is connected in the background. Another address or fence replaces the first."""
        ...

    async def remove_node(self, name: str) -> None:
        """Let go of a node. What runs there runs on, and may be found again."""
        ...


@runtime_checkable
class TaskExec(Protocol):
    """Commands can be run beside a task."""

    async def exec(
        self, attempt_id: str, task: str, node: str, command: str, terminal: TerminalSize | None
    ) -> Process:
        """Run a command beside the task, in its folder with its environment; an empty one is a login shell.

        It ends with the task, or where that has ended by itself and is kept for a look, when it is forgotten.
        NotFoundError where the node does not have the task, or it was told to end.
        """
        ...


@runtime_checkable
class LatePeers(Protocol):
    """Tasks get their addresses when they start, so their peers come with addresses that are empty.

    Such an engine sets `NodeFacts.binds_peers` of its nodes. The addresses come with `TaskStarted`, and are words of the
    engine's that nobody else reads.
    """

    async def bind_peers(self, attempt_id: str, nodes: Iterable[str], addresses: Mapping[str, str]) -> None:
        """Tell the tasks of an attempt, all of which have started, where each of them is. Twice is once.

        UnreachableError where they cannot be told now: repeat.
        """
        ...


@runtime_checkable
class Fences(Protocol):
    """Tasks end by themselves where no server is heard of for the `fence_seconds` of their node."""

    async def leave(self) -> None:
        """Say that the server goes away on purpose: tasks run on, whatever their fence is."""
        ...


class ExecClient(Protocol):
    """A way into what runs, for any server, whoever leads. It starts and ends no workload."""

    def exec(
        self, address: NodeAddress, attempt_id: str, task: str, command: str, terminal: TerminalSize | None
    ) -> AbstractAsyncContextManager[Process]:
        """Run a command beside the task, as `TaskExec.exec` does; it ends with the block, or with the task."""
        ...

    async def aclose(self) -> None:
        """Close all connections. Tasks run on."""
        ...


async def launch_one(engine: Engine, launch: Launch) -> None:
    """Launch one attempt; raises what went wrong."""
    error = (await engine.launch([launch]))[launch.attempt_id]
    if error is not None:
        raise error


async def end_one(
    engine: Engine, attempt_id: str, nodes: Iterable[str], *, grace_seconds: float
) -> TasksByNode:
    """End one attempt; raises what went wrong."""
    answer = (await engine.end({attempt_id: (nodes, grace_seconds)}))[attempt_id]
    if isinstance(answer, Error):
        raise answer
    return answer


# All that crosses the seam has this one address.
__all__ = [
    "FENCE_MARGIN_SECONDS",
    "FIRST_TASK_USER",
    "DeclaredNodes",
    "DeviceReading",
    "Endings",
    "Engine",
    "EngineContext",
    "Entry",
    "ExecClient",
    "Fences",
    "LatePeers",
    "Launch",
    "LogSink",
    "Meter",
    "Mount",
    "NodeAddress",
    "NodeDiscovered",
    "NodeFacts",
    "NodeLost",
    "NodeSeen",
    "NodesListed",
    "NotSentError",
    "Observation",
    "Peer",
    "PlacedTasks",
    "Reading",
    "TaskCleared",
    "TaskEnded",
    "TaskExec",
    "TaskKey",
    "TaskLaunch",
    "TaskNoted",
    "TaskStarted",
    "TaskUnknown",
    "TasksByNode",
    "View",
    "end_one",
    "launch_one",
]
