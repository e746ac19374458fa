"""What every engine must pass. Shipped, so that whoever writes an engine subclasses it and knows whether it is right.

    class TestMine(EngineContract):
        capabilities = frozenset({TaskExec})
        nodes = ("n1", "n2")

        async def open_engine(self, epoch: int) -> Engine:
            return MyEngine(...)          # each call: another leader over the same nodes

Runs under pytest with `asyncio_mode = auto`. What one engine promises beyond `engines/api.py` is tested beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import ClassVar, TypeVar

from trainyard.engines.api import (
    DeclaredNodes,
    Engine,
    Fences,
    LatePeers,
    Launch,
    NodeDiscovered,
    NodeSeen,
    NodesListed,
    Observation,
    TaskCleared,
    TaskEnded,
    TaskExec,
    TaskLaunch,
    TaskStarted,
    TaskUnknown,
    end_one,
    launch_one,
)
from trainyard.lib.aio import end_task
from trainyard.lib.errors import ConflictError, Error, NotFoundError, UnreachableError
from trainyard.lib.ids import new_id

Seen = TypeVar("Seen")

ALL_CAPABILITIES = (DeclaredNodes, TaskExec, LatePeers, Fences)
WAIT_SECONDS = 60.0


class EngineWatch:
    """One leader: an engine, and all that it has said."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: list[Observation] = []
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self.engine.observe():
            self.seen.extend(batch)
            self._news.set()

    async def see(self, kind: type[Seen], is_it: Callable[[Seen], bool] = lambda _seen: True) -> Seen:
        """The first observation of a kind, waited for."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not (found := [one for one in self.seen if isinstance(one, kind) and is_it(one)]):
                self._news.clear()
                await self._news.wait()
        return found[0]

    async def see_task(self, kind: type[Seen], launch: Launch, task: str = "worker-0") -> Seen:
        """The same of a task."""
        wanted = (launch.attempt_id, task)
        return await self.see(
            kind, lambda one: (getattr(one, "attempt_id", ""), getattr(one, "task", "")) == wanted
        )

    async def see_node(self, kind: type[Seen], node: str) -> Seen:
        """The same of a node."""
        return await self.see(kind, lambda one: getattr(one, "node", "") == node)

    async def close(self) -> None:
        """As a server goes that leaves on purpose."""
        if isinstance(self.engine, Fences):
            await self.engine.leave()
        await self.engine.aclose()
        await end_task(self._reader)


class EngineContract:
    """One test per promise. Each launches attempts of its own, and ends and forgets them."""

    capabilities: ClassVar[frozenset[type]] = frozenset()
    nodes: ClassVar[tuple[str, ...]] = ("a", "b")  # two that run what the tests launch
    keeps_logs: ClassVar[bool] = True  # whether the output of tasks goes to a sink, which `log_of` reads
    ending = "echo said; exit 3"  # a command that ends with 3
    staying = "echo said; sleep 1234"  # one that stays until it is told to go

    async def open_engine(self, epoch: int) -> Engine:
        """A new leader over the same nodes, which knows none of them yet."""
        raise NotImplementedError

    async def add_nodes(self, engine: Engine) -> None:
        """Declare the nodes; nothing to do where the engine discovers them."""

    def log_of(self, workload_id: str, attempt: int, task: str) -> bytes:
        """What the sink was given of a task's output."""
        raise NotImplementedError

    async def let_end(self, launch: Launch) -> None:
        """Have what runs `ending` end now; nothing to do where it does so by itself."""

    # -- gangs

    async def test_all_tasks_start_and_end_with_their_code_and_are_cleared_last(self) -> None:
        """What the leader builds on: started, ended, cleared."""
        async with self._leader() as leader:
            launch = self._gang(self.ending)
            await self._launch(leader, launch)
            for task in launch.tasks:
                await leader.see_task(TaskStarted, launch, task.name)
            await self.let_end(launch)
            for task in launch.tasks:
                ended = await leader.see_task(TaskEnded, launch, task.name)
                await leader.see_task(TaskCleared, launch, task.name)
                _require(ended.exit_code == 3, "the exit code is the command's own")
                _require(not ended.was_told, "it has ended by itself")
                kinds = [type(one) for one in leader.seen if _is_of(one, launch, task.name)]
                order = [kinds.index(kind) for kind in (TaskStarted, TaskEnded, TaskCleared)]
                _require(order == sorted(order), "started, then ended, then cleared")

    async def test_the_log_is_complete_when_a_task_is_cleared(self) -> None:
        """Nothing of it comes later, so the sink may close it."""
        if not self.keeps_logs:
            return
        async with self._leader() as leader:
            launch = self._single(self.ending)
            await self._launch(leader, launch)
            await self.let_end(launch)
            cleared = await leader.see_task(TaskCleared, launch)
            log = self.log_of(launch.workload_id, launch.attempt, "worker-0")
            _require(log == b"said\n", f"the log is what the task has said, not {log!r}")
            _require(cleared.log_bytes == len(log), "its length is told")

    async def test_one_attempt_runs_when_it_is_launched_twice(self) -> None:
        """A leader whose answer was lost simply asks again."""
        async with self._leader() as leader:
            launch = self._gang(self.ending)
            await self._launch(leader, launch)
            await self._launch(leader, launch)
            await self.let_end(launch)
            for task in launch.tasks:
                await leader.see_task(TaskCleared, launch, task.name)
            await self._launch(leader, launch)
            if self.keeps_logs:
                log = self.log_of(launch.workload_id, launch.attempt, "worker-0")
                _require(log == b"said\n", "it has run once")

    async def test_one_launch_that_fails_keeps_no_other_from_starting(self) -> None:
        """Launches of many jobs go together."""
        async with self._leader() as leader:
            good, bad = self._single(self.staying), self._single(self.staying, node="no-such-node")
            self._attempts.append(good)
            answers = await leader.engine.launch([good, bad])
            _require(answers[good.attempt_id] is None, "the good one is launched")
            _require(isinstance(answers[bad.attempt_id], UnreachableError), "nobody reaches that node")
            await leader.see_task(TaskStarted, good)

    async def test_what_is_ended_goes_and_says_that_it_was_told(self) -> None:
        """Its exit code is not its own verdict then."""
        async with self._leader() as leader:
            launch = self._gang(self.staying)
            await self._launch(leader, launch)
            for task in launch.tasks:
                await leader.see_task(TaskStarted, launch, task.name)
            had = await end_one(leader.engine, launch.attempt_id, launch.nodes, grace_seconds=5)
            _require(
                had == {task.node: frozenset({task.name}) for task in launch.tasks},
                "the answer names the tasks that each node has",
            )
            again = await end_one(leader.engine, launch.attempt_id, launch.nodes, grace_seconds=5)
            _require(again == had, "ending twice is ending once")
            for task in launch.tasks:
                ended = await leader.see_task(TaskEnded, launch, task.name)
                await leader.see_task(TaskCleared, launch, task.name)
                _require(ended.was_told, "it was told to go")

    async def test_an_attempt_is_refused_when_it_was_ended_before_its_launch(self) -> None:
        """A launch that comes late, of a leader that is gone, must not run."""
        async with self._leader() as leader:
            launch = self._single(self.ending)
            had = await end_one(leader.engine, launch.attempt_id, launch.nodes, grace_seconds=0)
            _require(not any(had.values()), "there was nothing to end")
            error = (await leader.engine.launch([launch]))[launch.attempt_id]
            _require(isinstance(error, ConflictError), f"the launch is refused, not {error!r}")
            self._attempts.append(launch)

    # -- leaders that come and go

    async def test_a_new_leader_hears_of_what_runs_and_of_what_has_ended_meanwhile(self) -> None:
        """Tasks outlive servers."""
        runs, ends = self._single(self.staying), self._single(self.ending)
        async with self._leader(stays=True) as leader:
            await self._launch(leader, runs)
            await self._launch(leader, ends)
            await leader.see_task(TaskStarted, ends)
            await leader.see_task(TaskStarted, runs)
        await self.let_end(ends)
        async with self._leader(given=[runs, ends]) as leader:
            await leader.see_task(TaskStarted, runs)
            ended = await leader.see_task(TaskEnded, ends)
            await leader.see_task(TaskCleared, ends)
            _require(ended.exit_code == 3, "its end is known")

    async def test_what_a_node_was_given_and_does_not_have_is_unknown(self) -> None:
        """A new leader need not wait for it."""
        never = self._single(self.staying)
        async with self._leader(given=[never]) as leader:
            unknown = await leader.see_task(TaskUnknown, never)
            _require(unknown.node == never.tasks[0].node, "the node says so")

    async def test_nothing_is_heard_of_what_was_forgotten(self) -> None:
        """Its traces are gone."""
        launch, other = self._single(self.ending), self._single(self.staying)
        async with self._leader(stays=True) as leader:
            await self._launch(leader, launch)
            await self._launch(leader, other)
            await self.let_end(launch)
            await leader.see_task(TaskCleared, launch)
            await leader.see_task(TaskStarted, other)
            await leader.engine.forget([launch.attempt_id], launch.nodes)
            await leader.engine.forget([launch.attempt_id], launch.nodes)
            self._attempts.remove(launch)
        async with self._leader(given=[other]) as leader:
            await leader.see_task(TaskStarted, other)
            await leader.see_node(NodeSeen, launch.tasks[0].node)
            heard = [one for one in leader.seen if getattr(one, "attempt_id", "") == launch.attempt_id]
            _require(heard == [], f"nothing is left of it: {heard}")

    async def test_an_older_leader_is_not_obeyed_when_there_is_a_newer_one(self) -> None:
        """It slept through its lease, and must not start what the newer one has given away."""
        async with self._leader() as old, self._leader():
            launch = self._single(self.staying)
            error = (await old.engine.launch([launch]))[launch.attempt_id]
            _require(isinstance(error, Error), "it is refused")

    # -- nodes

    async def test_a_node_is_seen_with_what_it_has_before_it_is_reachable(self) -> None:
        """The scheduler needs to know."""
        async with self._leader() as leader:
            for node in self.nodes:
                seen = await leader.see_node(NodeSeen, node)
                _require(seen.facts.cpu_milli > 0, "it has a processor")
                _require(bool(seen.incarnation), "it can be told from itself after a reboot")
                _require(leader.engine.is_reachable(node), "it is reachable")
            _require(not leader.engine.is_reachable("no-such-node"), "what is not there is not reachable")

    async def test_nodes_that_nobody_declared_are_discovered_and_listed(self) -> None:
        """So that the leader makes rows of them, and knows which have gone."""
        if DeclaredNodes in self.capabilities:
            return
        async with self._leader() as leader:
            listed = await leader.see(NodesListed)
            _require(set(self.nodes) <= listed.nodes, "all are listed")
            for node in self.nodes:
                found = await leader.see_node(NodeDiscovered, node)
                _require(found.engine == listed.engine, "it says whose they are")
                kinds = [type(one) for one in leader.seen if getattr(one, "node", "") == node]
                _require(kinds[0] is NodeDiscovered, "a node is discovered before anything is said of it")

    # -- capabilities

    async def test_it_can_do_what_it_claims_and_no_more(self) -> None:
        """Callers ask by isinstance."""
        async with self._leader() as leader:
            engine: object = leader.engine
            found = {one for one in ALL_CAPABILITIES if isinstance(engine, one)}
            _require(found == self.capabilities, f"it can do {found}")

    async def test_a_command_runs_beside_a_task_and_nowhere_else(self) -> None:
        """People look into what runs."""
        async with self._leader() as leader:
            if not isinstance(leader.engine, TaskExec):
                return
            launch = self._single(self.staying)
            await self._launch(leader, launch)
            await leader.see_task(TaskStarted, launch)
            node = launch.tasks[0].node
            process = await leader.engine.exec(
                launch.attempt_id, "worker-0", node, "echo beside; exit 5", None
            )
            output = b"".join([piece async for piece in process.output()])
            _require(output == b"beside\n", "its output comes")
            _require(await process.wait() == 5, "its exit code comes")
            try:
                await leader.engine.exec("no.1", "worker-0", node, "true", None)
            except NotFoundError:
                return
            raise AssertionError("a command beside no task is refused")

    async def test_peers_are_bound_when_all_have_started(self) -> None:
        """Their addresses are known only then."""
        async with self._leader() as leader:
            if not isinstance(leader.engine, LatePeers):
                return
            launch = self._gang(self.staying)
            await self._launch(leader, launch)
            addresses = {
                task.name: (await leader.see_task(TaskStarted, launch, task.name)).address
                for task in launch.tasks
            }
            _require(all(addresses.values()), "who has started has an address")
            await leader.engine.bind_peers(launch.attempt_id, launch.nodes, addresses)
            await leader.engine.bind_peers(launch.attempt_id, launch.nodes, addresses)
            for node in launch.nodes:
                seen = await leader.see_node(NodeSeen, node)
                _require(seen.facts.binds_peers, "its nodes say that peers come late")

    # -- helpers

    _epoch = 0

    @property
    def _attempts(self) -> list[Launch]:
        """What this test has launched and not forgotten."""
        found: list[Launch] = self.__dict__.setdefault("_launched", [])
        return found

    @asynccontextmanager
    async def _leader(
        self, *, stays: bool = False, given: Iterable[Launch] = ()
    ) -> AsyncIterator[EngineWatch]:
        """A leader whose nodes are connected. `stays`: what it launched runs on when it has gone."""
        self._epoch += 1
        engine = await self.open_engine(self._epoch)
        for launch in given:
            for task in launch.tasks:
                engine.expect(task.node, [(launch.attempt_id, task.name)])
        leader = EngineWatch(engine)
        try:
            await self.add_nodes(engine)
            for node in self.nodes:
                await leader.see_node(NodeSeen, node)
            yield leader
            if not stays:
                await self._clear(leader)
        finally:
            await leader.close()

    async def _clear(self, leader: EngineWatch) -> None:
        """End and forget what this test has launched."""
        launches, self.__dict__["_launched"] = self._attempts, []
        for launch in launches:
            had = await end_one(leader.engine, launch.attempt_id, launch.nodes, grace_seconds=0)
            for tasks in had.values():
                for task in tasks:
                    await leader.see_task(TaskCleared, launch, task)
        for launch in launches:
            await leader.engine.forget([launch.attempt_id], launch.nodes)

    async def _launch(self, leader: EngineWatch, launch: Launch) -> None:
        if launch not in self._attempts:
            self._attempts.append(launch)
        await launch_one(leader.engine, launch)

    def _gang(self, command: str) -> Launch:
        """One task on each node."""
        return _launch_of(command, self.nodes)

    def _single(self, command: str, *, node: str = "") -> Launch:
        return _launch_of(command, [node or self.nodes[0]])


def _launch_of(command: str, nodes: Iterable[str]) -> Launch:
    workload = new_id("contract")
    return Launch(
        attempt_id=f"{workload}.1",
        workload_id=workload,
        attempt=1,
        tasks=tuple(
            TaskLaunch(
                name=f"worker-{number}", role="worker", number=number, rank=number, node=node, command=command
            )
            for number, node in enumerate(nodes)
        ),
    )


def _is_of(seen: Observation, launch: Launch, task: str) -> bool:
    return (getattr(seen, "attempt_id", ""), getattr(seen, "task", "")) == (launch.attempt_id, task)


def _require(is_so: bool, promise: str) -> None:
    if not is_so:
        raise AssertionError(promise)
