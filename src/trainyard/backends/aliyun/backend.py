"""The class AliyunBackend. All state of machines is in their names and tags at the provider.

The parts: `api/` (calls), `access/` (network, keys, ssh), `launch/` (planning and launching machines), `power.py` (stopping
and deleting), `ecs.py` (instances as machines).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from trainyard.backends.aliyun import emulator, power, storage
from trainyard.backends.aliyun import leftovers as leftover_finder
from trainyard.backends.aliyun.access import cloud_assistant, security_groups
from trainyard.backends.aliyun.access.host_keys import HostKeyReader
from trainyard.backends.aliyun.access.key_pair import key_name
from trainyard.backends.aliyun.access.public_address import own_address
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.paging import check_list_permission
from trainyard.backends.aliyun.api.wire import Parameter
from trainyard.backends.aliyun.auto_release import AutoRelease, renew
from trainyard.backends.aliyun.costs import SPENT_TAG, spent_text
from trainyard.backends.aliyun.ecs import (
    NAME,
    STORAGE_TAG,
    Login,
    by_region,
    check_fit,
    fetch_machines,
    machine_key,
    one_of_each,
)
from trainyard.backends.aliyun.launch import listings, planning
from trainyard.backends.aliyun.launch.catalogue import SoldOutPlaces, fetch_regions, fetch_types
from trainyard.backends.aliyun.launch.gpu_offers import fetch_gpu_offers
from trainyard.backends.aliyun.launch.images import fetch_images
from trainyard.backends.aliyun.launch.launch import Launcher, LaunchResult
from trainyard.backends.aliyun.locks import hold
from trainyard.backends.aliyun.spot_prices import fetch_rates
from trainyard.backends.api import StopProgram
from trainyard.lib.aio import finish, gather_all, map_bounded
from trainyard.lib.clock import Clock, SystemClock
from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    DeniedError,
    Error,
    InvalidError,
    NotFoundError,
    TaskErrors,
    UnreachableError,
)
from trainyard.settings import Settings
from trainyard.spec.machine import Machine, MachineSpec, MachineState
from trainyard.spec.names import check_name, job_of
from trainyard.spec.plan import Figures, Leftover, Plan

if TYPE_CHECKING:
    from trainyard.backends.aliyun.access.connect import InstanceTransport

logger = logging.getLogger(__name__)

CONCURRENT_REGIONS = 8
CONCURRENT_MOUNTS = 32
BOOT = timedelta(minutes=5)  # from the start of a machine until its sshd answers
STOP_SELF = Path(__file__).with_name("stop_self.py")
MINUTE = timedelta(minutes=1)  # the provider's times are cut off to it


class AliyunBackend:
    """Machines of Alibaba Cloud, in one region."""

    name: ClassVar[str] = NAME
    files_go_too: ClassVar[bool] = True

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.client = Client.from_settings(settings, clock=self.clock)
        self._misses = SoldOutPlaces(self.clock)
        self._auto_release = AutoRelease(self.client)
        self._login: Login | None = None
        self._learning = asyncio.Lock()
        self._has_sight = False
        self._host_keys: dict[str, HostKeyReader] = {}  # by region
        self._ways: dict[str, InstanceTransport] = {}
        self._old_ways: list[InstanceTransport] = []

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Make a backend for the registry. Makes no call."""
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
        self._auto_release.let_go([machine.id for machine in machines])
        for region, part in by_region(machines):
            await power.delete(self._client(region), [machine.id for machine in part])
        for machine in machines:
            way = self._ways.pop(machine.id, None)
            if way is not None:
                await way.aclose()
            (self._known_hosts_folder / machine.id).unlink(missing_ok=True)

    def transport(self, machine: Machine) -> InstanceTransport:
        """Return the transport to the machine's public address, a new one if the address has changed."""
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
        """Close the connections. Machines stay as they are, and the backend may be used again."""
        ways = [*self._ways.values(), *self._old_ways]
        self._ways.clear()
        self._old_ways.clear()
        await finish(self._auto_release.aclose())
        readers = list(self._host_keys.values())
        self._host_keys.clear()
        await finish(gather_all([reader.aclose() for reader in readers]))
        await finish(gather_all([way.aclose() for way in ways]))

    # -- capabilities ----------------------------------------------------------------------------------------------

    async def stop(self, machines: Sequence[Machine]) -> None:
        """Stop machines so that they cost as little as their type allows; `ls --stop` tells what that is."""
        for machine in machines:
            if machine.id in self._ways:
                self._ways[machine.id].refuse(f"the machine {machine.name!r} is stopped")
        for region, part in by_region(machines):
            client = self._client(region)
            ids = [machine.id for machine in part]
            await self._note_spending(client, ids)
            await power.stop(client, ids)
            # A stopped machine must keep its files, so it is not released meanwhile.
            self._auto_release.let_go(ids)
            await renew(client, [machine.id for machine in part if "release_time" in machine.details], 0)
            for machine in await self._fetch_in(client):
                if machine.id in ids and machine.details.get("stopped_mode") == "KeepCharging":
                    logger.warning(
                        "%s", machine.details.get("cost_note") or f"{machine.name} goes on costing"
                    )

    async def start(self, machines: Sequence[Machine]) -> None:
        """Start machines; their public addresses may be others then. All or none where there is no stock."""
        for region, part in by_region(machines):
            client = self._client(region)
            await self._start(client, part)
            for hours in {machine.details["max_hours"] for machine in part if "max_hours" in machine.details}:
                ids = [machine.id for machine in part if machine.details.get("max_hours") == hours]
                await renew(client, ids, float(hours))

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

    async def admit_address(
        self, machines: Sequence[Machine], address: str = "", *, services: Sequence[str] = ()
    ) -> str:
        """Let an address or range reach ssh on the machines' groups, or on all groups of ours; services only if named."""
        unknown = [each for each in services if each not in security_groups.SERVICE_PORTS]
        if unknown:
            raise InvalidError(
                f"there is no service {unknown[0]!r}",
                hint=f"Choose of: {', '.join(security_groups.SERVICE_PORTS)}.",
            )
        given = address or await own_address(self.client.host("ecs"), given=self.settings.cloud.own_address)
        block = security_groups.checked_range(given)
        ports = {"ssh": security_groups.SSH_PORT} | {
            name: security_groups.SERVICE_PORTS[name] for name in services
        }
        label = security_groups.rule_label(self.settings.owner)
        for region, found in await self._groups_of(machines):
            for group in found:
                await security_groups.admit(
                    self._client(region), group, [block], ports=ports, description=label
                )
        return block

    async def mount(self, machines: Sequence[Machine]) -> str:
        """Mount the user's NAS on machines, made if missing. Also at every later boot."""
        name = storage.storage_name(self.settings.cloud.prefix, self.settings.user)
        for region, part in by_region(machines):
            for vpc_id in dict.fromkeys(machine.details.get("vpc_id", "") for machine in part):
                inside = [machine for machine in part if machine.details.get("vpc_id", "") == vpc_id]
                made = await storage.ensure_storage(
                    self._client(region),
                    name,
                    zone_id=inside[0].zone,
                    vpc_id=vpc_id,
                    vswitch_id=inside[0].details.get("vswitch_id", ""),
                )
                await self._mount_on(inside, storage.mount_script(made))
            new = {machine.id: "shared" for machine in part if "shared_storage" not in machine.details}
            await power.write_tag(self._client(region), STORAGE_TAG, new)  # so that a start mounts it again
        return storage.FOLDER

    def stop_program(self, machines: Sequence[Machine]) -> StopProgram:
        """How machines stop themselves by their RAM role; they need one that may."""
        region = machines[0].region or self.client.region
        is_auto_released = any("max_hours" in machine.details for machine in machines)
        return StopProgram(
            text=STOP_SELF.read_text(encoding="utf-8"),
            arguments=[*(["--leash"] if is_auto_released else []), self._client(region).url("ecs"), region],
        )

    async def machine_types(self) -> Sequence[dict[str, str]]:
        """Types with GPUs: where they can be had, and what they cost without disks."""
        return listings.type_rows(await fetch_gpu_offers(self.client))

    async def images(self) -> Sequence[dict[str, str]]:
        """The images there are, the account's own too."""
        return listings.image_rows(await fetch_images(self.client))

    async def hold(self, machines: Sequence[Machine]) -> None:
        """Renew the release time of machines that another client made, and go on with it."""
        auto_released = [machine for machine in machines if "max_hours" in machine.details]
        for hours in {float(machine.details["max_hours"]) for machine in auto_released}:
            ids = [machine.id for machine in auto_released if float(machine.details["max_hours"]) == hours]
            self._auto_release.hold(await renew(self.client, ids, hours), hours)

    async def figures(self, types: Sequence[str]) -> Mapping[str, Figures]:
        """Cores, memory and GPUs of types."""
        found = await fetch_types(self.client, types)
        return {
            name: Figures(cpus=one.cpus, memory_mib=one.memory_mib, devices=one.gpus, model=one.gpu_model)
            for name, one in found.items()
        }

    async def rates(self, machines: Sequence[Machine]) -> Mapping[str, Sequence[tuple[datetime, Decimal]]]:
        """What spot machines cost since their first hour ended."""
        return await fetch_rates(self.client, machines)

    async def plan(self, spec: MachineSpec, names: Sequence[str]) -> Plan:
        """Return what `acquire` would do now: existing machines, the zones to try for the others, and prices."""
        there = one_of_each(await self._fetch())
        have = [there[name] for name in names if name in there]
        for machine in have:
            check_fit(machine, spec)
        if len(have) == len(names):
            return listings.plan_of(names, there)
        found = await planning.find(self.client, spec, misses=self._misses, near=have)
        return listings.plan_of(names, there, image=found.image, candidates=found.candidates)

    async def survey(self, *, everybody: bool = False, everywhere: bool = False) -> Sequence[Machine]:
        """Machines of the whole account, or in all its regions."""
        regions = await fetch_regions(self.client) if everywhere else [self.client.region]

        async def one(region: str) -> Sequence[Machine]:
            return await self._fetch_in(self._client(region), everybody=everybody)

        results = await map_bounded(one, list(regions), limit=CONCURRENT_REGIONS)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        found = [machine for part in results if not isinstance(part, BaseException) for machine in part]
        if not found:
            await self._check_sight()
        return sorted(found, key=machine_key)

    async def leftovers(self) -> Sequence[Leftover]:
        """Groups, vSwitches, networks and key pairs that nobody uses, and disks that outlived their machines."""
        return await leftover_finder.find(self.client)

    async def remove(self, leftovers: Sequence[Leftover]) -> Sequence[Leftover]:
        """Remove them; returns what is in use again."""
        return await leftover_finder.remove(self.client, leftovers)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _acquire(self, spec: MachineSpec, names: Sequence[str]) -> list[Machine]:
        launcher = Launcher(
            client=self.client, settings=self.settings, login=await self._learn(), misses=self._misses
        )
        listed = await launcher.settle(names, spec)
        if not listed:
            await self._check_sight()
        there = one_of_each(listed)
        have = [there[name] for name in names if name in there]
        for machine in have:
            check_fit(machine, spec)
        missing = [name for name in names if name not in there]
        made = await self._make(launcher, spec, missing, have) if missing else LaunchResult(listed)
        try:
            _check_none_gone([machine.name for machine in have], one_of_each(made.there))
            return await self._make_ready(launcher, spec, names, made)
        except BaseException:
            await finish(launcher.give_back(made))
            raise

    async def _make_ready(
        self, launcher: Launcher, spec: MachineSpec, names: Sequence[str], made: LaunchResult
    ) -> list[Machine]:
        """Start the stopped machines and set the release time of all."""
        there = one_of_each(made.there)
        names = [name for name in names if name in there]
        if await self._start(self.client, [there[name] for name in names]):
            there = one_of_each(await launcher.machines())
            _check_none_gone(names, there)
        if spec.max_hours:
            ids = [there[name].id for name in names]
            await renew(self.client, [each for each in ids if each not in made.ids], spec.max_hours)
            self._auto_release.hold(ids, spec.max_hours)
        return [there[name] for name in names]

    async def _make(
        self, launcher: Launcher, spec: MachineSpec, missing: Sequence[str], have: Sequence[Machine]
    ) -> LaunchResult:
        least = min(
            len(missing), max(spec.min_machines - len(have), 0) if spec.min_machines else len(missing)
        )
        try:
            return await launcher.make(spec, missing, least=max(least, 1), near=have)
        except CapacityError:
            if least:
                raise
            return LaunchResult(have)

    async def _start(self, client: Client, machines: Sequence[Machine]) -> list[str]:
        """Start the machines that do not run. If one cannot be started, stop the started ones again."""
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
        found = await self._fetch_in(self.client)
        if not found:
            await self._check_sight()
        return found

    async def _fetch_in(self, client: Client, *, everybody: bool = False) -> Sequence[Machine]:
        login = await self._learn()
        return await fetch_machines(client, user=self.settings.user, login=login, everybody=everybody)

    async def _note_spending(self, client: Client, ids: Sequence[str]) -> None:
        """Write the costs so far into tags, before the provider forgets when the machines ran."""
        now = self.clock.now()
        found = {
            machine.id: spent_text(Decimal(machine.details["spent"]), now)
            for machine in await self._fetch_in(client)
            if machine.id in ids and machine.state is MachineState.RUNNING and "spent" in machine.details
        }
        with suppress(Error):  # stopping matters more than keeping accounts
            await power.write_tag(client, SPENT_TAG, found)

    async def _groups_of(self, machines: Sequence[Machine]) -> list[tuple[str, list[security_groups.Group]]]:
        if not machines:
            return [(self.client.region, list(await security_groups.fetch_groups(self.client)))]
        found = []
        for region, part in by_region(machines):
            ids = {
                each
                for machine in part
                for each in machine.details.get("security_group_ids", "").split(",")
                if each
            }
            found.append(
                (region, [security_groups.Group(id=each, name=each, vpc_id="") for each in sorted(ids)])
            )
        return found

    async def _mount_on(self, machines: Sequence[Machine], script: str) -> None:
        async def one(machine: Machine) -> None:
            done = await self.transport(machine).run(script)
            if done.status:
                said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
                raise UnreachableError(
                    f"the shared storage cannot be mounted on {machine.name}: {said[-1] if said else done.status}",
                    hint=f"Try again with `trainyard mount {machine.name}`.",
                )

        results = await map_bounded(one, machines, limit=CONCURRENT_MOUNTS)
        errors = [result for result in results if isinstance(result, Exception)]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise TaskErrors(f"{len(errors)} of {len(machines)} machines have no shared storage", errors)

    async def _check_sight(self) -> None:
        """Check that we may list machines. Without the right the provider returns an empty list."""
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
        """Hold a lock, so that no other client of this user makes machines of these jobs meanwhile."""
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
        way = import_module(
            "trainyard.backends.aliyun.access.connect"
        )  # brings asyncssh, which listing can do without
        port = int(machine.details.get("ssh_port", "22"))
        known = way.KnownKey(self._known_hosts_folder / machine.id, host, port)
        host_key = known.read() or machine.details.get("host_key", "")
        if host_key:
            known.write(host_key)
        address = way.SshAddress(
            host,
            port=port,
            user=machine.user,
            identity_files=self._identity_files(machine),
            known_hosts=known.path,
        )
        made: InstanceTransport = way.InstanceTransport(
            address,
            name=machine.name,
            clock=self.clock,
            known=known,
            fetch_key=partial(self._fetch_host_key, machine),
            admit=partial(self._admit_key, machine),
        )
        return made

    async def _fetch_host_key(self, machine: Machine, patience: float) -> str:
        region = machine.region or self.client.region
        reader = self._host_keys.setdefault(region, HostKeyReader(self._client(region)))
        return await reader.read(machine.id, patience=patience)

    def _identity_files(self, machine: Machine) -> tuple[Path, ...]:
        """Return our own key, made if missing, and the key of earlier tools if there is one."""
        name = key_name(self.settings.cloud.prefix, self.settings.user)
        own = self.client.folder / "keys" / f"{name}.pem"
        family = self.settings.cloud.user_home / ".ncluster" / f"{name}-{machine.region}.pem"
        if not own.exists() and not family.exists():
            import_module("trainyard.backends.aliyun.access.rsa_key").load_or_make(own)
        return tuple(path for path in (own, family) if path.exists())

    async def _admit_key(self, machine: Machine) -> bool:
        """Put our key into a machine that was made from another computer. Returns whether that succeeded."""
        name = key_name(self.settings.cloud.prefix, self.settings.user)
        own = self.client.folder / "keys" / f"{name}.pem"
        if not own.exists():
            return False
        line: str = import_module("trainyard.backends.aliyun.access.rsa_key").public_line(own)
        try:
            await cloud_assistant.admit_key(self._client(machine.region), machine.id, line)
        except (DeniedError, NotFoundError):
            return False
        return True

    def _patience(self, machine: Machine) -> float:
        """Return for how many seconds a silent machine may still be booting."""
        if machine.started is None:
            return BOOT.total_seconds()
        return max(0.0, (machine.started + MINUTE + BOOT - self.clock.now()).total_seconds())


def _check_none_gone(names: Sequence[str], there: Mapping[str, Machine]) -> None:
    gone = [name for name in names if name not in there]
    if gone:
        raise UnreachableError(
            f"somebody released these machines meanwhile: {', '.join(gone)}",
            hint="Run the same command again.",
        )


def _gone(machine: Machine) -> NotFoundError:
    return NotFoundError(f"there is no machine {machine.name!r} any more", hint="See `trainyard ls`.")
