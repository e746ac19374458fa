"""The class PlatformBackend: to acquire machines is to submit a job that holds them, to release them is to cancel it.

`machine_job.py` describes such a job; `transport/gateway.py` reaches its machines. All state but connections is on the
server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import ClassVar, Self

from trainyard.backends.platform.machine_job import (
    BACKEND,
    KIND,
    MachineJob,
    check_fits,
    gang_of,
    key_of,
    place_of,
    workload,
)
from trainyard.client.client import Client
from trainyard.client.login import Login, load_login
from trainyard.client.schemas import Job, JobDetail
from trainyard.lib.aio import finish, gather_all, map_bounded
from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    DeniedError,
    Error,
    InvalidError,
    NotFoundError,
    UnsupportedError,
)
from trainyard.scheduling.reasons import Code
from trainyard.settings import Settings
from trainyard.spec.machine import Machine, MachineSpec, MachineState
from trainyard.spec.names import check_name, job_of, sort_key
from trainyard.spec.workload import FINAL, Desired, State, WorkloadSpec
from trainyard.transport.gateway import GatewayTransport

LIVE = tuple(state for state in State if state not in FINAL)
PAGE = 200
AT_ONCE = 16
TRIES = 5  # another client may take some of the names each time
READY = "ready"  # a node that answers
STALE_SECONDS = 2.5  # the server's answer about free room may be so old
NOTE_SECONDS = 10.0  # the time limit for telling a machine to remove its files

_ALL = "echo all > ../released"
_ONE = (
    "echo one > ../released && pid=$(cat ../pid) && "
    'setsid sh -c \'sleep 0.1; kill -TERM "$0"\' "$pid" </dev/null >/dev/null 2>&1 &'
)


class PlatformBackend:
    """Machines of a platform, as the one who is logged in to it sees them."""

    name: ClassVar[str] = BACKEND

    def __init__(self, login: Login, *, workspace: str = "", patient: bool = True) -> None:
        self._login = login
        self._patient = patient
        self._workspace = workspace
        self._opened: Client | None = None
        self._ways: dict[str, GatewayTransport] = {}
        self._specs: dict[str, JobDetail] = {}  # by id: what was asked for never changes
        self._left: set[str] = set()  # machines that were told to leave a job that lives on

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Make a backend for the registry."""
        return cls(load_login(settings), workspace=settings.workspace, patient=settings.is_patient)

    @property
    def _client(self) -> Client:
        if self._opened is None:
            self._opened = Client(self._login.url, self._login.token, patient=self._patient)
        return self._opened

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        """Find the machines of these names and submit one job for the missing ones, which waits like any job."""
        for name in names:
            check_name(name, "machine name")
        if len(set(names)) < len(names):
            raise InvalidError("a machine is named twice", hint="Give every machine a name of its own.")
        if not names:
            return []
        made: set[str] = set()
        try:
            held = await self._hold(spec, names, made)
            paused = {gang.job.id for gang in held.values() if gang.job.desired is Desired.PAUSE}
            await self._wish(paused, Desired.RUN)
        except BaseException:  # all or none, also where somebody presses Ctrl-C
            await finish(self._cancel(made))
            raise
        machines = {machine.name: machine for machine in await self.machines()}
        missing = [name for name in names if name not in machines]
        if missing:
            raise ConflictError(
                f"these machines were released while they were acquired: {', '.join(missing)}",
                hint="Run the same again.",
            )
        return [machines[name] for name in names]

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        """Ask the server for the jobs of ours that hold machines."""
        found: dict[str, Machine] = {}
        for gang in await self._told(await self._gangs()):
            for machine in gang.machines():
                if fnmatchcase(machine.name, name) and machine.id not in self._left:
                    found.setdefault(machine.name, machine)  # the oldest has the name
        return sorted(found.values(), key=lambda machine: sort_key(machine.name))

    async def release(self, machines: Sequence[Machine]) -> None:
        """Cancel their jobs. Single machines may leave a running job; their places are free when all have left."""
        for job, ids in _by_job(machines).items():
            gang = await self._find_gang(job)
            if gang is None:
                continue
            left = [machine for machine in gang.machines() if machine.id not in self._left]
            leaving = [machine for machine in left if machine.id in ids]
            if len(leaving) == len(left):
                await self._release_all(gang, leaving)
            elif leaving:
                await self._release_some(leaving)

    async def stop(self, machines: Sequence[Machine]) -> None:
        """Pause their jobs: all processes end, files stay on the node, and the places are given up."""
        await self._wish(await self._whole(machines, "stop"), Desired.PAUSE)

    async def start(self, machines: Sequence[Machine]) -> None:
        """Put their jobs into the queue again."""
        await self._wish(await self._whole(machines, "start"), Desired.RUN)

    def transport(self, machine: Machine) -> GatewayTransport:
        """Return the transport to the machine, through the server."""
        way = self._ways.get(machine.id)
        if way is None:
            job, _, member = machine.id.partition("/")
            way = self._ways[machine.id] = GatewayTransport(
                self._client.connection, job, member, name=machine.name, place=place_of(job, member)
            )
        way.address = machine.address or way.address
        return way

    async def aclose(self) -> None:
        """Close the connections; machines stay as they are."""
        ways, self._ways = list(self._ways.values()), {}
        await gather_all([way.aclose() for way in ways])
        client, self._opened = self._opened, None
        if client is not None:
            await client.aclose()

    # -- acquiring

    async def _hold(
        self, spec: MachineSpec, names: Sequence[str], made: set[str]
    ) -> Mapping[str, MachineJob]:
        """Find or make jobs until every name has one. `made` collects the jobs that this call has made."""
        for _ in range(TRIES):
            gangs = await self._gangs()
            held: dict[str, MachineJob] = {}
            for gang in gangs:
                for machine in gang.machines():
                    if machine.id not in self._left:
                        held.setdefault(machine.name, gang)
            # If two clients asked for the same names at once, the older job has them.
            beaten = {
                gang.job.id for gang in gangs if any(held.get(name, gang) is not gang for name in gang.names)
            } & made
            await self._cancel(beaten)
            made -= beaten
            for name in names:
                if name in held and held[name].job.id not in made:
                    check_fits(spec, held[name], name)
            missing = [name for name in names if name not in held or held[name].job.id in beaten]
            if not missing:
                return held
            for group in _by_owner(missing):
                made.add(await self._submit(spec, group))
        raise ConflictError(
            f"somebody else takes machines of the same names all the time: {', '.join(names)}",
            hint="See `trainyard ls`, and choose another name.",
        )

    async def _submit(self, spec: MachineSpec, names: Sequence[str]) -> str:
        wanted = workload(spec, names, workspace=self._workspace)
        await self._refuse_hopeless(wanted)
        before = await self._client.jobs.page(kind=KIND, user="me", name=wanted.name, limit=1)
        generation = before.items[0].id if before.items else ""
        for _ in range(TRIES):
            job = await self._client.jobs.submit(wanted, key=key_of(wanted, generation))
            if job.state not in FINAL and job.desired is not Desired.CANCEL:
                return job.id
            generation = job.id  # the answer to an earlier call, whose machines are gone
        raise ConflictError(
            f"the job {wanted.name} ends as soon as it is submitted", hint="See `trainyard jobs`."
        )

    async def _refuse_hopeless(self, wanted: WorkloadSpec) -> None:
        """Raise CapacityError if waiting cannot help. A platform that lacks nodes now may have room later."""
        told = await self._client.jobs.dry_run(wanted)
        if told.reason != Code.NEVER_FITS:
            return
        try:
            nodes = [node async for node in self._client.nodes.list()]
        except DeniedError:
            return
        if not nodes or any(node.state != READY for node in nodes):
            return
        await asyncio.sleep(STALE_SECONDS)
        told = await self._client.jobs.dry_run(wanted)
        if told.reason == Code.NEVER_FITS:
            raise CapacityError(
                f"the platform can never give {wanted.roles[0].replicas} such machines: {told.sentence}",
                hint=told.remedy,
            )

    # -- asking

    async def _gangs(self) -> list[MachineJob]:
        """Return all our live jobs, the oldest first."""
        found: list[MachineJob] = []
        async for job in self._client.jobs.list(
            kind=KIND, user="me", state=[*LIVE], limit=PAGE, order="oldest"
        ):
            gang = await self._with_spec(job)
            if gang is not None and gang.is_live:
                found.append(gang)
        running = [gang for gang in found if gang.job.attempt]
        tasks = await map_bounded(lambda gang: self._client.jobs.tasks(gang.job.id), running, limit=AT_ONCE)
        by_id = {}
        for gang, result in zip(running, tasks, strict=True):
            if isinstance(result, NotFoundError):
                continue
            if isinstance(result, BaseException):
                raise result
            by_id[gang.job.id] = replace(gang, tasks=result)
        return [by_id.get(gang.job.id, gang) for gang in sorted(found, key=lambda gang: gang.job.id)]

    async def _with_spec(self, job: Job) -> MachineJob | None:
        known = self._specs.get(job.id)
        if known is None:
            try:
                known = self._specs[job.id] = await self._client.jobs.get(job.id)
            except NotFoundError:  # removed meanwhile
                return None
        fresh = {name: getattr(job, name) for name in Job.__dataclass_fields__}
        return gang_of(JobDetail(**fresh, spec=known.spec))

    async def _told(self, gangs: Iterable[MachineJob]) -> list[MachineJob]:
        """Add the queue's explanation to the jobs that wait."""

        async def told(gang: MachineJob) -> MachineJob:
            if gang.job.state not in {State.WAITING, State.HELD} or gang.job.desired is not Desired.RUN:
                return gang
            with suppress(NotFoundError):
                return replace(gang, explanation=await self._client.jobs.explain(gang.job.id))
            return gang

        results = await map_bounded(told, list(gangs), limit=AT_ONCE)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, MachineJob)]

    async def _find_gang(self, job: str) -> MachineJob | None:
        with suppress(NotFoundError):
            detail = await self._client.jobs.get(job)
            gang = gang_of(detail)
            if gang is None or detail.state in FINAL or not gang.is_live:
                return None
            if detail.attempt:
                gang = replace(gang, tasks=await self._client.jobs.tasks(job))
            return gang
        return None

    # -- changing

    async def _release_all(self, gang: MachineJob, machines: Sequence[Machine]) -> None:
        """Tell the reachable machines to remove their files, then cancel the job."""
        running = [machine for machine in machines if machine.state is MachineState.RUNNING]
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTE_SECONDS):
                for result in await gather_all([self.transport(machine).run(_ALL) for machine in running]):
                    if isinstance(result, BaseException) and not isinstance(result, Error):
                        raise result
        await self._cancel([gang.job.id])
        for machine in machines:
            way = self._ways.pop(machine.id, None)
            if way is not None:
                await way.aclose()

    async def _release_some(self, machines: Sequence[Machine]) -> None:
        waiting = [machine.name for machine in machines if machine.state is not MachineState.RUNNING]
        if waiting:
            raise UnsupportedError(
                f"{', '.join(waiting)} cannot leave a job that does not run",
                hint="Release all machines of the job, or wait until it runs.",
            )
        for result in await gather_all([self.transport(machine).run(_ONE) for machine in machines]):
            if isinstance(result, BaseException):
                raise result
        self._left.update(machine.id for machine in machines)

    async def _whole(self, machines: Sequence[Machine], verb: str) -> list[str]:
        """Return the jobs of these machines. Each job must be named with all of its machines."""
        jobs = []
        for job, ids in _by_job(machines).items():
            gang = await self._find_gang(job)
            if gang is None:
                raise NotFoundError(f"the machines of the job {job} are gone", hint="See `trainyard ls`.")
            others = [each.name for each in gang.machines() if each.id not in ids | self._left]
            if others:
                raise UnsupportedError(
                    f"the platform can {verb} the machines of a job only together, with {', '.join(others)} too",
                    hint=f"Name all of them, or say `trainyard {verb} '{{{job_of(others[0]) or others[0]}}}'`.",
                )
            jobs.append(job)
        return jobs

    async def _wish(self, jobs: Iterable[str], desired: Desired) -> None:
        for job in jobs:
            await self._client.jobs.set_desired(job, desired)

    async def _cancel(self, jobs: Iterable[str]) -> None:
        for job in list(jobs):
            with suppress(ConflictError, NotFoundError):  # it has ended by itself
                await self._client.jobs.set_desired(job, Desired.CANCEL)


def _by_job(machines: Iterable[Machine]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for machine in machines:
        found.setdefault(machine.id.partition("/")[0], set()).add(machine.id)
    return found


def _by_owner(names: Sequence[str]) -> list[list[str]]:
    """Group names by their job. A machine without a job is a group of its own."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(job_of(name) or f"={name}", []).append(name)
    return list(found.values())
