"""A server's REST application in this process, on a database of its own. No loops run: tests say what happened."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from trainyard.client import Client
from trainyard.engines.nodes.exec_client import NodeExecClient
from trainyard.lib.clock import SystemClock
from trainyard.server.api.application import create_api
from trainyard.server.api.dlc.dispatch import DlcDispatch
from trainyard.server.logs.log_files import LogStore
from trainyard.server.people.first_start import FirstAdmin, ensure_admin
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workload_steps import Step
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.services import Services
from trainyard.server.settings import ServerSettings
from trainyard.server.store import upgrade
from trainyard.server.store.commits import Commits
from trainyard.server.store.database import Database
from trainyard.server.store.jobs import workloads
from trainyard.server.store.jobs.workload_steps import advance_many
from trainyard.server.wakeups import EVENTS, Wakeups
from trainyard.spec.workload import State, TaskState

URL = "http://platform.test"


class Rig:
    """One server without loops, and the hands that do what loops would."""

    def __init__(self, folder: Path, *, token: str = "", **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.settings = replace(ServerSettings(data=folder), sign_in_attempts=1000, **settings)
        self.clock = SystemClock()
        self.wakeups = Wakeups()
        self.db = Database(self.settings.database_url)
        upgrade.ensure(self.db)
        self.admin = ensure_admin(self.db, self.clock) or FirstAdmin("admin", "", token)
        self.logs = LogStore(folder / "logs", limit_bytes=64 << 20)
        self.services = Services(self.db, self.clock, self.wakeups, settings=self.settings)
        self.commits = Commits(self.db)
        self.engine: Any = None
        exec_client = NodeExecClient("p-test")
        self.app = create_api(
            self.services, self.logs, lambda: self.engine, self.settings, exec_client, self.commits
        )
        self.doors = DlcDispatch(self.app, self.app.state.parts)  # with that of the vendor's clients

    def close(self) -> None:
        self.commits.close()
        self.logs.close()
        self.services.close()
        self.db.close()

    def client(self, token: str | None = None) -> Client:
        return Client(
            URL,
            self.admin.token if token is None else token,
            transport=httpx2.ASGITransport(app=self.app, raise_app_exceptions=False),
        )

    def http(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        given = self.admin.token if token is None else token
        if given:
            headers["Authorization"] = f"Bearer {given}"
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url=f"{URL}/api/v1", headers=headers)

    def vendor_http(self) -> httpx2.AsyncClient:
        """A client of all doors, without a token: that of the vendor's clients asks for signatures."""
        transport = httpx2.ASGITransport(app=self.doors, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url=URL)

    # -- what loops do

    def advance(self, job: str, *states: State, **changes: Any) -> WorkloadRecord:
        """Bring a job through states, as the loops would."""

        def work(connection: Any) -> WorkloadRecord:
            record = workloads.load(connection, job)
            for state in states:
                given = dict(changes) if state is states[-1] else {}
                if state is State.FINISHING:
                    given.setdefault("ending", states[-1])
                step = Step(record=record, to=state, changes=given)
                record = advance_many(connection, [step], now=time.time())[0]
            return record

        record = self.db.write_now(work)
        self.wakeups.wake(EVENTS)
        return record

    def start(self, job: str, *names: str, node: str = "local") -> WorkloadRecord:
        """A job runs, with these tasks."""
        record = self.advance(job, State.ADMITTED, State.STARTING, State.RUNNING)
        tasks = [
            TaskRecord(
                workload_id=job,
                attempt=record.attempt,
                name=name,
                role=name.rpartition("-")[0],
                number=int(name.rpartition("-")[2]),
                rank=rank,
                node=node,
                state=TaskState.RUNNING,
            )
            for rank, name in enumerate(names or ("worker-0",))
        ]
        self.db.write_now(lambda c: workloads.insert_tasks(c, tasks))
        return record

    def finish(self, job: str, state: State = State.SUCCEEDED, **changes: Any) -> WorkloadRecord:
        """A job ends."""
        return self.advance(job, State.FINISHING, state, **changes)

    def print(self, job: str, task: str, data: bytes, *, attempt: int = 1, at: float | None = None) -> None:
        """A task prints something."""
        offset = self.logs.size(job, attempt, task)
        self.logs.append(job, attempt, task, offset, data, at or time.time())


@contextlib.contextmanager
def serving() -> Iterator[Callable[[Any], str]]:
    """Real uvicorn on loopback, in a thread with a loop of its own; the address."""
    running: list[tuple[uvicorn.Server, threading.Thread, socket.socket]] = []

    def start(app: Any) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            app,
            http="httptools",
            loop="uvloop",
            ws="websockets-sansio",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        running.append((server, thread, listener))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    try:
        yield start
    finally:
        for server, thread, listener in running:
            server.should_exit = True
            thread.join(timeout=10)
            listener.close()
