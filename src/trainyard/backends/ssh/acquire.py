"""Implements `acquire`: finds the machines of names, chooses free hosts that fit, and takes all or none.

Two clients that want the same names at once try the same hosts in the same order, so the host decides: the second
client finds a lease with the name that it wants, and uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from trainyard.backends.ssh import cache as caching
from trainyard.backends.ssh import lease as leases
from trainyard.backends.ssh.connect import Runner
from trainyard.backends.ssh.host_connections import HostConnections, HostsReport
from trainyard.backends.ssh.inventory import Host, Inventory
from trainyard.backends.ssh.lease import STOPPED, Lease, TakenError
from trainyard.backends.ssh.probe import HostFacts
from trainyard.lib.aio import finish, gather_all
from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    DeniedError,
    Error,
    UnreachableError,
)
from trainyard.lib.ids import new_id
from trainyard.spec.machine import MachineSpec

Held = dict[str, tuple[Host, Lease]]


async def acquire(fleet: HostConnections, spec: MachineSpec, names: Sequence[str]) -> Held:
    """Find or take a host for every name. On any error or cancellation the taken hosts are given back."""
    inventory = fleet.inventory()
    look = await fleet.look(inventory, probing=bool(spec.gpus or spec.npus), wanted=names)
    held = _find_held(look, spec, names)
    missing = [name for name in names if name not in held]
    _refuse_doubtful(look, missing)
    attempt = _Attempt(fleet, inventory, spec)
    try:
        held |= await attempt.take_all(missing, look)
        await attempt.start_stopped(held)
    except BaseException:
        await finish(attempt.undo())
        raise
    fleet.remember(held.values())
    return held


def _find_held(look: HostsReport, spec: MachineSpec, names: Sequence[str]) -> Held:
    held: Held = {}
    for host, lease in look.leased():
        if lease.name not in names or not lease.is_mine:
            continue
        if lease.name in held:
            raise ConflictError(
                f"there are two machines {lease.name!r}: on {held[lease.name][0].name} and on {host.name}",
                hint=f"End one of them with `trainyard hosts break {host.name}`.",
            )
        held[lease.name] = host, lease
        check_fit(lease, spec)
    for host, lease in look.leased():
        if lease.name in names and lease.name not in held:
            raise ConflictError(
                f"the name {lease.name!r} is taken on {host.name} by another account: {lease.holder}",
                hint="Choose another name.",
            )
    return held


def check_fit(lease: Lease, spec: MachineSpec) -> None:
    """Raise ConflictError if an existing machine does not fit the spec."""
    hint = f"Choose another name, or run `trainyard kill {lease.name}` first."
    if spec.type and spec.type != lease.type:
        raise ConflictError(
            f"the machine {lease.name!r} has the type {lease.type!r}, not {spec.type!r}", hint=hint
        )
    if reason := _shortage(lease.facts, spec):
        raise ConflictError(f"the machine {lease.name!r} has {reason}", hint=hint)


def _shortage(facts: HostFacts, spec: MachineSpec) -> str:
    if (spec.gpus or 0) > facts.gpus:
        return f"{facts.gpus} of {spec.gpus} GPUs"
    if spec.npus > facts.npus:
        return f"{facts.npus} of {spec.npus} NPUs"
    return ""


def _refuse_doubtful(look: HostsReport, missing: Sequence[str]) -> None:
    """Refuse to make a machine again if its host is silent, because it may still be running there."""
    for host, lease, error in look.lost():
        if lease.name in missing:
            raise UnreachableError(
                f"the machine {lease.name!r} is on {host.name}, which does not answer: {error.message}",
                hint=f"Bring {host.name} back, or give it up with `trainyard hosts rm --force {host.name}`.",
            )


class _Attempt:
    """The hosts that one call has taken and started so far, so that it can undo that."""

    def __init__(self, fleet: HostConnections, inventory: Inventory, spec: MachineSpec) -> None:
        self._fleet = fleet
        self._inventory = inventory
        self._spec = spec
        self._tried: dict[str, Host] = {}  # lease id → where; noted before the host is asked
        self._started: list[tuple[Host, Lease]] = []
        self._taken: Held = {}
        self._met: Held = {}  # leases of names that we want, made by another client at the same moment
        self._reasons: dict[str, str] = {}

    async def take_all(self, names: Sequence[str], look: HostsReport) -> Held:
        """Lease a host for each name. CapacityError with all reasons if there are not enough."""
        if not names:
            return {}
        free = deque(self._fitting(look))
        if len(free) < len(names):
            raise self._shortage_error(names, look, [host.name for host in free])
        first = [free.popleft() for _ in names]
        results = await gather_all(
            [self._take(name, host, free, names) for name, host in zip(names, first, strict=True)]
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        await self._settle()
        if any(name not in self._taken for name in names):
            raise self._shortage_error(names, look, [host.name for host, _ in self._taken.values()])
        return self._taken

    async def start_stopped(self, held: Held) -> None:
        """Start the stopped machines."""
        for name, (host, lease) in held.items():
            if lease.state != STOPPED:
                continue
            self._started.append((host, lease))
            if not await leases.set_state(self._way(host), host, lease.id, leases.RUNNING):
                raise ConflictError(f"the machine {name!r} was released meanwhile", hint="Call again.")

    async def undo(self) -> None:
        """Give taken hosts back and stop started machines. Leases on silent hosts are remembered and ended later."""
        await gather_all([self._give_back(lease_id, host) for lease_id, host in self._tried.items()])
        await gather_all(
            [leases.set_state(self._way(host), host, lease.id, STOPPED) for host, lease in self._started]
        )

    def _fitting(self, look: HostsReport) -> list[Host]:
        """Return the free hosts that fit the spec, in the order of the inventory. Notes why others do not fit."""
        labelled = any(host.type == self._spec.type for host in self._inventory.hosts.values())
        fitting = []
        for name, answer in look.answers.items():
            host = self._inventory.hosts[name]
            if answer.lease is not None:
                self._reasons[name] = f"{name} is leased by {answer.lease.holder}"
            elif (tag := self._spec.labels.get("tag", "")) and tag not in host.tags:
                self._reasons[name] = f"{name} has no tag {tag!r}"
            elif self._spec.type and labelled and host.type != self._spec.type:
                self._reasons[name] = (
                    f"{name} is of type {host.type!r}" if host.type else f"{name} has no type"
                )
            elif reason := _shortage(answer.facts or HostFacts(), self._spec):
                self._reasons[name] = f"{name} has {reason}"
            else:
                fitting.append(host)
        return fitting

    async def _take(self, name: str, host: Host, spare: deque[Host], wanted: Sequence[str]) -> None:
        """Lease `host` for `name`. If it is taken, try the spare hosts until one is ours or none is left."""
        while True:
            lease_id = new_id()
            self._tried[lease_id] = host
            try:
                lease = await leases.take(
                    self._way(host),
                    host,
                    lease_id=lease_id,
                    name=name,
                    owner=self._fleet.settings.owner,
                    now=self._fleet.clock.now(),
                    spec=self._spec,
                )
            except TakenError as error:
                del self._tried[lease_id]
                self._reasons[host.name] = f"{host.name} is leased by {error.lease.holder}"
                if error.lease.is_mine and error.lease.name in wanted:
                    self._met[error.lease.name] = host, error.lease
            except DeniedError as error:
                del self._tried[lease_id]  # it said that it could not make the lease
                self._reasons[host.name] = error.message
            else:
                self._taken[name] = host, lease
                return
            if name in self._met or not spare:
                return
            host = spare.popleft()

    async def _settle(self) -> None:
        """If another client made a machine of the same name, keep the older one."""
        for name, (host, lease) in self._met.items():
            check_fit(lease, self._spec)
            ours = self._taken.get(name)
            if ours is not None and ours[1].id < lease.id:
                continue
            self._taken[name] = host, lease
            if ours is not None:
                await self._give_back(ours[1].id, ours[0])

    async def _give_back(self, lease_id: str, host: Host) -> None:
        try:
            await leases.revoke(
                self._way(host), host, lease_id, who=f"{self._fleet.settings.owner}, taken back"
            )
        except Error:  # the lease may exist now or later; it is ended when the host answers again
            cache = self._fleet.cache
            cache.note({host.name: caching.doubtful(cache.seen(host), lease_id)})

    def _way(self, host: Host) -> Runner:
        return self._fleet.way(host, self._inventory)

    def _shortage_error(self, names: Sequence[str], look: HostsReport, free: Sequence[str]) -> CapacityError:
        parts = [f"{len(names)} wanted; free: {', '.join(free) or 'none'}"]
        parts += [self._reasons[name] for name in sorted(self._reasons)]
        parts += [f"unreachable: {name} ({error.message})" for name, error in look.failures.items()]
        return CapacityError(
            f"there are not enough hosts for {_listed(names)}: {'; '.join(parts)}",
            hint="Release machines with `trainyard kill`, or add hosts with `trainyard hosts add`.",
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
