"""The client's connections to all hosts, and a survey that asks all hosts at once and updates the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from trainyard.backends.ssh import cache as caching
from trainyard.backends.ssh import inventory as inventories
from trainyard.backends.ssh import lease as leases
from trainyard.backends.ssh.cache import Cache, CachedHost
from trainyard.backends.ssh.connect import HostTransport, MachineTransport
from trainyard.backends.ssh.inventory import Host, Inventory
from trainyard.backends.ssh.lease import Lease, Survey
from trainyard.lib.aio import gather_all, map_bounded
from trainyard.lib.clock import Clock, SystemClock
from trainyard.lib.errors import Error, InvalidError, UnreachableError
from trainyard.settings import Settings

MOST_AT_ONCE = 64  # connections being opened at a time: each costs milliseconds of key exchange on this side
PATIENT_SECONDS = 120.0  # connecting through jump hosts, then a probe with a slow driver
IMPATIENT_SECONDS = 5.0  # for a host that was silent a moment ago, so that not every command waits for it


@dataclass(frozen=True, slots=True)
class HostsReport:
    """The answers of all hosts, in the order of the inventory, and the errors of silent ones."""

    inventory: Inventory
    answers: Mapping[str, Survey]
    failures: Mapping[str, Error]
    remembered: Mapping[str, CachedHost]

    def leased(self) -> list[tuple[Host, Lease]]:
        """The hosts that are leased. A host with two names in the inventory is listed once."""
        found: dict[str, tuple[Host, Lease]] = {}
        for name, answer in self.answers.items():
            if answer.lease is not None:
                found.setdefault(answer.lease.id, (self.inventory.hosts[name], answer.lease))
        return list(found.values())

    def lost(self) -> list[tuple[Host, Lease, Error]]:
        """Our machines on hosts that do not answer, as last seen."""
        present = {lease.id for _, lease in self.leased()}
        return [
            (self.inventory.hosts[name], lease, error)
            for name, error in self.failures.items()
            if (lease := self.remembered[name].lease) and lease.id not in present
        ]


class HostConnections:
    """Connections are opened on first use and kept until `aclose`; after that they are opened again when needed."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.cache = Cache(settings.home / "cache" / "ssh.json")
        self._loaded: tuple[tuple[int, int, int], Inventory] | None = None
        self._ways: dict[str, HostTransport] = {}
        self._retired: list[HostTransport] = []
        self._machines: dict[str, MachineTransport] = {}

    def inventory(self, *, allow_empty: bool = False) -> Inventory:
        """The inventory as it is now; InvalidError where it is empty."""
        inventory = self._load()
        if not inventory.hosts and not allow_empty:
            raise InvalidError(
                f"there are no hosts in {inventory.path}", hint="Add one with `trainyard hosts add NAME`."
            )
        return inventory

    def _load(self) -> Inventory:
        """Read the file only where it has changed: parsing 256 hosts takes longer than a command on one."""
        path = self.settings.hosts_file
        try:
            facts = path.stat()
        except OSError:
            return inventories.load(path)
        version = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        if self._loaded is None or self._loaded[0] != version:
            self._loaded = version, inventories.load(path)
        return self._loaded[1]

    def way(self, host: Host, inventory: Inventory) -> HostTransport:
        """The connection to a host; a new one where it was closed, or where the host's entry has changed."""
        way = self._ways.get(host.name)
        if way is not None and (way.is_closed or way.host != host):
            self._retired.append(way)
            way = None
        if way is None:
            way = self._ways[host.name] = HostTransport(host, inventory)
        return way

    def machine_way(
        self, lease_id: str, host: HostTransport, *, env: Mapping[str, str], refusal: str
    ) -> MachineTransport:
        """The way to a machine, over the host's connection; one object as long as that is open."""
        found = self._machines.get(lease_id)
        if found is None or found.is_apart_from(host):
            found = self._machines[lease_id] = MachineTransport(host, env=env)
            found.refuse(refusal)
        return found

    def set_refusal(self, lease_id: str, reason: str) -> None:
        """Refuse work on a stopped machine, or allow it again."""
        if found := self._machines.get(lease_id):
            found.refuse(reason)

    def forget_machine(self, lease_id: str) -> None:
        """The machine is gone, or has another name."""
        self._machines.pop(lease_id, None)

    def remember(self, held: Iterable[tuple[Host, Lease]]) -> None:
        """Remember that these hosts are ours, so that their machines are listed as lost if the hosts fall silent."""
        held = list(held)
        seen = self.cache.seen_all(host for host, _ in held)
        self.cache.note(
            {
                host.name: caching.answered(seen[host.name], lease, seen[host.name].facts or lease.facts)
                for host, lease in held
            }
        )

    def forget_lease(self, host: Host, lease_id: str) -> None:
        """The lease is over."""
        self.forget_machine(lease_id)
        seen = self.cache.seen(host)
        if seen.lease and seen.lease.id == lease_id:
            self.cache.note({host.name: caching.answered(seen, None)})

    async def look(
        self,
        inventory: Inventory,
        *,
        probing: bool = False,
        only: tuple[str, ...] | None = None,
        wanted: Collection[str] = (),
    ) -> HostsReport:
        """Look at all hosts (or some) at once. A host that does not answer is a value, not an error.

        `wanted` names machines that will be used next. A shell is kept ready for each of them that we hold already.
        """
        names = [name for name in inventory.hosts if only is None or name in only]
        remembered = self.cache.seen_all(inventory.hosts[name] for name in names)

        async def one(name: str) -> Survey:
            seen = remembered[name]
            warm = seen.lease if seen.lease and seen.lease.name in wanted else None
            return await self._survey(inventory.hosts[name], inventory, seen, probing=probing, warm=warm)

        results = await map_bounded(one, names, limit=MOST_AT_ONCE)
        answers: dict[str, Survey] = {}
        failures: dict[str, Error] = {}
        for name, result in zip(names, results, strict=True):
            if isinstance(result, Survey):
                answers[name] = result
            elif isinstance(result, Error):
                failures[name] = result
            else:
                raise result
        self._remember(remembered, answers, failures)
        return HostsReport(inventory, answers, failures, remembered)

    async def _survey(
        self, host: Host, inventory: Inventory, seen: CachedHost, *, probing: bool, warm: Lease | None = None
    ) -> Survey:
        silent = caching.is_silent(seen, self.clock.now())
        limit = IMPATIENT_SECONDS if silent else PATIENT_SECONDS
        way = self.way(host, inventory)
        try:
            async with asyncio.timeout(limit):
                if warm is not None:
                    survey = await leases.survey_again(way, host, warm, probing=probing)
                else:
                    survey = await leases.survey(way, host, probing=probing)
                if survey.lease and survey.lease.id in seen.to_end:
                    await leases.end(way, host, survey.lease.id, who=f"{self.settings.owner}, in vain")
                    survey = await leases.survey(way, host, probing=probing)
        except TimeoutError as error:
            raise UnreachableError(f"{host.name} did not answer within {limit:.0f} s") from error
        return survey

    def _remember(
        self,
        remembered: Mapping[str, CachedHost],
        answers: Mapping[str, Survey],
        failures: Mapping[str, Error],
    ) -> None:
        now = self.clock.now()
        changes = {
            name: caching.answered(remembered[name], answer.lease, remembered[name].facts or answer.facts)
            for name, answer in answers.items()
        }
        changes |= {name: caching.kept_silent(remembered[name], now) for name in failures}
        self.cache.note(changes)

    async def aclose(self) -> None:
        """Close all connections. Processes on the hosts run on."""
        machines, self._machines = list(self._machines.values()), {}
        ways, self._ways, self._retired = [*self._ways.values(), *self._retired], {}, []
        await gather_all([machine.aclose() for machine in machines])
        await gather_all([way.aclose() for way in ways])
