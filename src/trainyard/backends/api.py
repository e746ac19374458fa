"""Four verbs that every backend has, and the capabilities that some have. Passed by `backends/contract.py`.

A backend never waits for readiness, retries or polls on its own account: `runtime/` does.
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
    """Where machines come from."""

    name: ClassVar[str]

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        """Ask for machines with these names; return as soon as they are promised, in the order of `names`.

        A name that already has a machine gets that machine (a stopped one is started): calling twice is calling
        once. A machine of that name that does not fit `spec` is a ConflictError. All or none: on an error nothing
        that this call made is left behind.
        """
        ...

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        """All machines of ours whose name matches the pattern, as they are now, in `names.sort_key` order."""
        ...

    async def release(self, machines: Sequence[Machine]) -> None:
        """Give machines back for good, whatever runs there. One that is gone already is no error."""
        ...

    def transport(self, machine: Machine) -> Transport:
        """The way to a machine; the same object for the same machine, so that connections are shared."""
        ...

    async def aclose(self) -> None:
        """Close all transports. Machines stay as they are."""
        ...


@runtime_checkable
class Stoppable(Protocol):
    """Machines can be stopped with their files kept, and started again."""

    async def stop(self, machines: Sequence[Machine]) -> None:
        """End what runs and keep the files. Stopping what is stopped is no error."""
        ...

    async def start(self, machines: Sequence[Machine]) -> None:
        """Promise that they run again. Starting what runs is no error."""
        ...


@runtime_checkable
class Renamable(Protocol):
    """A machine can change its name. ConflictError where the new name is taken."""

    async def rename(self, machine: Machine, name: str) -> Machine:
        """Give it another name; returns it as it is now."""
        ...


@runtime_checkable
class Firewalled(Protocol):
    """Machines stand behind a firewall that can admit an address."""

    async def admit_address(
        self, machines: Sequence[Machine], address: str = "", *, services: Sequence[str] = ()
    ) -> str:
        """Let an address or a range (this client's own if empty) reach ssh, and services if named; returns it.

        No machines: whatever firewalls of ours there are.
        """
        ...


@runtime_checkable
class Mountable(Protocol):
    """Shared storage can be mounted on machines; returns where."""

    async def mount(self, machines: Sequence[Machine]) -> str:
        """Mount it where it is not mounted yet; returns the folder."""
        ...


@runtime_checkable
class Catalogued(Protocol):
    """The backend knows which machine types and images it offers; rows for `querygpu` and `queryimage`."""

    async def machine_types(self) -> Sequence[dict[str, str]]:
        """What can be asked for, one row a type."""
        ...

    async def images(self) -> Sequence[dict[str, str]]:
        """What machines can be made from, one row an image."""
        ...


@runtime_checkable
class Priced(Protocol):
    """Machines cost money, and the backend knows how much before they are made."""

    async def plan(self, spec: MachineSpec, names: Sequence[str]) -> Plan:
        """What `acquire` would do now, and what it would cost. Makes and changes nothing.

        CapacityError where nobody has such machines; other errors as `acquire` would raise them.
        """
        ...


@runtime_checkable
class Repriced(Protocol):
    """What a machine costs may change while one has it."""

    async def rates(self, machines: Sequence[Machine]) -> Mapping[str, Sequence[tuple[datetime, Decimal]]]:
        """By id, what an hour costs since it is no longer the price of the purchase: from when on, the oldest first.

        Machines whose price has not changed, or never does, are left out or have none.
        """
        ...


@runtime_checkable
class Measured(Protocol):
    """The backend knows what a machine of a type has, before it is made."""

    async def figures(self, types: Sequence[str]) -> Mapping[str, Figures]:
        """By type; one that nobody sells is not in the answer."""
        ...


@runtime_checkable
class Leashed(Protocol):
    """Machines that were asked for with `max_hours` are released by their provider unless a client renews that."""

    async def hold(self, machines: Sequence[Machine]) -> None:
        """Renew it for these now and from now on, as long as this client lives; those without such a time stay as they are."""
        ...


@runtime_checkable
class Surveyed(Protocol):
    """Machines of other people, and in other places than the usual one, can be seen."""

    async def survey(self, *, everybody: bool = False, everywhere: bool = False) -> Sequence[Machine]:
        """Our machines, or everybody's; here, or wherever the account may have some."""
        ...


@runtime_checkable
class Cleanable(Protocol):
    """Things remain when machines are gone, and can be removed."""

    async def leftovers(self) -> Sequence[Leftover]:
        """What of ours nobody uses, in the order in which it can be removed. Removes nothing."""
        ...

    async def remove(self, leftovers: Sequence[Leftover]) -> Sequence[Leftover]:
        """Remove what was listed; returns what somebody has begun to use meanwhile. Gone already is no error."""
        ...


@runtime_checkable
class Disposable(Protocol):
    """A machine that is released is gone with its files, so nothing has to be taken off it first."""

    files_go_too: ClassVar[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProgram:
    """A program for machines: given ids, it stops those machines, and says in one sentence why it cannot.

    `text` is Python 3.6 without packages. After `arguments` it takes the ids; `--check` in front only asks whether it could.
    """

    text: str
    arguments: Sequence[str]


@runtime_checkable
class SelfStopping(Protocol):
    """Machines can stop themselves, without any client, where they were given the right to."""

    def stop_program(self, machines: Sequence[Machine]) -> StopProgram:
        """What these machines, of one job, are to run."""
        ...
