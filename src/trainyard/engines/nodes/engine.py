"""The engine of nodes: gangs onto machines that are reached over a transport, one link to each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainyard.engines.api import (
    Endings,
    EngineContext,
    ExecClient,
    Launch,
    LogSink,
    Meter,
    NodeAddress,
    Observation,
    PlacedTasks,
    TaskLaunch,
    TasksByNode,
)
from trainyard.engines.nodes import frame_checks
from trainyard.engines.nodes.agent_program import AgentProgram, root_of
from trainyard.engines.nodes.connect import TransportOf, transport_of
from trainyard.engines.nodes.exec_client import NodeExecClient
from trainyard.engines.nodes.frame_checks import Key
from trainyard.engines.nodes.node_link import NONSENSE, LinkTimeouts, NodeLink
from trainyard.engines.nodes.sandbox_paths import view_on
from trainyard.lib.aio import gather_all
from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    Error,
    InvalidError,
    NotFoundError,
    UnreachableError,
)
from trainyard.transport.api import Process, TerminalSize

BATCH = 64  # attempts in one frame: enough to share its cost, few enough to see the first ones start early
BACKLOG = 20_000  # observations that nobody has read yet; then nodes wait

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}\Z")
_VARIABLE = re.compile(r"[^\0=]+\Z")
_NPU = re.compile(r"(?i)ascend|npu|\b[39]10")
_REFUSALS: Mapping[str, type[Error]] = {"conflict": ConflictError, "capacity": CapacityError}


class NodeEngine:
    """Engine for nodes with an agent of ours: it has every capability but LatePeers."""

    def __init__(
        self,
        platform_id: str,
        sink: LogSink,
        *,
        epoch: int = 0,
        data: Path | None = None,
        transport_of: TransportOf = transport_of,
        patience: LinkTimeouts | None = None,
        meter: Meter | None = None,
        can_profile: bool = True,
        task_disk_mib: int = 0,
        disk_reserve_mib: int = 0,
        placed: PlacedTasks | None = None,
    ) -> None:
        """`data`: the server's folder, beside which this computer's own node keeps its files, and which no task may see.

        `task_disk_mib`: of a node's disk, for tasks that name no limit. `disk_reserve_mib`: of it, what tasks leave free.

        `placed` says which tasks were ever placed on a node; it may speak of those, and of what this engine launched or was
        told to expect there. Who keeps no record gives None: then nodes are believed, as is right where all are one's own.
        """
        self._placed = placed or _believe
        self._task_disk_mib = task_disk_mib
        self._disk_reserve_mib = disk_reserve_mib
        self._meter = meter
        self._can_profile = can_profile
        self._platform_id = platform_id
        self._sink = sink
        self._epoch = epoch
        self._data = data
        self._transport_of = transport_of
        self._patience = patience or LinkTimeouts()
        self._links: dict[str, NodeLink] = {}
        self._expected: dict[str, set[tuple[str, str]]] = {}
        self._unread: list[Observation] = []
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    @classmethod
    def from_context(cls, context: EngineContext) -> NodeEngine:
        """The engine of a server that leads."""
        return cls(
            context.platform_id,
            context.sink,
            epoch=context.epoch,
            data=context.data,
            patience=LinkTimeouts(sample=context.sample_seconds),
            meter=context.meter,
            can_profile=context.profile_devices,
            task_disk_mib=context.task_disk_mib,
            disk_reserve_mib=context.disk_reserve_mib,
            placed=context.placed,
        )

    @classmethod
    def exec_client(cls, context: EngineContext) -> ExecClient:
        """The way into tasks of a server that may not lead."""
        return NodeExecClient(context.platform_id, folder=own_folder(context.data))

    async def launch(self, launches: Sequence[Launch]) -> Mapping[str, Error | None]:
        """Start gangs, in one message to each node."""
        results: dict[str, Error | None] = {}
        by_node: dict[str, list[tuple[Launch, dict[str, Any]]]] = {}
        for launch in launches:
            try:
                _check(launch)
            except InvalidError as error:
                results[launch.attempt_id] = error
                continue
            results[launch.attempt_id] = None
            if launch.hidden:
                self._sink.hide(launch.attempt_id, launch.hidden)
            for node in launch.nodes:
                by_node.setdefault(node, []).append((launch, self._order(launch, node)))
        batches = [
            (node, orders[begin : begin + BATCH])
            for node, orders in by_node.items()
            for begin in range(0, len(orders), BATCH)
        ]
        answers = await gather_all([self._launch_on(node, orders) for node, orders in batches])
        for (node, orders), answer in zip(batches, answers, strict=True):
            for launch, _order_of_it in orders:
                failed = _result(answer, launch.attempt_id)
                if failed is not None:
                    failed.values = {**failed.values, "node": node}
                results[launch.attempt_id] = results[launch.attempt_id] or failed
        return results

    async def _launch_on(
        self, node: str, orders: Sequence[tuple[Launch, dict[str, Any]]]
    ) -> Mapping[str, Error | None]:
        link = self._link(node)
        for launch, _ in orders:
            for task in launch.tasks:
                if task.node == node:
                    link.reports.launched((launch.attempt_id, task.name))
        answer = await link.ask("launch", launches=[order for _, order in orders])
        found: dict[str, Error | None] = {}
        for launch, _ in orders:
            refusal = _refusal(node, answer, launch.attempt_id)
            if refusal is None:
                link.reports.expected |= {(launch.attempt_id, t.name) for t in launch.tasks if t.node == node}
                found[launch.attempt_id] = None
            else:
                code, message = refusal
                said = self._sink.cleaned(launch.attempt_id, message)
                found[launch.attempt_id] = _REFUSALS[code](f"the node {node} refuses: {said}")
        return found

    async def end(self, endings: Endings) -> Mapping[str, TasksByNode | Error]:
        """End gangs, in one message to each node."""
        by_node: dict[str, list[list[Any]]] = {}
        for attempt_id, (nodes, grace) in endings.items():
            for node in dict.fromkeys(nodes):
                by_node.setdefault(node, []).append([attempt_id, grace])
        answers = await gather_all([self._ask(node, "end", attempts=each) for node, each in by_node.items()])
        had: dict[str, dict[str, frozenset[str]]] = {attempt_id: {} for attempt_id in endings}
        failed: dict[str, Error] = {}
        for (node, each), answer in zip(by_node.items(), answers, strict=True):
            for attempt_id, _ in each:
                if isinstance(answer, Error):
                    failed[attempt_id] = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    try:
                        had[attempt_id][node] = frame_checks.names(answer["results"][attempt_id])
                    except NONSENSE:
                        failed[attempt_id] = _nonsense(node)
        return {attempt_id: failed.get(attempt_id, tasks) for attempt_id, tasks in had.items()}

    async def forget(self, attempt_ids: Iterable[str], nodes: Iterable[str]) -> None:
        """Remove what nodes keep of attempts; a node that does not answer is an UnreachableError."""
        attempts = list(attempt_ids)
        names = list(dict.fromkeys(nodes))
        answers = await gather_all([self._forget_on(node, attempts) for node in names])
        left: set[str] = set()
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            left |= answer
        for attempt in attempts:
            if attempt not in left:
                self._sink.unhide(attempt)

    async def _forget_on(self, node: str, attempts: Sequence[str]) -> set[str]:
        """The attempts that are left there: the node has more of their logs, and tells of them again when all has come."""
        link = self._link(node)
        left = {attempt for attempt in attempts if link.reports.has_more(attempt)}
        gone = [attempt for attempt in attempts if attempt not in left]
        for begin in range(
            0, max(1, len(gone)), BATCH
        ):  # asked even of none: who does not answer is an error
            batch = gone[begin : begin + BATCH]
            await link.ask("forget", attempts=batch)
            link.reports.forget(batch)
        return left

    def is_reachable(self, node: str) -> bool:
        """Whether an order could be sent to the node this moment."""
        return node in self._links and self._links[node].is_ready

    def expect(self, node: str, tasks: Iterable[tuple[str, str]]) -> None:
        """Say what a node was given earlier."""
        expected = set(tasks)
        self._expected.setdefault(node, set()).update(expected)
        if node in self._links:
            self._links[node].reports.expected |= expected

    async def observe(self) -> AsyncIterator[Sequence[Observation]]:
        """What happens, in batches."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            batch, self._unread = self._unread, []
            self._has_room.set()
            if batch:
                yield batch

    async def _report(self, observations: Sequence[Observation]) -> None:
        self._unread += observations
        self._has_news.set()
        if len(self._unread) > BACKLOG:
            self._has_room.clear()
            await self._has_room.wait()

    async def exec(
        self, attempt_id: str, task: str, node: str, command: str, terminal: TerminalSize | None
    ) -> Process:
        """Run a command beside a task."""
        link = self._link(node)
        if not link.reports.can_enter((attempt_id, task)):
            raise NotFoundError(
                f"the task {task} does not run on {node} now", hint="Look at its state, and at its log."
            )
        return await link.beside(attempt_id, task, command, terminal)

    async def add_node(self, address: NodeAddress) -> None:
        """Begin to watch over a node, or take its new address."""
        known = self._links.get(address.name)
        if known is not None:
            before = known.address
            if before == address:
                return
            if (before.backend, before.host) == (address.backend, address.host):
                await known.greet(address)
                return
            await self.remove_node(address.name)
        root = root_of(address, self._platform_id, own_folder(self._data))
        self._links[address.name] = NodeLink(
            AgentProgram(address, root, self._transport_of(address)),
            mark=self._platform_id,
            epoch=self._epoch,
            sink=self._sink,
            report=self._report,
            patience=self._patience,
            placed=self._placed,
            expected=self._expected.get(address.name, ()),
            meter=self._meter,
            can_profile=self._can_profile,
            disk_reserve_mib=self._disk_reserve_mib,
        )

    async def remove_node(self, name: str) -> None:
        """Let go of a node; its agent goes too where it has nothing to keep."""
        link = self._links.pop(name, None)
        if link is not None:
            await link.dismiss()
            await link.aclose()

    async def leave(self) -> None:
        """Say goodbye to all nodes that answer."""
        for answer in await gather_all([link.leave() for link in self._links.values()]):
            if isinstance(answer, BaseException) and not isinstance(answer, UnreachableError):
                raise answer

    async def aclose(self) -> None:
        """Close all connections."""
        links, self._links = list(self._links.values()), {}
        await gather_all([link.aclose() for link in links])

    def _order(self, launch: Launch, node: str) -> dict[str, Any]:
        address = self._links[node].address if node in self._links else NodeAddress(name=node, backend="")
        return {
            "attempt": launch.attempt_id,
            "workload": launch.workload_id,
            "number": launch.attempt,
            "grace": launch.grace_seconds,
            "tasks": [
                {
                    "name": task.name,
                    "command": task.command,
                    "working_dir": task.working_dir,
                    "env": {**task.env, **_variables(launch, task)},
                    "cpu_milli": task.cpu_milli,
                    "memory_mib": task.memory_mib,
                    "disk_mib": task.disk_mib or self._task_disk_mib,
                    "ports": dict(task.ports),
                    "view": view_on(task.view, address, self._data) if task.view else None,
                    "entry": asdict(task.entry) if task.entry else None,
                }
                for task in launch.tasks
                if task.node == node
            ],
        }

    async def _ask(self, node: str, name: str, **fields: Any) -> dict[str, Any]:
        return await self._link(node).ask(name, **fields)

    def _link(self, node: str) -> NodeLink:
        with suppress(KeyError):
            return self._links[node]
        raise UnreachableError(f"the node {node} is not one of this platform", hint="Add it again.")


def own_folder(data: Path | None) -> Path | None:
    """Where a node that is the server's own computer keeps its files."""
    return None if data is None else data / "local"


async def _believe(_node: str, tasks: Collection[Key]) -> Collection[Key]:
    return tasks


def _nonsense(node: str) -> UnreachableError:
    return UnreachableError(
        f"the node {node} answers with nonsense", hint="Look at the node; its program is not ours."
    )


def _refusal(node: str, answer: Mapping[str, Any], attempt_id: str) -> tuple[str, str] | None:
    """Why a node does not take a launch."""
    try:
        refusal = frame_checks.refusal_of(answer["results"].get(attempt_id))
    except NONSENSE as error:
        raise _nonsense(node) from error
    if refusal is not None and refusal[0] not in _REFUSALS:
        raise _nonsense(node)
    return refusal


def _result(answer: Mapping[str, Error | None] | BaseException, attempt_id: str) -> Error | None:
    if isinstance(answer, Error):
        return answer
    if isinstance(answer, BaseException):
        raise answer
    return answer[attempt_id]


def _check(launch: Launch) -> None:
    """InvalidError where a name or a text could not be one on a node."""
    for name in (launch.attempt_id, *(task.name for task in launch.tasks)):
        if not _NAME.match(name):
            raise InvalidError(f"{name!r} cannot be the name of an attempt or a task")
    for task in launch.tasks:
        if "\0" in task.command or "\0" in task.working_dir:
            raise InvalidError(f"the command or the working folder of {task.name} holds a NUL character")
        for name, value in task.env.items():
            if not _VARIABLE.match(name) or "\0" in value:
                raise InvalidError(f"the variable {name!r} of {task.name} cannot be in an environment")


def _variables(launch: Launch, task: TaskLaunch) -> dict[str, str]:
    """What a task may know of itself, and its devices and no others."""
    devices = ",".join(map(str, task.devices))
    is_npu = bool(_NPU.search(task.device_type))
    return {
        "TRAINYARD_WORKLOAD": launch.workload_id,
        "TRAINYARD_ATTEMPT": str(launch.attempt),
        "TRAINYARD_WORKSPACE": launch.workspace_id,
        "TRAINYARD_USER": launch.user,
        "TRAINYARD_TASK": task.name,
        "TRAINYARD_ROLE": task.role,
        "TRAINYARD_NUMBER": str(task.number),
        "TRAINYARD_RANK": str(task.rank),
        "TRAINYARD_NODE": task.node,
        "TRAINYARD_DEVICES": devices,
        "TRAINYARD_CPU_MILLI": str(task.cpu_milli),
        "TRAINYARD_MEMORY_MIB": str(task.memory_mib),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "" if is_npu else devices,
        "ASCEND_RT_VISIBLE_DEVICES": devices if is_npu else "",
    }
