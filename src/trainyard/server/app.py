"""The only wiring: from settings to a running platform. Everything else takes what it needs as arguments."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from trainyard.engines.api import EngineContext
from trainyard.engines.engine_set import EngineSet, ExecClientSet
from trainyard.engines.registry import open_engines, open_exec_clients
from trainyard.lib.clock import Clock, SystemClock
from trainyard.lib.errors import ConflictError, Error
from trainyard.lib.files import open_private, write_atomic
from trainyard.lib.ids import new_id
from trainyard.lib.private_folder import make_private
from trainyard.scheduling import Policy
from trainyard.server.api.application import create_api
from trainyard.server.api.dlc.dispatch import DlcDispatch
from trainyard.server.cluster.local_node import ensure_local_node
from trainyard.server.cluster.pool_provider import PoolProvider
from trainyard.server.cluster.storages import ensure_defaults, logins
from trainyard.server.disk_space import DiskSpace, telling_no_room
from trainyard.server.launch.sandbox_spec import SandboxFacts
from trainyard.server.leader.billing_loop import BillingLoop
from trainyard.server.leader.hang_detector import ActivityMeter, HangDetector
from trainyard.server.leader.leader_lease import LeaderTerm, lead
from trainyard.server.leader.node_placements import Placements, secrets_of
from trainyard.server.leader.pool_demand import PoolChannel
from trainyard.server.leader.pool_loop import Pools
from trainyard.server.leader.reconciler import Reconciler
from trainyard.server.leader.retention import Retention
from trainyard.server.leader.sample_writer import SampleWriter
from trainyard.server.leader.schedule_loop import ScheduleLoop
from trainyard.server.logs.log_files import LogStore
from trainyard.server.people.first_start import FirstAdmin, ensure_admin
from trainyard.server.secrets.sealed_columns import ensure_sealed
from trainyard.server.services import Services
from trainyard.server.settings import ServerSettings
from trainyard.server.store import settings as stored
from trainyard.server.store import upgrade
from trainyard.server.store.commits import Commits
from trainyard.server.store.database import Database
from trainyard.server.store.jobs import workloads
from trainyard.server.wakeups import Wakeups
from trainyard.server.web.web_server import SHUTDOWN_SECONDS, listening, make_server, url_of
from trainyard.spec.workload import HOLDING

logger = logging.getLogger(__name__)

EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers."""

    url: str
    first_admin: FirstAdmin | None  # only where this start has made it
    token: str = field(default="", repr=False)  # of the first administrator, where its file is still there


class Platform:
    """The parts of one server, put together."""

    def __init__(self, settings: ServerSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.wakeups = Wakeups()
        self.disk = disk_of(settings)
        if self.disk.is_full():
            self.disk.give_up()  # there must be room to begin with
        self.db = Database(settings.database_url, disk=self.disk)
        self.logs = LogStore(settings.data / "logs", limit_bytes=settings.log_limit_mib * 2**20)
        self.services = Services(self.db, self.clock, self.wakeups, settings=settings)
        self.first_admin: FirstAdmin | None = None
        self.engine: EngineSet | None = None
        self.commits = Commits(self.db)
        self.exec_client: ExecClientSet  # since it was prepared
        # One embedded server comes back as the leader at once; servers of a shared database must wait for each other.
        self.owner = EMBEDDED if settings.is_embedded else f"{socket.gethostname()}-{new_id()}"

    def prepare(self) -> None:
        """Bring the database up to date and make what a first start needs. Doing it twice changes nothing."""
        upgrade.ensure(self.db)
        if changed := ensure_sealed(self.db, self.services.seal):
            logger.info(
                "%d rows had secrets that nobody had sealed; older backups still have them so", changed
            )
        self.first_admin = ensure_admin(self.db, self.clock)
        if self.first_admin is not None:
            write_atomic(self.token_file, self.first_admin.token + "\n", mode=0o600)
        ensure_local_node(self.db, self.settings, self.clock.now().timestamp())
        if self.settings.is_embedded:
            self.db.write_now(lambda c: ensure_defaults(c, self.clock.now().timestamp()))
        self.exec_client = open_exec_clients(self.settings.engines, self._engine_context())

    @property
    def token_file(self) -> Path:
        """The first administrator's token, for who starts the platform again: whoever reads it can read the database too."""
        return self.settings.data / "admin.token"

    def admin_token(self) -> str:
        """That token; empty where it was taken away."""
        try:
            return self.token_file.read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def asgi(self) -> Any:
        """The REST application, and beside it the door of the vendor's clients."""
        ours = create_api(
            self.services,
            self.logs,
            lambda: self.engine,
            self.settings,
            self.exec_client,
            self.commits,
            disk=self.disk,
        )
        return DlcDispatch(ours, ours.state.parts)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Lead whenever nobody else does, until the block ends; jobs run on after it."""
        leading = asyncio.create_task(lead(self.db, self.clock, self.owner, self._conduct))
        keeping = asyncio.create_task(self.db.keep_reserve())
        try:
            yield
        finally:
            for task in (leading, keeping):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await self.exec_client.aclose()
            self.services.close()
            self.commits.close()
            await asyncio.to_thread(self.db.close)

    def _view_facts(self, c: Connection) -> SandboxFacts:
        """What of this server matters for what tasks see."""
        return SandboxFacts(
            isolation=self.settings.isolation,
            processes=self.settings.task_processes,
            logins=logins(c, self.services.seal),
            seal=self.services.seal,
        )

    async def _hide_secrets(self) -> None:
        """Know the secrets of jobs that an earlier leader has started, before anything that they print arrives."""

        def work(c: Connection) -> list[tuple[str, tuple[str, ...]]]:
            return secrets_of(c, workloads.in_states(c, HOLDING), self.services.seal)

        for attempt, values in await self.db.read(work):
            self.logs.hide(attempt, values)

    def _engine_context(self, *, epoch: int = 0, meter: ActivityMeter | None = None) -> EngineContext:
        """What every engine is given."""
        return EngineContext(
            platform_id=platform_id(self.db),
            sink=self.logs,
            epoch=epoch,
            meter=meter,
            placed=Placements(self.db, self.logs, self.services.seal).of,
            data=self.settings.data,
            sample_seconds=self.settings.sample_seconds,
            profile_devices=self.settings.profile_devices,
            task_disk_mib=self.settings.task_disk_mib,
            disk_reserve_mib=self.settings.disk_reserve_mib,
        )

    async def _conduct(self, term: LeaderTerm) -> None:
        await self._hide_secrets()
        sample_writer = SampleWriter(term, sample_seconds=self.settings.sample_seconds)
        pulse = ActivityMeter(self.clock, sample_writer)
        engine = open_engines(self.settings.engines, self._engine_context(epoch=term.epoch, meter=pulse))
        self.engine = engine
        try:
            async with asyncio.TaskGroup() as group:
                overcommit = self.settings.cpu_overcommit
                reconciler = Reconciler(
                    term,
                    engine,
                    self.wakeups,
                    policy=Policy(longest_grace=self.settings.preemption_grace_seconds),
                    cpu_overcommit=overcommit,
                    secret=self.services.seal.derive("launches"),
                    seal=self.services.seal,
                    views=self._view_facts,
                )
                group.create_task(reconciler.run())
                still = HangDetector(
                    self.clock,
                    lambda: list(reconciler.memory.held.values()),
                    self.logs.size,
                    reconciler.arrived,
                    pulse,
                )
                group.create_task(still.run())
                pool_provider = PoolProvider(platform_id(self.db), cpu_overcommit=overcommit)
                group.create_task(
                    Pools(
                        term,
                        PoolChannel(reconciler),
                        self.wakeups,
                        pool_provider,
                        look_seconds=self.settings.pool_seconds,
                    ).run()
                )
                group.create_task(sample_writer.run())
                group.create_task(ScheduleLoop(term, self.services.context).run())
                books = BillingLoop(
                    term,
                    self.wakeups,
                    sample_seconds=self.settings.sample_seconds,
                    pause=self.settings.book_seconds,
                )
                group.create_task(books.run())
                group.create_task(Retention(term, self.logs, self.settings, self.disk).run())
        finally:
            self.engine = None
            with contextlib.suppress(Error, TimeoutError):
                async with asyncio.timeout(SHUTDOWN_SECONDS):
                    await engine.leave()
            await engine.aclose()


def disk_of(settings: ServerSettings) -> DiskSpace:
    """The room that a server's files have."""
    if not settings.is_embedded:
        return DiskSpace(settings.data)
    database = Path(settings.database_url.partition(":///")[2])
    return DiskSpace(settings.data, database.parent, reserve=database.with_name(f"{database.name}.reserve"))


def platform_id(db: Database) -> str:
    """What nodes know this platform by: two platforms may share a node without meeting."""
    return db.write_now(lambda c: str(stored.ensure(c, "platform_id", new_id("p"))))


async def serve(
    settings: ServerSettings, *, ready: Callable[[RunningServer], None], stop: asyncio.Event
) -> None:
    """Run a server in the foreground until `stop` is set. Jobs run on, and the next start finds them again."""
    with contextlib.ExitStack() as held:
        held.enter_context(telling_no_room(f"the platform in {settings.data}"))
        make_private(settings.data)
        _close_to_others(settings.data)
        if settings.is_embedded:
            held.enter_context(_alone(settings))
        listener = held.enter_context(listening(settings))
        platform = Platform(settings)
        await asyncio.to_thread(platform.prepare)
        server = make_server(platform.asgi(), settings)
        async with platform.running():
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            stopping = asyncio.create_task(stop.wait())
            while not server.started and not serving.done():  # noqa: ASYNC110  # uvicorn has no event to wait for
                await asyncio.sleep(0.005)
            gc.freeze()  # what is there by now stays: nobody need look through it again
            gc.enable()
            if not serving.done():
                ready(RunningServer(url_of(settings, listener), platform.first_admin, platform.admin_token()))
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            stopping.cancel()
            await serving


def _close_to_others(data: Path) -> None:
    """What an older version made by the umask is for this account alone from now on."""
    for name, mode in (("logs", 0o700), ("storages", 0o700), ("server.lock", 0o600)):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            (data / name).chmod(mode)


@contextlib.contextmanager
def _alone(settings: ServerSettings) -> Any:
    """SQLite has one server: a second one on the same folder would follow the same jobs."""
    with open_private(settings.data / "server.lock") as file:  # not handed on to what we start
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConflictError(
                f"Another server runs on {settings.data}.",
                hint="Stop it first, or choose another folder with --data.",
            ) from error
        yield
