"""The operations of `trainyard hosts`: add, list, check, accept and remove hosts, and break a lease.

`backend.py` handles machines on hosts. The command line asks for confirmation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trainyard.backends.ssh import cache as caching
from trainyard.backends.ssh import inventory as inventories
from trainyard.backends.ssh import lease as leases
from trainyard.backends.ssh.connect import address_of
from trainyard.backends.ssh.host_connections import HostConnections
from trainyard.backends.ssh.inventory import Host, Inventory
from trainyard.backends.ssh.lease import Lease
from trainyard.backends.ssh.probe import HostFacts, Problem, probe, problems
from trainyard.lib.errors import ConflictError, DeniedError, Error, NotFoundError
from trainyard.settings import Settings
from trainyard.transport.ssh import (
    HostKey,
    SshAddress,
    accept_host_key,
    chain,
    fetch_host_key,
    parse_address,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """The state of a host. If it does not answer, `error` says why, and facts and lease are from the cache."""

    host: Host
    facts: HostFacts | None = None
    lease: Lease | None = None
    error: Error | None = None
    problems: Sequence[Problem] = ()

    @property
    def state(self) -> str:
        """`free`, `leased` (by this account), `taken` (by another), `unreachable`, or `denied` (key or login)."""
        if self.error is not None:
            return "denied" if isinstance(self.error, DeniedError) else "unreachable"
        if self.lease is None:
            return "free"
        return "leased" if self.lease.is_mine else "taken"


async def add_host(settings: Settings, host: Host, *, replace: bool = False) -> HostReport:
    """Put a host into the inventory, then check it. The host stays there even if the check fails."""
    await asyncio.to_thread(inventories.add, settings.hosts_file, host, replace=replace)
    return await check_host(settings, host.name)


async def list_hosts(settings: Settings) -> Sequence[HostReport]:
    """Ask all hosts at once who holds them. Their hardware is as last probed."""
    async with _fleet(settings) as (fleet, inventory):
        look = await fleet.look(inventory)
        reports = []
        for name, host in inventory.hosts.items():
            answer, seen = look.answers.get(name), look.remembered[name]
            lease = answer.lease if answer else seen.lease
            facts = seen.facts or (lease.facts if lease else None)
            reports.append(HostReport(host=host, facts=facts, lease=lease, error=look.failures.get(name)))
        return reports


async def check_host(settings: Settings, name: str) -> HostReport:
    """Probe one host anew, try whether leases can be kept there, and say what stands in the way."""
    async with _fleet(settings) as (fleet, inventory):
        host = inventory.host(name)
        way = fleet.way(host, inventory)
        seen = fleet.cache.seen(host)
        try:
            survey = await leases.survey(way, host)
            facts = await probe(way)
        except Error as error:
            fleet.cache.note({name: caching.kept_silent(seen, fleet.clock.now())})
            found = [Problem("error", error.message, error.hint)]
            return HostReport(host=host, facts=seen.facts, lease=seen.lease, error=error, problems=found)
        found = problems(facts)
        try:
            await leases.check_place(way, host)
        except Error as error:
            found.insert(0, Problem("error", error.message, error.hint))
        fleet.cache.note({name: caching.answered(seen, survey.lease, facts)})
        return HostReport(host=host, facts=facts, lease=survey.lease, problems=found)


async def remove_host(settings: Settings, name: str, *, force: bool = False) -> None:
    """Take a host out of the inventory; ConflictError while we hold it, or may hold it, unless forced.

    Nothing on the host changes. A lease that is left there can be ended by any user whose inventory has the host.
    """
    async with _fleet(settings) as (fleet, inventory):
        inventory.host(name)
        if not force:
            look = await fleet.look(inventory, only=(name,))
            ours = [lease for _, lease in look.leased() if lease.is_mine]
            ours += [lease for _, lease, _ in look.lost()]
            if ours:
                raise ConflictError(
                    f"the host {name} is leased by {ours[0].holder}",
                    hint=f"Run `trainyard kill {ours[0].name}` first, or add --force.",
                )
        await asyncio.to_thread(inventories.remove, settings.hosts_file, name)
        fleet.cache.forget(name)


async def fetch_key(settings: Settings, name: str) -> HostKey:
    """The key that the host shows now, trusted or not."""
    return await fetch_host_key(_find_address(inventories.load(settings.hosts_file), name))


async def accept_host(settings: Settings, name: str, fingerprint: str) -> HostKey:
    """Make the host known, if its key has this fingerprint; DeniedError where it has not.

    `name` may also be a jump host as messages write it, since every host on the way must be known.
    """
    return await accept_host_key(_find_address(inventories.load(settings.hosts_file), name), fingerprint)


async def break_lease(settings: Settings, name: str, *, lease_id: str = "") -> Lease:
    """End the current lease of the host and return it. With `lease_id`, end only that one.

    If the lease is this account's, its processes are ended too. We cannot end processes of other accounts.
    """
    async with _fleet(settings) as (fleet, inventory):
        host = inventory.host(name)
        way = fleet.way(host, inventory)
        lease = (await leases.survey(way, host)).lease
        if lease is None:
            raise NotFoundError(f"nobody holds the host {name}", hint="See `trainyard hosts ls`.")
        if lease_id and lease.id != lease_id:
            raise ConflictError(
                f"the host {name} is leased by somebody else now: {lease.holder}",
                hint="Look again with `trainyard hosts ls`.",
            )
        if lease.is_mine:
            await leases.end_processes(way, lease.id, grace_seconds=settings.stop_grace_seconds)
        await leases.end(way, host, lease.id, who=f"{settings.owner}, on purpose")
        fleet.forget_lease(host, lease.id)
        return lease


@asynccontextmanager
async def _fleet(settings: Settings) -> AsyncIterator[tuple[HostConnections, Inventory]]:
    fleet = HostConnections(settings)
    try:
        yield fleet, fleet.inventory(allow_empty=True)
    finally:
        await fleet.aclose()


def _find_address(inventory: Inventory, name: str) -> SshAddress:
    if name in inventory.hosts:
        return address_of(inventory.hosts[name], inventory)
    for host in inventory.hosts.values():
        for hop in chain(address_of(host, inventory)):
            if name in (hop.host, str(hop)):
                return hop
    return parse_address(name)
