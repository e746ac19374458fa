"""Jobs on backends that go wrong: a clear error or a success, in bounded time, and nothing that cannot be cleaned up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from faults.backends import FAULTS, Wrapped
from trainyard import settings
from trainyard.backends.local import LocalBackend
from trainyard.lib.clock import ManualClock
from trainyard.lib.errors import CapacityError, Error, TaskErrors, UnreachableError
from trainyard.runtime import verbs
from trainyard.runtime.context import Context
from trainyard.runtime.job import Job, make_job
from trainyard.spec.machine import MachineSpec, MachineState

BOUND_SECONDS = 30.0


@pytest.fixture
async def faulty(isolation: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[str], Wrapped]]:
    monkeypatch.setenv("TRAINYARD_STOP_GRACE", "0.5")
    inner = LocalBackend.from_settings(settings.load())
    yield lambda name: FAULTS[name](inner)
    await inner.release(await inner.machines())
    await inner.aclose()


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]


async def attempt(backend: Wrapped, num_tasks: int = 2) -> Job | BaseException:
    context = Context(backend, clock=ManualClock())
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            return await make_job(context, name="faulty", num_tasks=num_tasks)
    except (Error, TaskErrors) as error:
        return error


async def test_machines_are_waited_for_when_the_backend_is_slow(faulty: Callable[[str], Wrapped]) -> None:
    names = ["task0.faulty", "task1.faulty"]
    seen: list[tuple[int, int]] = []
    machines = await verbs.acquire(
        faulty("slow"), MachineSpec(), names, clock=ManualClock(), on_wait=lambda *counts: seen.append(counts)
    )
    assert [machine.name for machine in machines] == names
    assert {machine.state for machine in machines} == {MachineState.RUNNING}
    assert seen[0] == (0, 2)
    assert seen[-1] == (2, 2)


async def test_the_wait_ends_with_the_names_when_machines_never_run(faulty: Callable[[str], Wrapped]) -> None:
    error = await attempt(faulty("never"))
    assert isinstance(error, UnreachableError)
    assert "task0.faulty, task1.faulty" in error.message
    assert error.hint


# Slow: two real sessions are opened.
@pytest.mark.slow
async def test_calling_again_succeeds_when_the_backend_fails_now_and_then(
    faulty: Callable[[str], Wrapped],
) -> None:
    backend = faulty("flaky")
    error = await attempt(backend)
    assert isinstance(error, UnreachableError)
    for _ in range(4):
        job = await attempt(backend)
        if isinstance(job, Job):
            break
    assert isinstance(job, Job)
    assert (
        await job.run("echo works") == ["works\n", "works\n"] or await job.run("echo works") == ["works"] * 2
    )
    for _ in range(4):
        try:
            await job.kill()
            break
        except (Error, TaskErrors):
            continue
    assert await backend.inner.machines() == []


async def test_the_machine_is_named_when_it_vanishes(faulty: Callable[[str], Wrapped]) -> None:
    error = await attempt(faulty("vanishing"))
    assert isinstance(error, BaseException)
    assert all(isinstance(leaf, UnreachableError) for leaf in leaves(error)), leaves(error)
    assert "task1.faulty" in str(error)


async def test_the_machine_is_named_when_it_is_said_to_run_and_does_not(
    faulty: Callable[[str], Wrapped],
) -> None:
    error = await attempt(faulty("lying"))
    assert isinstance(error, BaseException)
    assert all(isinstance(leaf, UnreachableError) for leaf in leaves(error)), leaves(error)
    assert "task1.faulty" in str(error)


async def test_the_missing_machine_is_named_when_the_backend_gives_too_few(
    faulty: Callable[[str], Wrapped],
) -> None:
    error = await attempt(faulty("partial"))
    assert isinstance(error, CapacityError)
    assert "task1.faulty" in error.message


@pytest.mark.parametrize("name", sorted(FAULTS))
async def test_everything_can_be_released_when_making_a_job_went_wrong(
    faulty: Callable[[str], Wrapped], name: str
) -> None:
    backend = faulty(name)
    await attempt(backend)
    listed = await backend.inner.machines(name="*.faulty")
    for _ in range(2):
        try:
            await verbs.release(backend, listed)
        except UnreachableError:
            assert name == "flaky"
    assert await backend.inner.machines() == []
