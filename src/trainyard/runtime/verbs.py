"""Operations on machines over any backend. They wait for readiness, and only they ask `isinstance(backend, …)`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from trainyard.backends.api import (
    Backend,
    Catalogued,
    Cleanable,
    Disposable,
    Firewalled,
    Mountable,
    Priced,
    Renamable,
    SelfStopping,
    Stoppable,
    StopProgram,
    Surveyed,
)
from trainyard.lib.clock import Clock, SystemClock
from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    NotFoundError,
    UnreachableError,
    UnsupportedError,
)
from trainyard.runtime import setup
from trainyard.spec.machine import Machine, MachineSpec, MachineState
from trainyard.spec.names import check_name, job_of
from trainyard.spec.plan import Leftover, Plan

logger = logging.getLogger(__name__)

MOST_NAMED = 8  # a suggested command names at most so many machines; for more it names the whole job
READY_SECONDS = 900.0  # a cloud machine with a driver to install takes minutes
LONGEST_PAUSE = (
    1.0  # the longest pause between two looks, so a ready machine is noticed at most this much later
)
SILENCES = 5  # a provider is down if it does not answer this many times in a row while we wait for machines
T = TypeVar("T")


async def acquire(
    backend: Backend,
    spec: MachineSpec,
    names: Sequence[str],
    *,
    clock: Clock | None = None,
    on_wait: Callable[[int, int], None] = lambda _ready, _all: None,
    ready_seconds: float = READY_SECONDS,
) -> list[Machine]:
    """Make or find machines with these names, all or none, running and with shared storage if asked for.

    With `min_machines` in the spec fewer may come, in the order of `names`.

    A backend that breaks its promise (fewer machines than names, one that vanishes, one that never comes up) is an
    error here, and not an endless wait.
    """
    clock = clock or SystemClock()
    for name in names:
        check_name(name, "machine name")
    promised = list(await backend.acquire(spec, names))
    got = {machine.name for machine in promised}
    missing = [name for name in names if name not in got]
    if missing and 0 < spec.min_machines <= len(got):
        names, missing = [name for name in names if name in got], []
    if missing:
        raise CapacityError(
            f"the backend gave {len(got)} of {len(names)} machines; missing: {', '.join(missing)}",
            hint="Release the others with `trainyard kill`, or run the same again.",
        )
    with telling_what_stays(backend, names):
        machines = await _until_running(
            backend, names, promised, clock=clock, on_wait=on_wait, ready_seconds=ready_seconds
        )
        if spec.shared_storage and isinstance(backend, Mountable):
            await backend.mount(machines)
    return machines


@contextmanager
def telling_what_stays(backend: Backend, names: Sequence[str]) -> Iterator[None]:
    """On a failure or an interrupt, say that the new machines stay, cost money, and how to release them."""
    try:
        yield
    except BaseException:
        if isinstance(backend, Priced):
            jobs = {job_of(name) for name in names}
            job = jobs.pop() if len(jobs) == 1 else ""
            words = f"{{{job}}}" if job and len(names) > MOST_NAMED else " ".join(names)
            logger.warning(
                "the machines that were made stay and cost money: the same again goes on with them, "
                "`trainyard kill %s` releases them",
                words,
            )
        raise


async def _until_running(
    backend: Backend,
    names: Sequence[str],
    promised: Sequence[Machine],
    *,
    clock: Clock,
    on_wait: Callable[[int, int], None] = lambda _ready, _all: None,
    ready_seconds: float = READY_SECONDS,
) -> list[Machine]:
    """Wait, bounded, until all of `names` run; an error where one vanishes or never comes up.

    Machines that wait in a queue, as their `details` say, may wait without a limit; their reason is reported.
    """
    deadline = clock.monotonic() + ready_seconds
    pause, silences = 0.1, 0
    told = ""
    machines = {machine.name: machine for machine in promised}
    while True:
        ready = sum(machines[name].state is MachineState.RUNNING for name in names)
        on_wait(ready, len(names))
        if ready == len(names):
            return [machines[name] for name in names]
        queue = next((text for name in names if (text := _queue_text(machines[name]))), "")
        if queue:
            deadline = clock.monotonic() + ready_seconds
        if queue and queue != told:
            told = queue
            logger.warning("%s", queue)
        if clock.monotonic() > deadline:
            waiting = [name for name in names if machines[name].state is not MachineState.RUNNING]
            raise UnreachableError(
                f"after {ready_seconds:.0f} s these machines are still not running: {', '.join(waiting)}",
                hint="See `trainyard ls --stop`; run the same command again to go on waiting, or `trainyard kill` them.",
            )
        await clock.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)
        try:
            listed = await backend.machines()
        except UnreachableError:
            silences += 1
            if silences == SILENCES:
                raise
            continue
        silences = 0
        seen = {machine.name: machine for machine in listed if machine.name in names}
        vanished = [name for name in names if name not in seen or seen[name].state is MachineState.LOST]
        if vanished:
            raise UnreachableError(f"these machines vanished while starting: {', '.join(vanished)}")
        machines = seen


def _queue_text(machine: Machine) -> str:
    """Say for people why a machine waits in a queue; '' if it does not wait."""
    said = machine.details.get("queue", "")
    place = machine.details.get("position", "")
    return f"{machine.name} waits in the queue{f', number {place}' if place else ''}: {said}" if said else ""


async def release(backend: Backend, machines: Sequence[Machine]) -> None:
    """Give machines back for good, even if commands run on them. Calling it twice is no error.

    If the host outlives the release, the keys of the job are removed first.
    """
    if not (isinstance(backend, Disposable) and backend.files_go_too):
        running = [machine for machine in machines if machine.state is MachineState.RUNNING]
        await setup.remove_keys([(machine, backend.transport(machine)) for machine in running])
    await backend.release(machines)


async def stop(backend: Backend, machines: Sequence[Machine]) -> None:
    """Stop machines; files are kept. Stopping a stopped machine is no error."""
    running = [machine for machine in machines if machine.state is not MachineState.STOPPED]
    if running:
        await _capable(backend, Stoppable, "stop").stop(running)


async def start(backend: Backend, machines: Sequence[Machine]) -> list[Machine]:
    """Start stopped machines and wait until they run, shared storage mounted again; returns them as they are now."""
    names = [machine.name for machine in machines]
    fresh = [machine for machine in await backend.machines() if machine.name in names]
    gone = set(names) - {machine.name for machine in fresh}
    if gone:
        raise NotFoundError(f"these machines are gone: {', '.join(sorted(gone))}")
    stopped = [machine for machine in fresh if machine.state is not MachineState.RUNNING]
    if stopped:
        await _capable(backend, Stoppable, "start").start(stopped)
        fresh = [machine for machine in await backend.machines() if machine.name in names]
    started = await _until_running(backend, names, fresh, clock=SystemClock())
    sharing = [machine for machine in started if machine.details.get("shared_storage")]
    if sharing and isinstance(backend, Mountable):
        await backend.mount(sharing)
    return started


async def rename(backend: Backend, machine: Machine, name: str) -> Machine:
    """Give a machine another name."""
    check_name(name, "machine name")
    if any(other.name == name for other in await backend.machines(name=name)):
        raise ConflictError(f"there is a machine {name!r} already", hint="Choose another name.")
    return await _capable(backend, Renamable, "rename").rename(machine, name)


async def mount(backend: Backend, machines: Sequence[Machine]) -> str:
    """Mount the shared storage and return its folder."""
    return await _capable(backend, Mountable, "mount").mount(machines)


async def admit_address(
    backend: Backend, machines: Sequence[Machine], address: str = "", *, services: Sequence[str] = ()
) -> str:
    """Let an address (this client's own if empty) through the machines' firewall. Returns the address."""
    capable = _capable(backend, Firewalled, "addip")
    return await capable.admit_address(machines, address, services=services)


async def plan(backend: Backend, spec: MachineSpec, names: Sequence[str]) -> Plan | None:
    """Say what acquiring these machines would do and cost. None if the backend's machines cost nothing."""
    return await backend.plan(spec, names) if isinstance(backend, Priced) else None


def stop_program(backend: Backend, machines: Sequence[Machine]) -> StopProgram | None:
    """Return the program by which these machines stop themselves. None if the backend has none."""
    return backend.stop_program(machines) if isinstance(backend, SelfStopping) else None


async def survey(
    backend: Backend, *, everybody: bool = False, everywhere: bool = False
) -> Sequence[Machine] | None:
    """List machines beyond our own. None if the backend sees no others."""
    if not isinstance(backend, Surveyed):
        return None
    return await backend.survey(everybody=everybody, everywhere=everywhere)


async def machine_types(backend: Backend) -> Sequence[dict[str, str]]:
    """List the machine types that the backend offers."""
    return await _capable(backend, Catalogued, "querygpu").machine_types()


async def images(backend: Backend) -> Sequence[dict[str, str]]:
    """List the images that the backend offers."""
    return await _capable(backend, Catalogued, "queryimage").images()


async def leftovers(backend: Backend) -> Sequence[Leftover]:
    """List the provider's things that are no longer used, in the order in which they can be removed."""
    return await _capable(backend, Cleanable, "cleanup").leftovers()


async def remove_leftovers(backend: Backend, things: Sequence[Leftover]) -> Sequence[Leftover]:
    """Remove the listed things. Returns those that are in use again and stay."""
    return await _capable(backend, Cleanable, "cleanup").remove(things)


_WHY = {
    "cleanup": "nothing remains when its machines are gone",
    "stop": "its machines cannot be stopped",
    "start": "its machines cannot be started",
    "rename": "its machines cannot be renamed",
    "mount": "it has no shared storage to mount",
    "addip": "there is no firewall in front of its machines",
    "querygpu": "it has no list of machine types",
    "queryimage": "it has no images",
}


def _capable(backend: Backend, capability: type[T], verb: str) -> T:
    if not isinstance(backend, capability):
        raise UnsupportedError(f"the {backend.name} backend cannot {verb}: {_WHY[verb]}")
    return backend
