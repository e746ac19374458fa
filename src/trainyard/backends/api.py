"""The Backend protocol: the methods that every backend has, and the capabilities that some have.

A backend never waits for readiness, retries or polls by itself; `runtime/` does. `backends/contract.py` tests backends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import ClassVar, Protocol, runtime_checkable

from trainyard.spec.machine import Machine, MachineSpec
from trainyard.spec.plan import Figures, Leftover, Plan
from trainyard.transport.api import Transport


class Backend(Protocol):
    """Makes, lists, reaches and releases machines."""

    name: ClassVar[str]

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        """Ask for machines with these names; return as soon as they are promised, in the order of `names`.

        A name that already has a machine gets that machine, so the call can be repeated; a stopped machine is started.
        A machine of that name that does not fit `spec` is a ConflictError. All or none: after an error nothing that
        this call made is left behind.
        """
        ...

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        """All machines of ours whose name matches the pattern, as they are now, in `names.sort_key` order."""
        ...

    async def release(self, machines: Sequence[Machine]) -> None:
        """Give machines back for good, even if commands run on them. It is no error if one is gone already."""
        ...

    def transport(self, machine: Machine) -> Transport:
        """Return the transport to a machine: always the same object, so that connections are shared."""
        ...

    async def aclose(self) -> None:
        """Close all transports. Machines stay as they are."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """Machines can be stopped with their files kept, and started again."""

    async def stop(self, machines: Sequence[Machine]) -> None:
        """End all processes and keep the files. Stopping a stopped machine is no error."""
        ...

    async def start(self, machines: Sequence[Machine]) -> None:
        """Let the machines start again; does not wait for it. Starting a running machine is no error."""
        ...


@runtime_checkable
class Renamable(Protocol):
    """A machine can change its name. ConflictError where the new name is taken."""

    async def rename(self, machine: Machine, name: str) -> Machine:
        """Give the machine another name; returns its new description."""
        ...


@runtime_checkable
class Firewalled(Protocol):
    """Machines stand behind a firewall that can admit an address."""

    async def admit_address(
        self, machines: Sequence[Machine], address: str = "", *, services: Sequence[str] = ()
    ) -> str:
        """Let an address or a range (this client's own if empty) reach ssh, and services if named. Returns the address.

        Without machines, it applies to all firewalls of ours.
        """
        ...


@runtime_checkable
class Mountable(Protocol):
    """Shared storage can be mounted on machines."""

    async def mount(self, machines: Sequence[Machine]) -> str:
        """Mount the storage on the machines that lack it; returns the folder."""
        ...


@runtime_checkable
class Catalogued(Protocol):
    """The backend knows which machine types and images it offers; rows for `querygpu` and `queryimage`."""

    async def machine_types(self) -> Sequence[dict[str, str]]:
        """Return one row for each machine type on offer."""
        ...

    async def images(self) -> Sequence[dict[str, str]]:
        """Return one row for each image on offer."""
        ...


@runtime_checkable
class Priced(Protocol):
    """Machines cost money, and the backend knows how much before they are made."""

    async def plan(self, spec: MachineSpec, names: Sequence[str]) -> Plan:
        """What `acquire` would do now, and what it would cost. Makes and changes nothing.

        CapacityError if no zone has such machines; other errors as `acquire` would raise them.
        """
        ...


@runtime_checkable
class Repriced(Protocol):
    """The price of a machine may change while it runs."""

    async def rates(self, machines: Sequence[Machine]) -> Mapping[str, Sequence[tuple[datetime, Decimal]]]:
        """Return by id the later prices of an hour, each with the time from which it holds, the oldest first.

        Machines that still have the price of their purchase are left out or have an empty list.
        """
        ...


@runtime_checkable
class Measured(Protocol):
    """The backend knows the size of a machine type before a machine is made."""

    async def figures(self, types: Sequence[str]) -> Mapping[str, Figures]:
        """Return the sizes by type. A type that is not sold is left out."""
        ...


@runtime_checkable
class AutoReleased(Protocol):
    """Machines that were asked for with `max_hours` are released by their provider unless a client renews that."""

    async def hold(self, machines: Sequence[Machine]) -> None:
        """Renew the release time now and regularly while this client lives. Machines without one stay as they are."""
        ...


@runtime_checkable
class Surveyed(Protocol):
    """Machines of other users and in other regions can be listed."""

    async def survey(self, *, everybody: bool = False, everywhere: bool = False) -> Sequence[Machine]:
        """List our machines or everybody's, in our region or in all regions of the account."""
        ...


@runtime_checkable
class Cleanable(Protocol):
    """Machines leave things behind at the provider that can be removed."""

    async def leftovers(self) -> Sequence[Leftover]:
        """List our unused things in the order in which they can be removed. Removes nothing."""
        ...

    async def remove(self, leftovers: Sequence[Leftover]) -> Sequence[Leftover]:
        """Remove the listed things. Returns those that are in use again. It is no error if one is gone already."""
        ...


@runtime_checkable
class Disposable(Protocol):
    """A released machine is gone with its files, so nothing has to be removed from it first."""

    files_go_too: ClassVar[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProgram:
    """A program that runs on a machine and stops the machines with the given ids. On failure it prints one sentence.

    `text` is Python 3.6 without packages. The ids follow `arguments`. With `--check` in front it only tests its rights.
    """

    text: str
    arguments: Sequence[str]


@runtime_checkable
class SelfStopping(Protocol):
    """Machines can stop themselves without a client if they were given the right to."""

    def stop_program(self, machines: Sequence[Machine]) -> StopProgram:
        """Return the program for these machines, which belong to one job."""
        ...
