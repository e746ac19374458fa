"""An engine whose nodes are in memory: they outlive the leader, answer late or not at all, and say things twice.

It stands in where a test turns the leader's loop thousands of times; the engine of real nodes is tested by itself.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.engines.api import (
    Endings,
    Launch,
    NodeAddress,
    NodeDiscovered,
    NodeFacts,
    NodeLost,
    NodeSeen,
    NodesListed,
    NotSentError,
    Observation,
    TaskCleared,
    TaskEnded,
    TasksByNode,
    TaskStarted,
    TaskUnknown,
)
from trainyard.lib.errors import ConflictError, Error, UnreachableError


@dataclass
class FakeTask:
    attempt_id: str
    name: str
    command: str
    exit_code: int | None = None
    is_cleared: bool = False
    ended: float = 0.0
    was_told: bool = False
    since: float = field(default_factory=time.monotonic)


@dataclass
class FakeNode:
    name: str
    boot: str = "boot-1"
    is_cut: bool = False
    tasks: dict[tuple[str, str], FakeTask] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    lost: set[tuple[str, str]] = field(
        default_factory=set
    )  # ran when it was started anew; their folders tell


class World:
    """The nodes and what ever ran on them, whoever leads."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: dict[str, FakeNode] = {}
        self.random = random.Random(seed)
        self.ran: dict[str, list[str]] = {}  # workload → attempts that have started a process
        self.completed: dict[str, list[str]] = {}  # workload → attempts that ended by themselves, with 0
        self.sizes: dict[str, int] = {}  # attempt → tasks
        self.launched: dict[str, Launch] = {}
        self.graces: dict[str, list[float]] = {}  # attempt → what it was given whenever it was told to go
        self.engine: BareEngine | None = None
        self.loses_answers = True

    def node(self, name: str) -> FakeNode:
        return self.nodes.setdefault(name, FakeNode(name))

    def live(self, workload: str) -> set[str]:
        return {
            task.attempt_id
            for node in self.nodes.values()
            for task in node.tasks.values()
            if task.exit_code is None and task.attempt_id.rpartition(".")[0] == workload
        }

    def finish_task(self, node: FakeNode, task: FakeTask, code: int, *, was_told: bool = False) -> None:
        task.exit_code = code
        task.was_told = was_told
        task.ended = time.time()
        self.tell(
            node, TaskEnded(task.attempt_id, task.name, code, 0, "", task.ended, was_told=task.was_told)
        )
        task.is_cleared = True
        self.tell(node, TaskCleared(task.attempt_id, task.name, 0))

    def step(self) -> None:
        """Let one running task end by itself: its command is the code it ends with."""
        running = [
            (node, task)
            for node in self.nodes.values()
            for task in node.tasks.values()
            if task.exit_code is None
        ]
        if running:
            node, task = self.random.choice(running)
            self.finish_task(node, task, int(task.command))
            mates = [
                one
                for other in self.nodes.values()
                for one in other.tasks.values()
                if one.attempt_id == task.attempt_id
            ]
            if len(mates) == self.sizes[task.attempt_id] and all(
                one.exit_code == 0 and not one.was_told for one in mates
            ):
                self.completed.setdefault(task.attempt_id.rpartition(".")[0], []).append(task.attempt_id)

    def finish(self, workload: str) -> None:
        """Let all of a workload end by itself."""
        for node in self.nodes.values():
            for task in list(node.tasks.values()):
                if task.exit_code is None and task.attempt_id.rpartition(".")[0] == workload:
                    self.finish_task(node, task, int(task.command))

    def tell(self, node: FakeNode, *seen: Observation) -> None:
        if self.engine is not None and not node.is_cut:
            self.engine.say(*seen)

    def cut(self, name: str) -> None:
        self.node(name).is_cut = True
        if self.engine is not None:
            self.engine.say(NodeLost(name, f"Node {name} does not answer."))

    def mend(self, name: str) -> None:
        node = self.node(name)
        node.is_cut = False
        if self.engine is not None:
            self.engine.report(name)

    def reboot(self, name: str) -> None:
        node = self.node(name)
        node.boot += "+"
        for key in [key for key, task in node.tasks.items() if task.exit_code is None]:
            del node.tasks[key]  # what has ended has left its files
            node.lost.add(key)
        self.mend(name)


class BareEngine:
    """One leader's way to the world: what every engine has, and no more."""

    binds_peers = False

    def __init__(self, world: World, *, cpu: int = 4000) -> None:
        self.world = world
        self.cpu = cpu
        self._known: set[str] = set()
        self._expected: dict[str, set[tuple[str, str]]] = {}
        self._queue: asyncio.Queue[Observation] = asyncio.Queue()
        world.engine = self

    def say(self, *seen: Observation) -> None:
        for one in seen:
            self._queue.put_nowait(one)
            if self.world.random.random() < 0.2:
                self._queue.put_nowait(one)  # nodes may repeat themselves

    def address_of(self, attempt_id: str, task: str) -> str:
        """Where a task is, in words of the engine's."""
        return "127.0.0.1"

    def report(self, name: str) -> None:
        node = self.world.node(name)
        if name not in self._known or node.is_cut:
            return
        for attempt, task in self._expected.get(name, set()) - node.tasks.keys():
            self.say(TaskUnknown(attempt, task, name, "It was started anew."))
        for task in node.tasks.values():
            ran = time.monotonic() - task.since
            address = self.address_of(task.attempt_id, task.name)
            self.say(TaskStarted(task.attempt_id, task.name, 0.0, address, ran))
            if task.exit_code is not None:
                self.say(
                    TaskEnded(
                        task.attempt_id, task.name, task.exit_code, 0, "", task.ended, was_told=task.was_told
                    )
                )
            if task.is_cleared:
                self.say(TaskCleared(task.attempt_id, task.name, 0))
        facts = NodeFacts(cpu_milli=self.cpu, memory_mib=4096, binds_peers=self.binds_peers)
        self.say(NodeSeen(name, node.boot, facts))

    async def launch(self, launches: Sequence[Launch]) -> Mapping[str, Error | None]:
        await asyncio.sleep(0)
        answers = {one.attempt_id: self._launch(one) for one in launches}
        for one in launches:
            if (
                self.world.loses_answers and self.world.random.random() < 0.05
            ):  # taken, and the answer is lost
                answers[one.attempt_id] = UnreachableError(
                    f"Node {one.tasks[0].node} did not answer in time.", values={"node": one.tasks[0].node}
                )
        return answers

    def _launch(self, launch: Launch) -> Error | None:
        self.world.sizes[launch.attempt_id] = len(launch.tasks)
        self.world.launched[launch.attempt_id] = launch
        for task in launch.tasks:
            node = self.world.node(task.node)
            if task.node not in self._known or node.is_cut or self.world.engine is not self:
                return NotSentError(f"Node {task.node} does not answer.", values={"node": task.node})
            if launch.attempt_id in node.refused:
                return ConflictError(f"{launch.attempt_id} was ended before.")
            key = (launch.attempt_id, task.name)
            if key in node.tasks:
                continue
            if key in node.lost:
                self.say(TaskUnknown(launch.attempt_id, task.name, node.name, "It was started anew."))
                continue
            others = self.world.live(launch.workload_id) - {launch.attempt_id}
            assert not others, f"{launch.attempt_id} was started while {others} run"
            node.tasks[key] = FakeTask(launch.attempt_id, task.name, task.command)
            self._expected.setdefault(task.node, set()).add(key)
            attempts = self.world.ran.setdefault(launch.workload_id, [])
            if launch.attempt_id not in attempts:
                attempts.append(launch.attempt_id)
            address = self.address_of(launch.attempt_id, task.name)
            self.world.tell(node, TaskStarted(launch.attempt_id, task.name, 1.0, address))
        return None

    async def end(self, endings: Endings) -> Mapping[str, TasksByNode | Error]:
        await asyncio.sleep(0)
        for attempt, (_, grace) in endings.items():
            self.world.graces.setdefault(attempt, []).append(grace)
        return {attempt: self._end(attempt, nodes) for attempt, (nodes, _) in endings.items()}

    def _end(self, attempt: str, names: Iterable[str]) -> Mapping[str, frozenset[str]] | Error:
        found: dict[str, frozenset[str]] = {}
        for name in names:
            node = self.world.node(name)
            if node.is_cut or self.world.engine is not self:
                return UnreachableError(f"Node {name} does not answer.")
            node.refused.add(attempt)
            mine = [task for task in node.tasks.values() if task.attempt_id == attempt]
            found[name] = frozenset(task.name for task in mine)
            for task in mine:
                if task.exit_code is None:
                    self.world.finish_task(node, task, self.world.random.choice([0, 143]), was_told=True)
        return found

    async def forget(self, attempt_ids: Iterable[str], nodes: Iterable[str]) -> None:
        await asyncio.sleep(0)
        gone = set(attempt_ids)
        for name in nodes:
            node = self.world.node(name)
            if node.is_cut or self.world.engine is not self:
                raise UnreachableError(f"Node {name} does not answer.")
            for key in [key for key in node.tasks if key[0] in gone]:
                del node.tasks[key]
                self._expected.get(name, set()).discard(key)

    def is_reachable(self, node: str) -> bool:
        return node in self._known and not self.world.node(node).is_cut and self.world.engine is self

    def expect(self, node: str, tasks: Iterable[tuple[str, str]]) -> None:
        self._expected.setdefault(node, set()).update(tasks)

    async def observe(self) -> AsyncIterator[Sequence[Observation]]:
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty() and self.world.random.random() < 0.8:
                batch.append(self._queue.get_nowait())
            yield batch

    async def aclose(self) -> None:
        return None


class WorldEngine(BareEngine):
    """One whose nodes are declared, as those of agents are."""

    async def add_node(self, address: NodeAddress) -> None:
        self._known.add(address.name)
        if self.world.node(address.name).is_cut:
            self.say(NodeLost(address.name, f"Node {address.name} does not answer."))
        else:
            self.report(address.name)

    async def remove_node(self, name: str) -> None:
        self._known.discard(name)


class ClusterEngine(BareEngine):
    """One that discovers its nodes, and whose tasks have addresses only when they have started, as those of a cluster."""

    name = "cluster"
    binds_peers = True

    def __init__(self, world: World, *, cpu: int = 4000) -> None:
        super().__init__(world, cpu=cpu)
        self.bound: dict[str, dict[str, str]] = {}

    async def observe(self) -> AsyncIterator[Sequence[Observation]]:
        self.list_nodes()
        async for batch in super().observe():
            yield batch

    def list_nodes(self) -> None:
        """Say which nodes there are, as after a list of the cluster's."""
        for name in self.world.nodes.keys() - self._known:
            self._known.add(name)
            self.say(NodeDiscovered(name, self.name))
            asyncio.get_running_loop().call_soon(
                self.report, name
            )  # when a new leader has said what it expects
        self.say(NodesListed(self.name, frozenset(self.world.nodes)))

    def address_of(self, attempt_id: str, task: str) -> str:
        return f"pod:{attempt_id}/{task}"

    async def bind_peers(self, attempt_id: str, nodes: Iterable[str], addresses: Mapping[str, str]) -> None:
        self.bound[attempt_id] = dict(addresses)
