"""Sweeps through the services, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest

from people import SPEECH, People
from trainyard.lib.errors import DeniedError, InvalidError, NotFoundError
from trainyard.server.jobs.service import JobQuery
from trainyard.server.store.jobs import workloads
from trainyard.server.store.jobs.workload_steps import advance
from trainyard.spec.sweep import parse_axis
from trainyard.spec.workload import Desired, State

AXES = [parse_axis("lr=0.1,0.01"), parse_axis("seed=1..3")]


async def test_a_sweep_is_submitted_once_listed_and_stopped_together(people: People):
    sweeps = people.services.sweeps
    spec = people.job(command="run {lr} {seed}")
    sweep, records = await sweeps.submit(people.ann, spec, AXES, idempotency_key="k")
    again, _ = await sweeps.submit(people.ann, spec, AXES, idempotency_key="k")
    assert (again, len(records)) == (sweep, 6)
    assert [one.spec.command for one in records][:2] == ["run 0.1 1", "run 0.1 2"]
    await people.services.jobs.submit(people.ann, people.job())
    page = await people.services.jobs.list(people.ben, JobQuery(origin=f"sweep:{sweep}", newest_first=False))
    assert [one.id for one in page.items] == [one.id for one in records]
    view = await sweeps.get(people.vic, sweep)
    assert (view.jobs, view.states) == (6, {State.WAITING: 6})
    assert view.parameters == {"lr": ("0.1", "0.01"), "seed": ("1", "2", "3")}
    assert [one.id for one in await sweeps.list(people.ann, mine=True)] == [sweep]
    assert await sweeps.list(people.ben, mine=True) == []

    await people.db.write(lambda c: advance(c, workloads.load(c, records[0].id), State.CANCELLED, now=5.0))
    with pytest.raises(DeniedError):
        await sweeps.set_desired(people.ben, sweep, Desired.CANCEL)
    changed = await sweeps.set_desired(people.ann, sweep, Desired.CANCEL)
    assert len(changed) == 5
    assert await sweeps.set_desired(people.ann, sweep, Desired.CANCEL) == []


async def test_a_sweep_is_nobody_elses_business_and_all_or_none(people: People):
    sweeps = people.services.sweeps
    sweep, _ = await sweeps.submit(people.ann, people.job(), AXES)
    for look in (sweeps.get(people.zoe, sweep), sweeps.jobs(people.zoe, sweep)):
        with pytest.raises(NotFoundError):
            await look
    with pytest.raises(NotFoundError):
        await sweeps.set_desired(people.zoe, sweep, Desired.CANCEL)
    assert await sweeps.list(people.zoe) == []
    before = await people.db.read(lambda c: workloads.count(c))
    with pytest.raises(InvalidError):
        await sweeps.submit(people.ann, people.job(env={"1": "x"}), AXES)
    with pytest.raises(DeniedError):
        await sweeps.submit(people.vic, people.job(), AXES)
    with pytest.raises(NotFoundError):
        await sweeps.submit(people.ann, people.job(workspace=SPEECH), AXES)
    assert await people.db.read(lambda c: workloads.count(c)) == before
