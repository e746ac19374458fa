"""Several engines as one: what concerns a node goes to the engine that it belongs to, and what all of them say comes as one stream.

A gang lies on the nodes of one engine. An engine that has no place here is that of nodes which nobody can reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from trainyard.engines.api import (
    DeclaredNodes,
    Endings,
    Engine,
    ExecClient,
    Fences,
    LatePeers,
    Launch,
    NodeAddress,
    NodeDiscovered,
    NotSentError,
    Observation,
    TaskExec,
    TaskKey,
    TasksByNode,
)
from trainyard.lib.aio import end_task, gather_all
from trainyard.lib.errors import Error, InvalidError, UnsupportedError
from trainyard.transport.api import Process, TerminalSize


class EngineSet:
    """All engines of a platform, by name: an Engine itself, with every capability. It refuses what the engine of a node lacks."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = dict(engines)
        self._names: dict[str, str] = {}  # node → its engine
        self._expected: dict[str, list[TaskKey]] = {}  # of nodes whose engine is not known yet

    # -- every engine

    async def launch(self, launches: Sequence[Launch]) -> Mapping[str, Error | None]:
        """Start gangs, each by the engine of its nodes."""
        if (only := self._only()) is not None:
            return await only.launch(launches)
        results: dict[str, Error | None] = {}
        shares: dict[str, list[Launch]] = {}
        for launch in launches:
            try:
                shares.setdefault(self._name_of_gang(launch), []).append(launch)
            except Error as error:
                results[launch.attempt_id] = error
        answers = await gather_all([self._engines[name].launch(share) for name, share in shares.items()])
        for (_, share), answer in zip(shares.items(), answers, strict=True):
            results |= _answers(answer, [launch.attempt_id for launch in share])
        return results

    async def end(self, endings: Endings) -> Mapping[str, TasksByNode | Error]:
        """End attempts on their nodes, whichever engine these belong to."""
        if (only := self._only()) is not None:
            return await only.end(endings)
        results: dict[str, TasksByNode | Error] = {attempt: {} for attempt in endings}
        shares: dict[str, dict[str, tuple[list[str], float]]] = {}
        for attempt, (nodes, grace) in endings.items():
            for node in nodes:
                name = self._names.get(node)
                if name is None:
                    results[attempt] = _stranger(node)
                else:
                    share = shares.setdefault(name, {})
                    share.setdefault(attempt, ([], grace))[0].append(node)
        answers = await gather_all([self._engines[name].end(share) for name, share in shares.items()])
        for (_, share), answer in zip(shares.items(), answers, strict=True):
            for attempt, found in _answers(answer, list(share)).items():
                results[attempt] = _both(results[attempt], found)
        return results

    async def forget(self, attempt_ids: Iterable[str], nodes: Iterable[str]) -> None:
        """Remove what is kept of attempts; one engine that does not answer keeps no other from doing so."""
        attempts = list(attempt_ids)
        if (only := self._only()) is not None:
            await only.forget(attempts, nodes)
            return
        shares: dict[str, list[str]] = {}
        for node in nodes:
            shares.setdefault(self._name_of(node), []).append(node)
        for answer in await gather_all(
            [self._engines[name].forget(attempts, share) for name, share in shares.items()]
        ):
            if isinstance(answer, BaseException):
                raise answer

    def expect(self, node: str, tasks: Iterable[TaskKey]) -> None:
        """Say what a node was given earlier; kept until it is known whose node it is."""
        name = self._names.get(node)
        if name is None:
            self._expected.setdefault(node, []).extend(tasks)
        else:
            self._engines[name].expect(node, tasks)

    def is_reachable(self, node: str) -> bool:
        """Whether an order could be sent to the node this moment."""
        name = self._names.get(node)
        return name is not None and self._engines[name].is_reachable(node)

    async def observe(self) -> AsyncIterator[Sequence[Observation]]:
        """What all of them say. Batches of one engine stay in their order; an engine whose batch is not read yet waits."""
        streams = [(name, aiter(engine.observe())) for name, engine in self._engines.items()]
        if len(streams) == 1:  # without a task in between
            async for batch in streams[0][1]:
                self._note(streams[0][0], batch)
                yield batch
        coming = {asyncio.ensure_future(anext(stream)): (name, stream) for name, stream in streams}
        try:
            while coming:
                done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    name, stream = coming.pop(task)
                    batch = task.result()
                    coming[asyncio.ensure_future(anext(stream))] = name, stream
                    self._note(name, batch)
                    yield batch
        finally:
            for task in coming:
                await end_task(task)

    async def aclose(self) -> None:
        """Close all connections of all engines."""
        for answer in await gather_all([engine.aclose() for engine in self._engines.values()]):
            if isinstance(answer, BaseException):
                raise answer

    # -- what some can do besides

    async def add_node(self, address: NodeAddress) -> None:
        """Say whose node it is; an engine that finds its nodes itself needs to know no more."""
        engine = self._engines.get(address.engine)
        if engine is None:
            raise UnsupportedError(
                f"the node {address.name} needs the engine {address.engine!r}, which this server does not have",
                hint="Install the engine's package for the server, and start it again.",
            )
        self._belongs(address.name, address.engine)
        if isinstance(engine, DeclaredNodes):
            await engine.add_node(address)

    async def remove_node(self, name: str) -> None:
        """Let go of a node."""
        engine = self._engines.get(self._names.pop(name, ""))
        if engine is not None and isinstance(engine, DeclaredNodes):
            await engine.remove_node(name)

    async def exec(
        self, attempt_id: str, task: str, node: str, command: str, terminal: TerminalSize | None
    ) -> Process:
        """Run a command beside a task; UnsupportedError where its engine cannot."""
        name = self._name_of(node)
        engine = self._engines[name]
        if not isinstance(engine, TaskExec):
            raise _no_exec(name)
        return await engine.exec(attempt_id, task, node, command, terminal)

    async def bind_peers(self, attempt_id: str, nodes: Iterable[str], addresses: Mapping[str, str]) -> None:
        """Tell tasks where their peers are; an engine whose tasks know before they start is told nothing."""
        names = list(nodes)
        engine = self._engines[self._name_of(names[0])]
        if isinstance(engine, LatePeers):
            await engine.bind_peers(attempt_id, names, addresses)

    async def leave(self) -> None:
        """Say goodbye to all whose tasks would end without a server."""
        engines = [engine for engine in self._engines.values() if isinstance(engine, Fences)]
        for answer in await gather_all([engine.leave() for engine in engines]):
            if isinstance(answer, BaseException):
                raise answer

    # -- whose node it is

    def _only(self) -> Engine | None:
        return next(iter(self._engines.values())) if len(self._engines) == 1 else None

    def _note(self, name: str, batch: Sequence[Observation]) -> None:
        for seen in batch:
            if type(seen) is NodeDiscovered:
                self._belongs(seen.node, name)

    def _belongs(self, node: str, name: str) -> None:
        self._names.setdefault(node, name)  # a name is one node's: the engine that had it first keeps it
        expected = self._expected.pop(node, None)
        if expected:
            self._engines[self._names[node]].expect(node, expected)

    def _name_of(self, node: str) -> str:
        name = self._names.get(node)
        if name is None:
            raise _stranger(node)
        return name

    def _name_of_gang(self, launch: Launch) -> str:
        names = {self._name_of(node) for node in launch.nodes}
        if len(names) > 1:
            raise InvalidError(
                f"the tasks of {launch.attempt_id} are on nodes of several engines: {', '.join(sorted(names))}",
                hint="Choose nodes of one of them, by a pool or a label.",
            )
        return names.pop()


class ExecClientSet:
    """The ways into tasks of all engines, for a server that does not lead."""

    def __init__(self, clients: Mapping[str, ExecClient]) -> None:
        self._clients = dict(clients)

    def exec(
        self, address: NodeAddress, attempt_id: str, task: str, command: str, terminal: TerminalSize | None
    ) -> AbstractAsyncContextManager[Process]:
        """Run a command beside a task, by the way of its node's engine."""
        client = self._clients.get(address.engine)
        if client is None:
            raise _no_exec(address.engine)
        return client.exec(address, attempt_id, task, command, terminal)

    async def aclose(self) -> None:
        """Close all connections of all engines."""
        await gather_all([client.aclose() for client in self._clients.values()])


Answer = TypeVar("Answer")


def _answers(
    answer: Mapping[str, Answer | Error] | BaseException, attempts: Sequence[str]
) -> Mapping[str, Answer | Error]:
    """What one engine has answered for these attempts. An engine that fails as a whole has answered that for each."""
    if isinstance(answer, Error):
        return dict.fromkeys(attempts, answer)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _both(one: TasksByNode | Error, other: TasksByNode | Error) -> TasksByNode | Error:
    if isinstance(one, Error):
        return one
    return other if isinstance(other, Error) else {**one, **other}


def _stranger(node: str) -> NotSentError:
    return NotSentError(
        f"the node {node} is not one of this platform", hint="Add it again.", values={"node": node}
    )


def _no_exec(engine: str) -> UnsupportedError:
    return UnsupportedError(
        f"commands cannot be run beside tasks of the engine {engine!r}",
        hint="Look at the task's log instead.",
    )
