"""Commands that people run beside tasks, from whichever server they came to.

The server that leads has connections to all nodes and uses those. Another goes to the node itself: what it finds there,
and not who leads, decides whether the task runs. Who may do so is jobs/service.py's to say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from trainyard.engines.api import Engine, ExecClient, TaskExec
from trainyard.lib.aio import finish
from trainyard.server.cluster.node_addresses import address_of
from trainyard.server.jobs.turn_changes import attempt_id
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.store.cluster import nodes
from trainyard.server.store.database import Database
from trainyard.transport.api import Process, TerminalSize


class Terminals:
    """The ways from one server into tasks."""

    def __init__(self, db: Database, engine: Callable[[], Engine | None], exec_client: ExecClient) -> None:
        self._db = db
        self._engine = engine
        self._exec_client = exec_client

    @asynccontextmanager
    async def run(
        self, task: TaskRecord, command: str, terminal: TerminalSize | None
    ) -> AsyncIterator[Process]:
        """Run a command beside a task, in its folder with its environment; an empty one is a login shell.

        It ends with the block, or with the task. NotFoundError where the task does not run.
        """
        name = attempt_id(task.workload_id, task.attempt)
        engine = self._engine()
        # One that has just begun to lead does not know yet what runs: then the node is asked, too.
        if engine is not None and engine.is_reachable(task.node) and isinstance(engine, TaskExec):
            process = await engine.exec(name, task.name, task.node, command, terminal)
            try:
                yield process
            finally:
                await finish(process.terminate())
            return
        record = await self._db.read(lambda c: nodes.load(c, task.node))
        async with self._exec_client.exec(address_of(record), name, task.name, command, terminal) as process:
            yield process
