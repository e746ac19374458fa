"""Tests that every backend must pass. They are shipped, so that authors of backends can subclass them.

    class TestMine(BackendContract):
        capabilities = frozenset({Stoppable})

        def open_backend(self) -> Backend:
            return MyBackend(...)          # each call: another client of the same place

Runs under pytest with `asyncio_mode = auto`. Further promises of a single backend have tests of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from trainyard.backends.api import (
    Backend,
    Catalogued,
    Cleanable,
    Firewalled,
    Mountable,
    Priced,
    Renamable,
    Stoppable,
    Surveyed,
)
from trainyard.lib.errors import CapacityError, ConflictError, Error
from trainyard.lib.ids import new_id
from trainyard.spec.machine import Machine, MachineSpec, MachineState
from trainyard.spec.names import sort_key, task_name

ALL_CAPABILITIES = (Stoppable, Renamable, Firewalled, Mountable, Catalogued, Priced, Surveyed, Cleanable)
LOOK_AGAIN_SECONDS = 0.05


class BackendContract:
    """One test per promise. Each uses its own job name and releases its machines."""

    spec: ClassVar[MachineSpec] = MachineSpec()  # the spec of the tests' machines
    other_spec: ClassVar[MachineSpec | None] = None  # one that a machine made with `spec` does not fit
    scarce: ClassVar[tuple[MachineSpec, int] | None] = (
        None  # a spec and a number: one such machine is available, but not so many
    )
    capabilities: ClassVar[frozenset[type]] = frozenset()
    stops_before_rename: ClassVar[bool] = False  # whether only a stopped machine can be renamed
    ready_seconds: ClassVar[float] = 30.0  # from promised to running
    keeps_processes_apart: ClassVar[bool] = True  # whether stop can be seen to end what ran

    def open_backend(self) -> Backend:
        """Return a new client of the backend under test."""
        raise NotImplementedError

    async def test_machines_come_in_the_order_of_their_names_when_acquired(self) -> None:
        """Callers pair them with ranks."""
        async with self._client() as (backend, job):
            names = [task_name(job, index) for index in (2, 0, 10)][: self._affordable(3)]
            machines = await backend.acquire(self.spec, names)
            _require([machine.name for machine in machines] == names, "machines come in the order asked for")

    async def test_nothing_happens_when_no_machine_is_asked_for(self) -> None:
        """A job of no tasks is no error."""
        async with self._client() as (backend, job):
            _require(list(await backend.acquire(self.spec, [])) == [], "no names, no machines")
            _require(not await self._listed(backend, job), "nothing was made")

    async def test_the_same_machine_comes_when_acquired_twice(self) -> None:
        """A crashed caller simply calls again."""
        async with self._client() as (backend, job):
            first = await self._running(backend, job, 1)
            again = await backend.acquire(self.spec, [first[0].name])
            _require(again[0].id == first[0].id, "acquiring twice gives one machine")
            _require(len(await self._listed(backend, job)) == 1, "acquiring twice makes one machine")

    async def test_only_the_missing_are_made_when_some_exist(self) -> None:
        """A job grows by being asked for with more names."""
        if self._affordable(2) < 2:
            return
        async with self._client() as (backend, job):
            first = await self._running(backend, job, 1)
            both = await self._running(backend, job, 2)
            _require(both[0].id == first[0].id, "the machine that existed is kept")
            _require(both[1].id != first[0].id, "the missing one is another")

    async def test_all_clients_get_the_same_machines_when_they_acquire_at_once(self) -> None:
        """Two clients, the same names, the same moment."""
        async with self._client() as (backend, job), self._other_client() as other:
            names = [task_name(job, index) for index in range(self._affordable(2))]
            ours, theirs, again = await asyncio.gather(
                backend.acquire(self.spec, names),
                other.acquire(self.spec, names),
                backend.acquire(self.spec, names),
            )
            ids = [[machine.id for machine in machines] for machines in (ours, theirs, again)]
            _require(ids[0] == ids[1] == ids[2], "all three calls give the same machines")
            _require(len(await self._listed(backend, job)) == len(names), "no machine was made twice")

    async def test_nothing_is_left_behind_when_capacity_does_not_suffice(self) -> None:
        """All or none: half a gang is no use and costs money."""
        if self.scarce is None:
            return
        spec, too_many = self.scarce
        async with self._client() as (backend, job):
            first = (await backend.acquire(spec, [task_name(job, 0)]))[0]
            names = [task_name(job, index) for index in range(too_many)]
            await _fails_with(CapacityError, backend.acquire(spec, names))
            left = await self._listed(backend, job)
            _require([machine.id for machine in left] == [first.id], "only what was there before is left")

    async def test_nothing_is_made_when_a_name_belongs_to_a_machine_of_another_kind(self) -> None:
        """A clash is an error, not a second machine."""
        if self.other_spec is None:
            return
        async with self._client() as (backend, job):
            await self._running(backend, job, 1)
            names = [task_name(job, 1), task_name(job, 0)]
            await _fails_with(ConflictError, backend.acquire(self.other_spec, names))
            _require(len(await self._listed(backend, job)) == 1, "the other name was not made")

    async def test_machines_are_sorted_by_task_when_listed(self) -> None:
        """task2 stands before task10."""
        async with self._client() as (backend, job):
            names = [task_name(job, index) for index in (10, 2)][: self._affordable(2)]
            await backend.acquire(self.spec, names)
            listed = [machine.name for machine in await self._listed(backend, job)]
            _require(listed == sorted(names, key=sort_key), "machines are listed in the order of sort_key")

    async def test_the_whole_name_must_match_when_a_pattern_is_given(self) -> None:
        """`bert` is not `bert2`, and case counts."""
        async with self._client() as (backend, job):
            machine = (await self._running(backend, job, 1))[0]
            for pattern in (machine.name, f"*.{job}", f"task?.{job}", f"task[0-9].{job}"):
                found = await backend.machines(name=pattern)
                _require([one.name for one in found] == [machine.name], f"{pattern} matches {machine.name}")
            for pattern in (machine.name[:-1], machine.name[1:], machine.name.upper(), f"x*.{job}"):
                _require(not await backend.machines(name=pattern), f"{pattern} does not match {machine.name}")
            everything = [one.name for one in await backend.machines()]
            _require(machine.name in everything, "without a pattern all are listed")

    async def test_a_machine_is_described_when_it_runs(self) -> None:
        """What `ls`, rendezvous and uploads build on."""
        async with self._client() as (backend, job):
            machine = (await self._running(backend, job, 1))[0]
            _require(machine.backend == backend.name, "a machine names its backend")
            _require(bool(machine.id and machine.address and machine.user), "id, address and user are known")
            _require(machine.created is None or machine.created.tzinfo is not None, "times know their zone")

    async def test_a_machine_is_gone_when_released(self) -> None:
        """Its neighbours stay."""
        async with self._client() as (backend, job):
            machines = await self._running(backend, job, self._affordable(2))
            await backend.release(machines[:1])
            left = [machine.id for machine in await self._listed(backend, job)]
            _require(left == [machine.id for machine in machines[1:]], "exactly the released one is gone")

    async def test_releasing_is_no_error_when_the_machine_is_gone(self) -> None:
        """Twice, by another client, or nothing at all."""
        async with self._client() as (backend, job), self._other_client() as other:
            machines = await self._running(backend, job, 1)
            await backend.release(machines)
            await backend.release(machines)
            await other.release(machines)
            await backend.release([])

    async def test_a_name_can_be_used_again_when_its_machine_was_released(self) -> None:
        """Nothing of the old one is in the way."""
        async with self._client() as (backend, job):
            await backend.release(await self._running(backend, job, 1))
            again = await self._running(backend, job, 1)
            _require(again[0].state is MachineState.RUNNING, "the name has a machine again")

    async def test_the_transport_is_one_object_when_asked_for_again(self) -> None:
        """So that one connection serves everybody."""
        async with self._client() as (backend, job):
            machine = (await self._running(backend, job, 1))[0]
            described_again = (await self._listed(backend, job))[0]
            same = backend.transport(machine) is backend.transport(described_again)
            _require(same, "the same machine gives the same transport")

    async def test_commands_run_when_a_machine_runs(self) -> None:
        """In its home, as its user."""
        async with self._client() as (backend, job):
            machine = (await self._running(backend, job, 1))[0]
            done = await backend.transport(machine).run('cd && pwd && printf "%s" "$1" >&2; exit 7')
            _require(done.status == 7, "the status comes back")
            home = done.stdout.decode(errors="surrogateescape").removesuffix("\n")
            _require(
                home == (machine.home or home) and home.startswith("/"), "home is where it is said to be"
            )

    async def test_another_client_finds_the_machine_when_it_knows_the_name(self) -> None:
        """Close the laptop, carry on elsewhere."""
        async with self._client() as (backend, job):
            machine = (await self._running(backend, job, 1))[0]
            file = f"contract-{job}"
            await backend.transport(machine).run(f"echo kept > {file}")
            await backend.aclose()
            async with self._other_client() as other:
                found = await self._listed(other, job)
                _require([one.id for one in found] == [machine.id], "the other client sees the machine")
                adopted = await other.acquire(self.spec, [machine.name])
                _require(adopted[0].id == machine.id, "the other client gets it by its name")
                done = await other.transport(found[0]).run(f"cat {file} && rm {file}")
                _require(done.stdout == b"kept\n", "the other client sees its files")

    async def test_machines_stay_when_a_client_closes_twice(self) -> None:
        """Closing lets go of connections, nothing else."""
        async with self._client() as (backend, job):
            machine = (await self._running(backend, job, 1))[0]
            await backend.aclose()
            await backend.aclose()
            async with self._other_client() as other:
                left = (await self._listed(other, job))[0]
                _require(left.id == machine.id and left.state is MachineState.RUNNING, "the machine runs on")

    async def test_the_backend_can_what_it_claims_when_asked_for_capabilities(self) -> None:
        """`isinstance` decides what the command line offers."""
        async with self._client() as (backend, _):
            subject: object = backend  # mypy takes a Backend for something that cannot be anything else
            able = {capability for capability in ALL_CAPABILITIES if isinstance(subject, capability)}
            _require(able == set(self.capabilities), "it can exactly what it claims")

    async def test_files_are_kept_and_nothing_runs_when_stopped(self) -> None:
        """And start brings the machine back."""
        async with self._client() as (backend, job):
            if not isinstance(backend, Stoppable):
                return
            machine = (await self._running(backend, job, 1))[0]
            transport = backend.transport(machine)
            script = "echo kept > contract-file; sleep 3600 </dev/null >/dev/null 2>&1 & echo $!"
            process = (await transport.run(script)).stdout.decode().strip()
            await backend.stop([machine])
            stopped = await self._wait_for(MachineState.STOPPED, backend, job)
            _require(stopped.id == machine.id, "a stopped machine keeps its id")
            await _fails_with(Error, backend.transport(stopped).run("true"))
            await backend.stop([stopped])
            await backend.start([stopped])
            started = await self._wait_for(MachineState.RUNNING, backend, job)
            await backend.start([started])
            done = await backend.transport(started).run("cat contract-file; rm contract-file")
            _require(done.stdout == b"kept\n", "files are kept")
            if self.keeps_processes_apart:
                looked = await backend.transport(started).run(f"cat /proc/{process}/stat")
                ended = looked.status != 0 or b") Z " in looked.stdout  # a zombie waits for init to notice
                _require(ended, "what ran before the stop has ended")

    async def test_a_stopped_machine_starts_when_acquired(self) -> None:
        """So a script need not know."""
        async with self._client() as (backend, job):
            if not isinstance(backend, Stoppable):
                return
            machine = (await self._running(backend, job, 1))[0]
            await backend.stop([machine])
            await self._wait_for(MachineState.STOPPED, backend, job)
            again = (await self._running(backend, job, 1))[0]
            _require(again.id == machine.id, "it is the same machine")
            await backend.stop([again])
            await backend.release([again])
            _require(not await self._listed(backend, job), "a stopped machine can be released")

    async def test_a_machine_keeps_its_files_when_renamed(self) -> None:
        """And leaves its old name to others; a name that is taken is refused."""
        if self._affordable(2) < 2:
            return
        async with self._client() as (backend, job):
            if not isinstance(backend, Renamable):
                return
            first, second = await self._running(backend, job, 2)
            await backend.transport(first).run("echo kept > contract-file")
            if self.stops_before_rename and isinstance(backend, Stoppable):
                await backend.stop([first])
            await _fails_with(ConflictError, backend.rename(first, second.name))
            renamed = await backend.rename(first, task_name(job, 7))
            listed = {machine.name: machine.id for machine in await self._listed(backend, job)}
            _require(set(listed) == {second.name, task_name(job, 7)}, "the new name stands for the old one")
            started = (await backend.acquire(self.spec, [renamed.name]))[0]
            _require(started.id == renamed.id, "the machine is found by its new name")
            done = await backend.transport(started).run("cat contract-file; rm contract-file")
            _require(done.stdout == b"kept\n", "files are kept")

    def _affordable(self, count: int) -> int:
        """How many machines a test may have at once."""
        return count

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[tuple[Backend, str]]:
        """A client and a job name; whatever bears that name at the end is released."""
        job = f"c{new_id()}"
        backend = self.open_backend()
        try:
            yield backend, job
        finally:
            await backend.release(await self._listed(backend, job))
            await backend.aclose()

    @asynccontextmanager
    async def _other_client(self) -> AsyncIterator[Backend]:
        backend = self.open_backend()
        try:
            yield backend
        finally:
            await backend.aclose()

    async def _listed(self, backend: Backend, job: str) -> Sequence[Machine]:
        return await backend.machines(name=f"task*.{job}")

    async def _running(self, backend: Backend, job: str, count: int) -> Sequence[Machine]:
        """Acquire task0 … and wait until all run, as `runtime/` does."""
        names = [task_name(job, index) for index in range(count)]
        await backend.acquire(self.spec, names)
        async with asyncio.timeout(self.ready_seconds):
            while True:
                found = {machine.name: machine for machine in await self._listed(backend, job)}
                if all(found[name].state is MachineState.RUNNING for name in names):
                    return [found[name] for name in names]
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _wait_for(self, state: MachineState, backend: Backend, job: str) -> Machine:
        async with asyncio.timeout(self.ready_seconds):
            while True:
                machine = (await self._listed(backend, job))[0]
                if machine.state is state:
                    return machine
                await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _require(condition: bool, promise: str) -> None:
    """An assertion that says which promise is broken, also where pytest does not rewrite this module."""
    if not condition:
        raise AssertionError(f"broken promise: {promise}")


async def _fails_with(expected: type[Error], call: object) -> None:
    try:
        await call  # type: ignore[misc]  # any awaitable
    except expected:
        return
    raise AssertionError(f"broken promise: {expected.__name__} is raised")
