"""Sweeps through the services, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest

from people import SPEECH, Cast
from trainyard.lib.errors import DeniedError, InvalidError, NotFoundError
from trainyard.server.jobs.service import JobQuery
from trainyard.server.store.jobs import workloads
from trainyard.spec.sweep import parse_axis
from trainyard.spec.workload import Desired, State

AXES = [parse_axis("lr=0.1,0.01"), parse_axis("seed=1..3")]


async def test_a_sweep_is_submitted_once_listed_and_stopped_together(cast: Cast):
    sweeps = cast.services.sweeps
    spec = cast.job(command="run {lr} {seed}")
    sweep, records = await sweeps.submit(cast.ann, spec, AXES, idempotency_key="k")
    again, _ = await sweeps.submit(cast.ann, spec, AXES, idempotency_key="k")
    assert (again, len(records)) == (sweep, 6)
    assert [one.spec.command for one in records][:2] == ["run 0.1 1", "run 0.1 2"]
    await cast.services.jobs.submit(cast.ann, cast.job())
    page = await cast.services.jobs.list(cast.ben, JobQuery(origin=f"sweep:{sweep}", newest_first=False))
    assert [one.id for one in page.items] == [one.id for one in records]
    view = await sweeps.get(cast.vic, sweep)
    assert (view.jobs, view.states) == (6, {State.WAITING: 6})
    assert view.parameters == {"lr": ("0.1", "0.01"), "seed": ("1", "2", "3")}
    assert [one.id for one in await sweeps.list(cast.ann, mine=True)] == [sweep]
    assert await sweeps.list(cast.ben, mine=True) == []

    await cast.db.write(
        lambda c: workloads.advance(c, workloads.load(c, records[0].id), State.CANCELLED, now=5.0)
    )
    with pytest.raises(DeniedError):
        await sweeps.set_desired(cast.ben, sweep, Desired.CANCEL)
    changed = await sweeps.set_desired(cast.ann, sweep, Desired.CANCEL)
    assert len(changed) == 5
    assert await sweeps.set_desired(cast.ann, sweep, Desired.CANCEL) == []


async def test_a_sweep_is_nobody_elses_business_and_all_or_none(cast: Cast):
    sweeps = cast.services.sweeps
    sweep, _ = await sweeps.submit(cast.ann, cast.job(), AXES)
    for look in (sweeps.get(cast.zoe, sweep), sweeps.jobs(cast.zoe, sweep)):
        with pytest.raises(NotFoundError):
            await look
    with pytest.raises(NotFoundError):
        await sweeps.set_desired(cast.zoe, sweep, Desired.CANCEL)
    assert await sweeps.list(cast.zoe) == []
    before = await cast.db.read(lambda c: workloads.count(c))
    with pytest.raises(InvalidError):
        await sweeps.submit(cast.ann, cast.job(env={"1": "x"}), AXES)
    with pytest.raises(DeniedError):
        await sweeps.submit(cast.vic, cast.job(), AXES)
    with pytest.raises(NotFoundError):
        await sweeps.submit(cast.ann, cast.job(workspace=SPEECH), AXES)
    assert await cast.db.read(lambda c: workloads.count(c)) == before
