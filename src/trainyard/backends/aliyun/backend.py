"""The verbs of the Alibaba Cloud backend. The truth about machines is in their names and tags; nothing is kept here.

The pieces: `client.py` (calls), `ground.py` (network and key), `wishes.py` (what to ask for), `launching.py` (making),
`power.py` (stopping and deleting), `ecs.py` (instances as machines), `way.py` (reaching them).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Self

from trainyard.backends.aliyun import emulator, power
from trainyard.backends.aliyun.catalogue import Misses
from trainyard.backends.aliyun.client import Client
from trainyard.backends.aliyun.ecs import NAME, Login, by_region, check_fit, fetch_machines, one_of_each
from trainyard.backends.aliyun.keypair import key_name
from trainyard.backends.aliyun.launching import Launcher
from trainyard.backends.aliyun.locks import hold
from trainyard.backends.aliyun.paging import check_list_permission
from trainyard.backends.aliyun.wire import Parameter
from trainyard.lib.aio import finish, gather_all
from trainyard.lib.clock import Clock, SystemClock
from trainyard.lib.errors import CapacityError, ConflictError, InvalidError, NotFoundError
from trainyard.settings import Settings
from trainyard.spec.machine import Machine, MachineSpec, MachineState
from trainyard.spec.names import check_name, job_of

if TYPE_CHECKING:
    from pathlib import Path

    from trainyard.backends.aliyun.way import InstanceTransport

BOOT = timedelta(minutes=5)  # from the start of a machine until its sshd answers
MINUTE = timedelta(minutes=1)  # the provider's times are cut off to it


class AliyunBackend:
    """Machines of Alibaba Cloud, in one region."""

    name: ClassVar[str] = NAME

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.client = Client.from_settings(settings, clock=self.clock)
        self._misses = Misses(self.clock)
        self._login: Login | None = None
        self._learning = asyncio.Lock()
        self._has_sight = False
        self._ways: dict[str, InstanceTransport] = {}
        self._old_ways: list[InstanceTransport] = []

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """How the registry makes one. Makes no call."""
        return cls(settings)

    # -- the four verbs --------------------------------------------------------------------------------------------

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        """Find the machines of these names, start those that are stopped, make the others. All or none.

        With `min_machines` fewer than asked for may come back, the first ones of `names`.
        """
        for name in names:
            check_name(name, "machine name")
        if len(set(names)) < len(names):
            raise InvalidError("a machine is named twice", hint="Give every machine a name of its own.")
        if not names:
            return []
        async with self._alone(names):
            return await self._acquire(spec, names)

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        """Our machines in the region."""
        found = await self._fetch()
        return [machine for machine in found if fnmatchcase(machine.name, name)]

    async def release(self, machines: Sequence[Machine]) -> None:
        """Delete machines with their disks, and wait until they are gone."""
        for region, part in by_region(machines):
            await power.delete(self._client(region), [machine.id for machine in part])
        for machine in machines:
            way = self._ways.pop(machine.id, None)
            if way is not None:
                await way.aclose()
            (self._known_hosts_folder / machine.id).unlink(missing_ok=True)

    def transport(self, machine: Machine) -> InstanceTransport:
        """The way to the machine's public address. A machine whose address has changed gets a new one."""
        host = machine.public_address or machine.address or machine.id
        way = self._ways.get(machine.id)
        if way is not None and machine.state is MachineState.RUNNING and way.address.host != host:
            self._old_ways.append(way)
            way = None
        if way is None:
            way = self._ways[machine.id] = self._make_way(machine, host)
        is_stopped = machine.state in {MachineState.STOPPED, MachineState.STOPPING}
        way.refuse(f"the machine {machine.name!r} is stopped" if is_stopped else "")
        way.expect(self._patience(machine))
        return way

    async def aclose(self) -> None:
        """Let go of connections; machines stay as they are. May be used again after it."""
        ways = [*self._ways.values(), *self._old_ways]
        self._ways.clear()
        self._old_ways.clear()
        await finish(gather_all([way.aclose() for way in ways]))

    # -- capabilities ----------------------------------------------------------------------------------------------

    async def stop(self, machines: Sequence[Machine]) -> None:
        """Stop machines so that they cost as little as their type allows; `ls --stop` tells what that is."""
        for machine in machines:
            if machine.id in self._ways:
                self._ways[machine.id].refuse(f"the machine {machine.name!r} is stopped")
        for region, part in by_region(machines):
            client = self._client(region)
            await power.stop(client, [machine.id for machine in part])

    async def start(self, machines: Sequence[Machine]) -> None:
        """Start machines; their public addresses may be others then. All or none where there is no stock."""
        for region, part in by_region(machines):
            await self._start(self._client(region), part)

    async def rename(self, machine: Machine, name: str) -> Machine:
        """Rename a machine, running or not."""
        check_name(name, "machine name")
        async with self._alone([machine.name, name]):
            there = await self._fetch()
            if any(other.name == name and other.id != machine.id for other in there):
                raise ConflictError(f"there is a machine {name!r} already", hint="Choose another name.")
            if all(other.id != machine.id for other in there):
                raise _gone(machine)
            parameters: dict[str, Parameter] = {"InstanceId": machine.id, "InstanceName": name}
            client = self._client(machine.region)
            await client.call("ecs", "ModifyInstanceAttribute", parameters, about=machine.name)
            renamed = [other for other in await self._fetch() if other.id == machine.id]
        if not renamed:
            raise _gone(machine)
        return renamed[0]

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _acquire(self, spec: MachineSpec, names: Sequence[str]) -> list[Machine]:
        launcher = Launcher(
            client=self.client, settings=self.settings, login=await self._learn(), misses=self._misses
        )
        listed = await launcher.settle(names)
        if not listed:
            await self._check_sight()
        there = one_of_each(listed)
        have = [there[name] for name in names if name in there]
        for machine in have:
            check_fit(machine, spec)
        missing = [name for name in names if name not in there]
        made: list[str] = []
        if missing:
            there = one_of_each(await self._make(launcher, spec, missing, have))
            made = [there[name].id for name in missing if name in there]
        try:
            started = await self._start(self.client, [there[name] for name in names if name in there])
        except BaseException:
            await finish(power.delete(self.client, made, is_fresh=True))
            raise
        if started:
            there = one_of_each(await launcher.machines())
        return [there[name] for name in names if name in there]

    async def _make(
        self, launcher: Launcher, spec: MachineSpec, missing: Sequence[str], have: Sequence[Machine]
    ) -> Sequence[Machine]:
        least = min(
            len(missing), max(spec.min_machines - len(have), 0) if spec.min_machines else len(missing)
        )
        try:
            return await launcher.make(spec, missing, least=max(least, 1), near=have)
        except CapacityError:
            if least:
                raise
            return have

    async def _start(self, client: Client, machines: Sequence[Machine]) -> list[str]:
        """Start those that do not run; those that were started when one could not be are stopped again."""
        still = [
            machine.id
            for machine in machines
            if machine.state in {MachineState.STOPPED, MachineState.STOPPING}
        ]
        if not still:
            return []
        try:
            return await power.start(client, still)
        except CapacityError as error:
            error.hint = "Their files are kept: try again later, or make new ones under another name."
            raise

    async def _fetch(self) -> Sequence[Machine]:
        found = await fetch_machines(self.client, user=self.settings.user, login=await self._learn())
        if not found:
            await self._check_sight()
        return found

    async def _check_sight(self) -> None:
        """Whether an empty list means that there is nothing: to who may not look, the provider shows nothing."""
        if not self._has_sight:
            await check_list_permission(self.client)
            self._has_sight = True

    async def _learn(self) -> Login:
        """How machines are logged in to; asked of the emulator once."""
        async with self._learning:
            if self._login is None:
                self._login = await emulator.fetch_login(self.client.host("ecs"))
            return self._login

    @asynccontextmanager
    async def _alone(self, names: Sequence[str]) -> AsyncIterator[None]:
        """No other client of this person makes machines of these jobs meanwhile."""
        jobs = sorted({job_of(name) or name for name in names})
        folder, host = self.client.folder / "locks", self.client.host("ecs")
        async with AsyncExitStack() as stack:
            for job in jobs:
                await stack.enter_async_context(hold(folder, f"{host} machines {self.client.region} {job}"))
            yield

    def _client(self, region: str) -> Client:
        return self.client if region in {"", self.client.region} else self.client.in_region(region)

    @property
    def _known_hosts_folder(self) -> Path:
        return self.client.folder / "known_hosts"

    def _make_way(self, machine: Machine, host: str) -> InstanceTransport:
        way = import_module("trainyard.backends.aliyun.way")  # brings asyncssh, which listing can do without
        port, host_key = int(machine.details.get("ssh_port", "22")), machine.details.get("host_key", "")
        known = None
        if host_key:
            known = way.write_known_hosts(
                self._known_hosts_folder, machine.id, address=host, port=port, host_key=host_key
            )
        address = way.SshAddress(
            host,
            port=port,
            user=machine.user,
            identity_files=self._identity_files(machine),
            known_hosts=known,
        )
        made: InstanceTransport = way.InstanceTransport(address, name=machine.name, clock=self.clock)
        return made

    def _identity_files(self, machine: Machine) -> tuple[Path, ...]:
        """Our own key, and the one that the family's tools made, where they are."""
        name = key_name(self.settings.cloud.prefix, self.settings.user)
        own = self.client.folder / "keys" / f"{name}.pem"
        family = self.settings.cloud.user_home / ".ncluster" / f"{name}-{machine.region}.pem"
        return tuple(path for path in (own, family) if path.exists())

    def _patience(self, machine: Machine) -> float:
        """Seconds for which silence of a machine is put down to its booting."""
        if machine.started is None:
            return BOOT.total_seconds()
        return max(0.0, (machine.started + MINUTE + BOOT - self.clock.now()).total_seconds())


def _gone(machine: Machine) -> NotFoundError:
    return NotFoundError(f"there is no machine {machine.name!r} any more", hint="See `trainyard ls`.")
