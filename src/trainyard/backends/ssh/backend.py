"""The class SshBackend. A machine is a host under a lease; there is no other state.

The parts: `inventory.py` (the list of hosts), `lease.py` (who holds a host), `host_connections.py` (asking all hosts),
`acquire.py` (taking hosts) and `hosts.py` (operations on hosts). Nothing here waits for readiness or retries.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Self

from trainyard.backends.ssh import acquire as acquiring
from trainyard.backends.ssh import lease as leases
from trainyard.backends.ssh.connect import MARK, MachineTransport
from trainyard.backends.ssh.host_connections import MOST_AT_ONCE, HostConnections
from trainyard.backends.ssh.inventory import Host, Inventory
from trainyard.backends.ssh.lease import RUNNING, STOPPED, Lease
from trainyard.backends.ssh.locks import hold
from trainyard.lib.aio import map_bounded
from trainyard.lib.clock import Clock
from trainyard.lib.errors import ConflictError, DeniedError, Error, InvalidError, NotFoundError, TaskErrors
from trainyard.settings import Settings
from trainyard.spec.machine import Machine, MachineSpec, MachineState
from trainyard.spec.names import check_name, sort_key


class SshBackend:
    """Machines on hosts that you can ssh to."""

    name: ClassVar[str] = "ssh"

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.fleet = HostConnections(settings, clock=clock)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Make a backend for the registry."""
        return cls(settings)

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        """Find the hosts leased under these names, and lease free ones for the others. All or none."""
        for name in names:
            check_name(name, "machine name")
        if len(set(names)) < len(names):
            raise InvalidError("a machine is named twice", hint="Give every machine a name of its own.")
        if not names:
            return []
        async with hold(self.fleet.settings.home / "cache" / "ssh-names", names):
            held = await acquiring.acquire(self.fleet, spec, names)
        machines = []
        for name in names:
            host, lease = held[name]
            self.fleet.set_refusal(lease.id, "")
            machines.append(describe(host, lease, MachineState.RUNNING))
        return machines

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        """Ask all hosts at once. A machine of ours whose host is silent is listed as lost, from the cache."""
        look = await self.fleet.look(self.fleet.inventory(allow_empty=True))
        found = []
        for host, lease in look.leased():
            if lease.is_mine:
                stopped = lease.state == STOPPED
                self.fleet.set_refusal(lease.id, _stopped(lease.name) if stopped else "")
                found.append(describe(host, lease, MachineState.STOPPED if stopped else MachineState.RUNNING))
        found += [
            describe(host, lease, MachineState.LOST, reason=error.message)
            for host, lease, error in look.lost()
        ]
        matching = [machine for machine in found if fnmatchcase(machine.name, name)]
        return sorted(matching, key=lambda machine: sort_key(machine.name))

    async def release(self, machines: Sequence[Machine]) -> None:
        """End everything on the machines, remove ~/.trainyard/<name>, end the leases. Other files stay."""
        await self._each(machines, self._release, "released")

    async def stop(self, machines: Sequence[Machine]) -> None:
        """End everything on the machines: SIGTERM, a grace period, SIGKILL. The leases stay."""
        await self._each(machines, self._stop, "stopped")

    async def start(self, machines: Sequence[Machine]) -> None:
        """Let stopped machines run commands again."""
        await self._each(machines, self._start, "started")

    async def rename(self, machine: Machine, name: str) -> Machine:
        """Rename a stopped machine. A running process could not be told that its folder has moved."""
        check_name(name, "machine name")
        inventory = self.fleet.inventory()
        async with hold(self.fleet.settings.home / "cache" / "ssh-names", {machine.name, name}):
            look = await self.fleet.look(inventory)
            found = [(host, lease) for host, lease in look.leased() if lease.id == machine.id]
            if not found:
                raise _gone(machine)
            host, lease = found[0]
            _refuse_foreign(host, lease)
            if name == lease.name:
                return describe(host, lease, MachineState(lease.state))
            if any(other.name == name for _, other in look.leased()):
                raise ConflictError(f"there is a machine {name!r} already", hint="Choose another name.")
            if lease.state != STOPPED:
                raise ConflictError(
                    f"the machine {lease.name!r} is running", hint=f"Run `trainyard stop {lease.name}` first."
                )
            way = self.fleet.way(host, inventory)
            if not await leases.set_name(way, host, lease.id, old=lease.name, new=name):
                raise _gone(machine)
            self.fleet.forget_machine(lease.id)  # its mark has the old name
            renamed = await self._current(host, inventory, machine)
        return describe(host, renamed, MachineState.STOPPED)

    def transport(self, machine: Machine) -> MachineTransport:
        """Return the transport to the machine, over the shared connection to its host."""
        host, inventory = self._place(machine)
        env = {
            MARK: f"{machine.name}:{machine.id}",
            "TRAINYARD_ADDRESS": machine.address,
            "PYTHONUNBUFFERED": "1",
        }
        refusal = _stopped(machine.name) if machine.state is MachineState.STOPPED else ""
        return self.fleet.machine_way(machine.id, self.fleet.way(host, inventory), env=env, refusal=refusal)

    async def aclose(self) -> None:
        """Close the connections; machines stay as they are."""
        await self.fleet.aclose()

    def _place(self, machine: Machine) -> tuple[Host, Inventory]:
        inventory = self.fleet.inventory()
        return inventory.host(machine.details.get("host", "")), inventory

    async def _current(self, host: Host, inventory: Inventory, machine: Machine) -> Lease:
        """The lease of this very machine, not of a later one with its name; NotFoundError where it is over."""
        survey = await leases.survey(self.fleet.way(host, inventory), host)
        if survey.lease is None or survey.lease.id != machine.id:
            raise _gone(machine)
        _refuse_foreign(host, survey.lease)
        return survey.lease

    async def _stop(self, machine: Machine) -> None:
        host, inventory = self._place(machine)
        lease = await self._current(host, inventory, machine)
        way = self.fleet.way(host, inventory)
        self.fleet.set_refusal(machine.id, _stopped(lease.name))
        try:
            await leases.end_processes(way, machine.id, grace_seconds=self._grace)
            if not await leases.set_state(way, host, machine.id, STOPPED):
                raise _gone(machine)
        except BaseException:
            self.fleet.set_refusal(machine.id, "")
            raise

    async def _start(self, machine: Machine) -> None:
        host, inventory = self._place(machine)
        await self._current(host, inventory, machine)
        way = self.fleet.way(host, inventory)
        if not await leases.set_state(way, host, machine.id, RUNNING):
            raise _gone(machine)
        self.fleet.set_refusal(machine.id, "")

    async def _release(self, machine: Machine) -> None:
        host, inventory = self._place(machine)
        way = self.fleet.way(host, inventory)
        lease = (await leases.survey(way, host)).lease
        ours = lease if lease and lease.id == machine.id else None
        if ours:
            _refuse_foreign(host, ours)
        # Also if the lease was broken, because the remaining processes are ours to end.
        await leases.end_processes(way, machine.id, grace_seconds=self._grace)
        if ours:
            name = check_name(ours.name, "machine name")
            who = self.fleet.settings.owner
            await leases.end(way, host, machine.id, who=who, removing_folder_of=name)
        self.fleet.forget_lease(host, machine.id)

    @property
    def _grace(self) -> float:
        return self.fleet.settings.stop_grace_seconds

    async def _each(
        self, machines: Sequence[Machine], verb: Callable[[Machine], Coroutine[Any, Any, None]], done: str
    ) -> None:
        """Act on all machines at once. The failures are raised together at the end."""
        unique = list({machine.id: machine for machine in machines}.values())
        results = await map_bounded(verb, unique, limit=MOST_AT_ONCE)
        errors = [result for result in results if isinstance(result, Error)]
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Error):
                raise result
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise TaskErrors(f"{len(errors)} of {len(unique)} machines could not be {done}", errors)


def describe(host: Host, lease: Lease, state: MachineState, *, reason: str = "") -> Machine:
    """A lease as a machine."""
    details = {"host": host.name, "os": lease.facts.os, "kernel": lease.facts.kernel}
    return Machine(
        name=lease.name,
        id=lease.id,
        backend=SshBackend.name,
        state=state,
        address=host.private_address or lease.facts.own_address or host.target,
        public_address=host.target,
        user=lease.facts.user or host.user,
        home=lease.facts.home,
        type=lease.type,
        image=lease.image,
        cpus=lease.facts.cores,
        memory_mib=lease.facts.memory_mib,
        devices=lease.facts.devices,
        owner=lease.owner,
        created=lease.taken,
        started=lease.taken if state is MachineState.RUNNING else None,
        details={**details, "reason": reason} if reason else details,
    )


def _stopped(name: str) -> str:
    return f"the machine {name!r} is stopped"


def _refuse_foreign(host: Host, lease: Lease) -> None:
    if not lease.is_mine:
        raise DeniedError(
            f"the machine {lease.name!r} belongs to another account: {lease.holder}",
            hint=f"Ask them; if they are gone, end the lease with `trainyard hosts break {host.name}`.",
        )


def _gone(machine: Machine) -> NotFoundError:
    return NotFoundError(f"there is no machine {machine.name!r} any more", hint="See `trainyard ls`.")
