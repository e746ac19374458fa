"""Backends that go wrong in one way each, around a real local backend. Run against every user of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from trainyard.backends.local import LocalBackend
from trainyard.lib.clock import Clock, SystemClock
from trainyard.lib.errors import UnreachableError
from trainyard.spec.machine import Machine, MachineSpec, MachineState
from trainyard.transport.local import LocalTransport


class Wrapped:
    """Does what the real one does; the faults below change one thing. `inner` is the honest one, for cleaning up."""

    name: ClassVar[str] = "faulty"

    def __init__(self, inner: LocalBackend) -> None:
        self.inner = inner

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        return await self.inner.acquire(spec, names)

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        return await self.inner.machines(name=name)

    async def release(self, machines: Sequence[Machine]) -> None:
        await self.inner.release(machines)

    def transport(self, machine: Machine) -> LocalTransport:
        return self.inner.transport(machine)

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def stop(self, machines: Sequence[Machine]) -> None:
        await self.inner.stop(machines)

    async def start(self, machines: Sequence[Machine]) -> None:
        await self.inner.start(machines)

    async def rename(self, machine: Machine, name: str) -> Machine:
        return await self.inner.rename(machine, name)


class Slow(Wrapped):
    """Takes its time for everything, and machines are promised long before they run."""

    delay = 0.02
    looks_until_running = 3

    def __init__(self, inner: LocalBackend, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self._clock = clock or SystemClock()
        self._looks = 0

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        await self._clock.sleep(self.delay)
        self._looks = 0
        return [_pending(machine) for machine in await self.inner.acquire(spec, names)]

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        await self._clock.sleep(self.delay)
        self._looks += 1
        machines = await self.inner.machines(name=name)
        return [_pending(one) for one in machines] if self._looks < self.looks_until_running else machines

    async def release(self, machines: Sequence[Machine]) -> None:
        await self._clock.sleep(self.delay)
        await self.inner.release(machines)


class Never(Wrapped):
    """Promises machines that never run."""

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        return [_pending(machine) for machine in await self.inner.acquire(spec, names)]

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        return [_pending(machine) for machine in await self.inner.machines(name=name)]


class Flaky(Wrapped):
    """Every second call fails before anything happens."""

    every = 2

    def __init__(self, inner: LocalBackend) -> None:
        super().__init__(inner)
        self._calls = 0

    def _maybe_fail(self) -> None:
        self._calls += 1
        if self._calls % self.every == 1:
            raise UnreachableError("the provider did not answer", hint="Try again.")

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        self._maybe_fail()
        return await self.inner.acquire(spec, names)

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        self._maybe_fail()
        return await self.inner.machines(name=name)

    async def release(self, machines: Sequence[Machine]) -> None:
        self._maybe_fail()
        await self.inner.release(machines)

    async def stop(self, machines: Sequence[Machine]) -> None:
        self._maybe_fail()
        await self.inner.stop(machines)

    async def start(self, machines: Sequence[Machine]) -> None:
        self._maybe_fail()
        await self.inner.start(machines)


class Vanishing(Wrapped):
    """The last machine is listed as running once, and is gone by the time anybody uses it."""

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        return [_pending(machine) for machine in await self.inner.acquire(spec, names)]

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        machines = await self.inner.machines(name=name)
        await self.inner.release(machines[-1:])
        return machines


class Lying(Wrapped):
    """Says that the last machine runs, though it does not."""

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        machines = await self.inner.acquire(spec, names)
        await self.inner.stop(machines[-1:])
        return machines

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        machines = await self.inner.machines(name=name)
        return [replace(machine, state=MachineState.RUNNING) for machine in machines]

    async def start(self, machines: Sequence[Machine]) -> None:
        """Claim success."""


class Partial(Wrapped):
    """Gives one machine less than asked for, and calls that success."""

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        return await self.inner.acquire(spec, names[:-1])


def _pending(machine: Machine) -> Machine:
    return replace(machine, state=MachineState.PENDING)


FAULTS: dict[str, Callable[[LocalBackend], Wrapped]] = {
    "slow": Slow,
    "never": Never,
    "flaky": Flaky,
    "vanishing": Vanishing,
    "lying": Lying,
    "partial": Partial,
}
