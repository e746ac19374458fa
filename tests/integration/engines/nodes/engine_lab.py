"""A lab for tests of the engine of nodes: real agents, real processes, a sink in memory, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from trainyard.engines.api import (
    Entry,
    Launch,
    NodeAddress,
    NodeSeen,
    Observation,
    PlacedTasks,
    TaskCleared,
    TaskEnded,
    TaskLaunch,
    TaskStarted,
    TaskUnknown,
    View,
    end_one,
    launch_one,
)
from trainyard.engines.nodes.engine import NodeEngine
from trainyard.engines.nodes.node_link import LinkTimeouts
from trainyard.lib.errors import ConflictError, Error
from trainyard.server.logs.log_files import LogStore
from trainyard.transport.api import Transport
from trainyard.transport.local import LocalTransport

QUICK = LinkTimeouts(
    ping=0.2, silence=8.0, lost=1.5, first_backoff=0.02, last_backoff=0.2, refused_backoff=0.5, refresh=1000.0
)
WAIT = 30.0  # on a machine that is busy with other tests


class OpenSink:
    """What of a sink hides secrets, for one that knows none."""

    def hide(self, attempt_id: str, values: Collection[str]) -> None:
        assert not values

    def unhide(self, attempt_id: str) -> None:
        pass

    def cleaned(self, attempt_id: str, text: str) -> str:
        return text


class MemorySink(OpenSink):
    """Keeps logs in memory, and is as strict as the real one."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int, str], bytearray] = {}

    def append(
        self, workload_id: str, attempt: int, task: str, offset: int, data: bytes, time: float
    ) -> None:
        log = self.logs.setdefault((workload_id, attempt, task), bytearray())
        if offset > len(log):
            raise ConflictError("a gap")
        log += data[len(log) - offset :]

    def size(self, workload_id: str, attempt: int, task: str) -> int:
        return len(self.logs.get((workload_id, attempt, task), b""))

    def skip(self, workload_id: str, attempt: int, task: str, offset: int, time: float) -> None:
        log = self.logs.setdefault((workload_id, attempt, task), bytearray())
        log += b"?" * (offset - len(log))


class Watched:
    """An engine, all that it said, and a way to wait for more."""

    def __init__(self, engine: NodeEngine, sink: MemorySink | LogStore) -> None:
        self.engine = engine
        self.sink = sink
        self.seen: list[Observation] = []
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self.engine.observe():
            self.seen.extend(batch)
            self._news.set()

    async def until(self, is_so: Callable[[], object], what: str = "") -> None:
        """Wait until something holds; looked at after every observation, and now and then."""
        try:
            async with asyncio.timeout(WAIT):
                while not is_so():
                    self._news.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"never {what or is_so}; seen: {self.seen[-20:]}") from None

    async def see(self, kind: type, attempt: str = "", task: str = "") -> Observation:
        """The first observation of a kind, waited for."""
        await self.until(lambda: self.find(kind, attempt, task), f"{kind.__name__} of {attempt} {task}")
        return self.find(kind, attempt, task)[0]

    def find(self, kind: type, attempt: str = "", task: str = "") -> list[Observation]:
        return [
            each
            for each in self.seen
            if isinstance(each, kind)
            and (not attempt or getattr(each, "attempt_id", "") == attempt)
            and (not task or getattr(each, "task", "") == task)
        ]

    async def ended(self, attempt: str, task: str = "worker-0") -> TaskEnded:
        found = await self.see(TaskEnded, attempt, task)
        assert isinstance(found, TaskEnded)
        await self.see(TaskCleared, attempt, task)
        return found

    def log(self, attempt: str, task: str = "worker-0") -> bytes:
        workload, _, number = attempt.rpartition(".")
        return bytes(self.sink.logs.get((workload, int(number), task), b""))

    async def close(self, *, leaves: bool) -> None:
        if leaves:
            await self.engine.leave()
        await self.engine.aclose()
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader


def launch_of(
    command: str,
    attempt: str = "w1.1",
    *,
    nodes: Iterable[str] = ("local",),
    env: Mapping[str, str] | None = None,
    working_dir: str = "",
    devices: tuple[int, ...] = (),
    device_type: str = "",
    grace: float = 5.0,
    cpu_milli: int = 0,
    memory_mib: int = 0,
    disk_mib: int = 0,
    view: View | None = None,
    entry: Entry | None = None,
) -> Launch:
    """An attempt with one task on each node."""
    workload, _, number = attempt.rpartition(".")
    return Launch(
        attempt_id=attempt,
        workload_id=workload,
        attempt=int(number),
        workspace_id="ws1",
        user="o'neil",
        grace_seconds=grace,
        tasks=tuple(
            TaskLaunch(
                name=f"worker-{index}",
                role="worker",
                number=index,
                rank=index,
                node=node,
                command=command,
                env=env or {},
                working_dir=working_dir,
                devices=devices,
                device_type=device_type,
                cpu_milli=cpu_milli,
                memory_mib=memory_mib,
                disk_mib=disk_mib,
                view=view,
                entry=entry,
            )
            for index, node in enumerate(nodes)
        ),
    )


class EngineLab:
    """Engines over one or more nodes; ends all that they started."""

    def __init__(self, home: Path, transport_of: Callable[[NodeAddress], Transport] | None = None) -> None:
        self.home = home
        self.sink = MemorySink()
        self.epoch = 1
        self.disk_reserve_mib = 0
        self.data: Path | None = None  # the server's own folder
        self.placed: PlacedTasks | None = None  # what was ever placed on a node; None: all that it says
        self._transport_of = transport_of or self.local
        self._open: list[Watched] = []
        self._attempts: set[str] = set()
        self.addresses: dict[str, NodeAddress] = {}

    def local(self, address: NodeAddress) -> Transport:
        return LocalTransport(self.home, {"HOME": str(self.home)}, inherited=dict(os.environ))

    def root(self, node: str = "local") -> Path:
        if self.data is not None:
            return self.data / "local" / node
        return self.home / ".trainyard" / "nodes" / "p1" / node

    async def start(
        self,
        *nodes: NodeAddress,
        epoch: int | None = None,
        sink: MemorySink | LogStore | None = None,
        sees: bool = True,
    ) -> Watched:
        """A server that leads; nodes that it knows from before stay known."""
        self.epoch = self.epoch if epoch is None else epoch
        sink = sink or self.sink
        engine = NodeEngine(
            "p1",
            sink,
            epoch=self.epoch,
            data=self.data,
            transport_of=self._transport_of,
            patience=QUICK,
            disk_reserve_mib=self.disk_reserve_mib,
            placed=self.placed,
        )
        watched = Watched(engine, sink)
        self._open.append(watched)
        for address in nodes or self.addresses.values() or (NodeAddress(name="local"),):
            self.addresses[address.name] = address
            await engine.add_node(address)
        if sees:
            await watched.until(
                lambda: {each.node for each in watched.find(NodeSeen)} >= set(self.addresses),
                "all nodes seen",
            )
        return watched

    async def launch(self, watched: Watched, launch: Launch) -> None:
        self._attempts.add(launch.attempt_id)
        await launch_one(watched.engine, launch)

    async def stop(self, watched: Watched, *, leaves: bool = True) -> None:
        self._open.remove(watched)
        await watched.close(leaves=leaves)

    def agent_pid(self, node: str = "local") -> int:
        """The agent's pid: who has the lock open; 0 where none runs."""
        lock = os.path.realpath(self.root(node) / "agent.lock")
        for pid in self._ours(node):
            with suppress(OSError):
                if lock in {link_of(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}:
                    return pid
        return 0

    def relay_pids(self, node: str = "local") -> list[int]:
        """Those who have a standard input that is a pipe; agent and supervisors have none."""
        found = []
        for pid in self._ours(node):
            with suppress(OSError):
                if not os.readlink(f"/proc/{pid}/fd/0").startswith("/dev/null"):
                    found.append(pid)
        return found

    def _ours(self, node: str) -> list[int]:
        """Processes of our program in a node's folder."""
        root, found = os.path.realpath(self.root(node)), []
        for pid in processes():
            with suppress(OSError):
                if (
                    b"attach" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    and os.readlink(f"/proc/{pid}/cwd") == root
                ):
                    found.append(pid)
        return found

    def supervisor_pid(self, attempt: str, task: str = "worker-0", node: str = "local") -> int:
        import json

        state = (self.root(node) / "tasks" / attempt / task / "state").read_text().splitlines()
        return int(json.loads(state[0])["pid"])

    def _is_well(self) -> bool:
        """Whether one server is open, and all that it started has ended."""
        if len(self._open) != 1:
            return False
        seen = self._open[0]
        cleared = {one.attempt_id for one in seen.find(TaskCleared)}
        unknown = {one.attempt_id for one in seen.find(TaskUnknown)}
        return self._attempts == cleared - unknown

    async def aclose(self) -> None:
        """End and forget everything, and have the agents go."""
        if self._is_well():
            last = self._open[0]  # it leads, and saves the start of another one
        else:
            for watched in self._open[:]:
                await self.stop(watched, leaves=False)
            last = await self.start(epoch=self.epoch + 100)
        for attempt in sorted(self._attempts):
            with suppress(Error):
                had = await end_one(last.engine, attempt, list(self.addresses), grace_seconds=0)
                for tasks in had.values():
                    for task in tasks:
                        await last.until(
                            lambda attempt=attempt, task=task: (
                                last.find(TaskCleared, attempt, task) or last.find(TaskUnknown, attempt, task)
                            ),
                            f"{attempt} {task} cleared",
                        )
        with suppress(Error):
            await last.engine.forget(sorted(self._attempts), list(self.addresses))
        await self.stop(last)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def link_of(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def kill(pid: int) -> None:
    assert pid > 1
    os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def lab_in(home: Path) -> AsyncIterator[EngineLab]:
    home.mkdir(parents=True, exist_ok=True)
    lab = EngineLab(home)
    try:
        yield lab
    finally:
        await lab.aclose()


__all__ = ["EngineLab", "TaskStarted", "TaskUnknown"]
