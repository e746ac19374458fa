"""A way into tasks that needs no leader: any server goes to the node itself and runs a command beside a task.

It gives no orders and is no link: what may run, and where, stays the leader's. The node's own files decide whether the task
is there and runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard.engines.api import NodeAddress
from trainyard.engines.nodes.agent.wire import NO_TASK, NOT_THERE
from trainyard.engines.nodes.agent_program import MISSING, AgentProgram, root_of
from trainyard.engines.nodes.connect import TransportOf, transport_of
from trainyard.lib.aio import finish, gather_all
from trainyard.lib.errors import NotFoundError, UnreachableError
from trainyard.transport.api import Process, TerminalSize

# The way to a node stays open for so long after the last visit: an ssh connection costs more than what is done over it.
KEEP_SECONDS = 60.0
LOOK_SECONDS = 30.0


@dataclass(eq=False, slots=True)
class _Way:
    """An open way to a node, and how many use it now."""

    program: AgentProgram
    visits: int = 0
    closing: asyncio.TimerHandle | None = None


class NodeExecClient:
    """Runs commands beside tasks. `folder` is where this computer's own node keeps its files."""

    def __init__(
        self, platform_id: str, *, folder: Path | None = None, transport_of: TransportOf = transport_of
    ) -> None:
        self._platform_id = platform_id
        self._folder = folder
        self._transport_of = transport_of
        self._ways: dict[NodeAddress, _Way] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def exec(
        self, address: NodeAddress, attempt_id: str, task: str, command: str, terminal: TerminalSize | None
    ) -> AsyncIterator[Process]:
        """Run a command beside a task; it ends with the block, or with the task."""
        way = self._enter(address)
        try:
            await self._look(way.program, attempt_id, task)
            process = await way.program.spawn("beside", attempt_id, task, command, terminal=terminal)
            try:
                yield process
            finally:
                await finish(process.terminate())
        except UnreachableError:
            if self._ways.get(address) is way:  # what the inventory says of it now may be another thing
                del self._ways[address]
            raise
        finally:
            self._leave(address, way)

    async def aclose(self) -> None:
        """Close all ways."""
        ways, self._ways = list(self._ways.values()), {}
        for way in ways:
            if way.closing is not None:
                way.closing.cancel()
        await gather_all([way.program.transport.aclose() for way in ways])
        await gather_all(self._leaving)

    async def _look(self, program: AgentProgram, attempt_id: str, task: str) -> None:
        """See that the task runs there. Its node may have another version of the program, or none any more."""
        name = program.address.name
        script = program.script("beside", attempt_id, task, ":")
        for is_last in (False, True):
            try:
                done = await program.transport.run(script, timeout=LOOK_SECONDS)
            except TimeoutError as error:
                raise UnreachableError(f"the node {name} did not answer in time") from error
            if done.status == 0:
                return
            if done.status == NO_TASK and NOT_THERE.encode() in done.stderr:
                raise NotFoundError(
                    f"the task {task} does not run on {name} now", hint="Look at its state, and at its log."
                )
            if done.status != MISSING or is_last:
                raise program.failure(done.status, done.stderr)
            await program.put()

    def _enter(self, address: NodeAddress) -> _Way:
        way = self._ways.get(address)
        if way is None:
            root = root_of(address, self._platform_id, self._folder)
            way = self._ways[address] = _Way(AgentProgram(address, root, self._transport_of(address)))
        if way.closing is not None:
            way.closing.cancel()
            way.closing = None
        way.visits += 1
        return way

    def _leave(self, address: NodeAddress, way: _Way) -> None:
        way.visits -= 1
        if way.visits:
            return
        if self._ways.get(address) is way:
            loop = asyncio.get_running_loop()
            way.closing = loop.call_later(KEEP_SECONDS, self._let_go, address, way)
        else:
            self._close(way)

    def _let_go(self, address: NodeAddress, way: _Way) -> None:
        if not way.visits and self._ways.get(address) is way:
            del self._ways[address]
            self._close(way)

    def _close(self, way: _Way) -> None:
        task = asyncio.ensure_future(way.program.transport.aclose())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
