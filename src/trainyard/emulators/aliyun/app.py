"""The class that assembles the emulator: cloud, gateway, machines and clock, on loopback ports.

The only wiring. What a call does is `call_path.py`'s, what its user may turn `control.py`'s, what time does the world's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from trainyard.emulators.aliyun.agent import Agent
from trainyard.emulators.aliyun.api.call import MachineWish
from trainyard.emulators.aliyun.api.call_path import OpenApi
from trainyard.emulators.aliyun.api.client_tokens import Tokens
from trainyard.emulators.aliyun.api.control import PREFIX, Control
from trainyard.emulators.aliyun.api.faults import Faults, read_plan
from trainyard.emulators.aliyun.api.gateway import ACCOUNT, Gateway
from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.api.wire import Outcome, Request, Server
from trainyard.emulators.aliyun.assistant_runs import abandon
from trainyard.emulators.aliyun.cloud import saved_state
from trainyard.emulators.aliyun.cloud.catalogue import REGIONS
from trainyard.emulators.aliyun.cloud.clock import AdjustableClock
from trainyard.emulators.aliyun.cloud.store import Store
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.machines import Machines
from trainyard.emulators.aliyun.metadata import Metadata
from trainyard.emulators.aliyun.shares import reconcile_shares, wanted_shares
from trainyard.lib.aio import end_task
from trainyard.lib.errors import CapacityError, ConflictError, Error, InvalidError

_log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
DEFAULT_REGION = "cn-beijing"
LONGEST_NAP = 1.0  # seconds between two looks at the clock, whatever is due
SHORTEST_NAP = 0.01
RETRY_SECONDS = 1.0  # after the machines could not follow
REBOOT_SECONDS = 5.0  # after a machine could not be booted
SETTLE_SECONDS = 120.0
# 127.64 to 127.127 would do as well; the second byte keeps emulators that run side by side apart. 77 is the local backend's.
LOOPBACK_BYTES = range(128, 250)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the emulator's user asks for."""

    folder: Path
    port: int | None = None
    """None: the one of the last time if it is free, else any."""
    region: str = ""
    """Empty: the one of the last time, or Beijing."""
    strict: bool = True
    faults: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Changes to the world's options, such as {"timing": {"starting": 0}}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineWishes:
    """What this computer should have for the world."""

    machines: list[MachineWish]
    shares: dict[str, str]


class Emulator:
    """Alibaba Cloud on this computer, from `open` to `close`."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._store = Store(wanted.folder)
        self.clock = AdjustableClock()
        self.faults = Faults()
        self.gateway = Gateway()
        self.world = World()
        self.region = wanted.region or DEFAULT_REGION
        self._tokens = Tokens()
        self._server = Server(self._respond)
        self._tasks: list[asyncio.Task[None]] = []
        self._kick = asyncio.Event()
        self._moved = asyncio.Condition()
        self._reached: MachineWishes | None = None
        self._committing: asyncio.Task[CapacityError | None] | None = None
        self._is_unsaved = False  # the disk did not take the last change

    async def open(self) -> None:
        """Read what was, begin to listen, and boot the machines that should be running."""
        saved = self._store.open()
        try:
            self._restore(saved)
            self._build()
            await self.machines.open()
            await self._listen(saved.get("port", 0))
            self.save()
        except BaseException:
            await self._server.close()
            self._store.close()
            raise
        self._tasks = [asyncio.ensure_future(self._pulse()), asyncio.ensure_future(self._follow())]

    async def close(self) -> None:
        """End the machines' processes and everything else; what exists in the cloud is kept for the next time."""
        for task in self._tasks:
            await end_task(task)
        await self._agent.close()
        await self._server.close()
        await self._metadata.close()
        with contextlib.suppress(CapacityError):  # what was acknowledged stands there already
            self.save()
        await self.machines.close()
        self._store.close()

    def _restore(self, saved: dict[str, Any]) -> None:
        if saved:
            self.clock.load(saved["clock"])
            self.gateway.load(saved["keys"])
            self._tokens.load(saved["tokens"])
            self.world = saved_state.decode(World, saved["world"])
            abandon(self.world, self.clock.now())
            self.region = self._wanted.region or saved["region"]
        else:
            self.world.seed = secrets.token_hex(8)
            network = f"127.{secrets.choice(LOOPBACK_BYTES)}.0.0/16"
            self.world.set_options({"loopback": network})
        if self.region not in REGIONS:
            raise InvalidError(
                f"there is no region {self.region!r}", hint=f"Use one of {', '.join(REGIONS)}."
            )
        self.gateway.ensure_key()
        try:
            self.world.set_options(self._wanted.options)
        except (Problem, TypeError, ValueError) as error:
            raise InvalidError(
                f"this cannot be set: {error}", hint="Write NAME=VALUE, as in timing.starting=3."
            ) from error
        if self._wanted.faults is not None:
            self.faults.replace(read_plan(self._wanted.faults))

    def _build(self) -> None:
        self.api = OpenApi(
            world=self.world,
            gateway=self.gateway,
            tokens=self._tokens,
            faults=self.faults,
            clock=self.clock,
            region=self.region,
            strict=self._wanted.strict,
            commit=self.commit,
            catch_up=self.catch_up,
        )
        self._control = Control(self)
        self._metadata = Server(Metadata(self.world, self.gateway, self.clock, self.save).respond)
        self.machines = Machines(
            self._wanted.folder / "machines",
            metadata_url=lambda instance_id: (
                f"http://{self._metadata.address}:{self._metadata.port}/{instance_id}"
            ),
        )

        self.world.read_console = self.machines.console_of
        self._agent = Agent(self.world, self.machines, self.clock, self.noted)

    async def _listen(self, last_port: int) -> None:
        await self._metadata.open(ADDRESS, 0)
        if self._wanted.port is not None:
            await self._server.open(ADDRESS, self._wanted.port)
            return
        try:
            await self._server.open(ADDRESS, last_port)
        except ConflictError:  # somebody else has taken it since
            await self._server.open(ADDRESS, 0)

    async def _respond(self, request: Request) -> Outcome:
        if request.path.startswith(PREFIX) or request.path == PREFIX.rstrip("/"):
            return await self._control.respond(request)
        return await self.api.respond(request)

    # -- what happened -------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write everything down; CapacityError where the disk does not take it."""
        now = self.clock.now()
        self._tokens.forget_old(now)
        whole = {
            "region": self.region,
            "port": self._server.port,
            "clock": self.clock.save(),
            "keys": self.gateway.save(now),
            "tokens": self._tokens.save(),
            "world": self.world.dump(),
        }
        try:
            self._store.save(whole)
        except CapacityError as error:
            if not self._is_unsaved:
                _log.error("%s; nobody is answered until it can", error.message)
            self._is_unsaved = True
            raise
        if self._is_unsaved:
            _log.warning("the state is written again")
        self._is_unsaved = False

    def catch_up(self) -> None:
        """Write down what the disk did not take before; CapacityError where it still does not.

        Whoever is to be answered calls this first, so that nobody is told what a crash would undo.
        """
        if self._is_unsaved:
            self.save()

    def changed(self) -> None:
        """Save, and let the machines follow; CapacityError where the disk does not take it."""
        self._kick.set()
        self.save()

    def noted(self) -> None:
        """Like `changed`, for what nobody is to be answered about: saved later where it cannot be now."""
        with contextlib.suppress(CapacityError):
            self.changed()

    async def commit(self) -> None:
        """Like `changed`; calls that come together are written down together, which is what takes the time."""
        if self._committing is None:
            self._committing = asyncio.ensure_future(self._save_soon())
        problem = await asyncio.shield(self._committing)
        if problem is not None:
            raise problem

    async def _save_soon(self) -> CapacityError | None:
        await asyncio.sleep(0)
        self._committing = None  # who changes something from here on needs the next one
        try:
            self.changed()
        except CapacityError as error:
            return error
        return None

    async def _pulse(self) -> None:
        """Let time do its work when something is due."""
        while True:
            now = self.clock.now()
            self.world.advance(now)
            self._agent.look(self._ready_machines())
            with contextlib.suppress(CapacityError):  # tried again at the next look
                self.catch_up()
            async with self._moved:
                self._moved.notify_all()
            nap = self._nap(now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(nap):
                    await self._kick.wait()
            self._kick.clear()

    def _nap(self, now: datetime) -> float:
        """Real seconds until something is due."""
        due = self.world.next_change()
        if due is None or not self.clock.rate:
            return LONGEST_NAP
        return min(LONGEST_NAP, max(SHORTEST_NAP, (due - now).total_seconds() / self.clock.rate))

    async def _follow(self) -> None:
        """Make the machines what the world wants, again and again."""
        while True:
            wishes = self._wishes()
            if wishes == self._reached and not self.machines.unbooted:
                async with self._moved:
                    await self._moved.wait()
                continue
            try:
                await asyncio.to_thread(reconcile_shares, self.machines.nas, wishes.shares)
                await self.machines.reconcile(wishes.machines)
            except (OSError, Error):
                _log.exception("the machines cannot follow")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._reached = wishes
            self._kick.set()  # what waits for a machine can be begun now
            async with self._moved:
                self._moved.notify_all()
            if self.machines.unbooted:
                await asyncio.sleep(REBOOT_SECONDS)

    def _ready_machines(self) -> set[str]:
        """Those that have booted, as far as the world wants them to."""
        reached = self._reached.machines if self._reached else []
        return {wish.instance_id for wish in reached if wish.running}

    def _wishes(self) -> MachineWishes:
        return MachineWishes(machines=self.world.machines(self.clock.now()), shares=wanted_shares(self.world))

    async def settle(self) -> None:
        """Wait until the machines are what the world wants."""
        self._kick.set()
        async with asyncio.timeout(SETTLE_SECONDS), self._moved:
            await self._moved.wait_for(lambda: self._reached == self._wishes())

    # -- what is known of it -------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Where it is, without the secret."""
        endpoint = f"{self._server.address}:{self._server.port}"
        return {
            "endpoint": endpoint,
            "region": self.region,
            "account_id": ACCOUNT,
            "access_key_id": self.gateway.main_key.id,
            "control": f"http://{endpoint}{PREFIX}",
            "metadata": f"{self._metadata.address}:{self._metadata.port}",
            "ssh_port": self.machines.ssh_port,
            "ssh_user": self.machines.login,
            "isolation": str(self.machines.isolation),
            "state": str(self._wanted.folder),
        }

    def ready(self) -> dict[str, Any]:
        """What its user needs to know, the secret included."""
        return {**self.describe(), "access_key_secret": self.gateway.main_key.secret}

    def machine_states(self) -> dict[str, dict[str, Any]]:
        """Each machine: where its sshd listens, its files, and why it does not answer where it should."""
        problems = self.machines.problems
        return {
            wish.instance_id: {
                "address": wish.address,
                "public_address": wish.public_address,
                "ssh_port": self.machines.ssh_port,
                "running": wish.running,
                "boot_log": str(self.machines.log_of(wish.instance_id)),
                "problem": problems.get(wish.instance_id, ""),
            }
            for wish in self._wishes().machines
        }


def instant_options() -> dict[str, Any]:
    """Options under which nothing takes time."""
    return {"timing": saved_state.encode(World().options.timing.instant())}


def parse_options(settings: Sequence[str]) -> dict[str, Any]:
    """`timing.starting=3` and its like, as a tree; a number is a number, `true` is true."""
    tree: dict[str, Any] = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise InvalidError(f"{setting!r} sets nothing", hint="Write NAME=VALUE, as in timing.starting=3.")
        *folders, name = path.split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = _scalar(value)
    return tree


def _scalar(text: str) -> Any:
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
