"""Two servers on one PostgreSQL: what one was told, the other answers at once, kept answers or not."""

from __future__ import annotations

import asyncio

import pytest

from postgres import postgres  # noqa: F401  # a fixture
from trainyard.spec.workload import Desired, WorkloadSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]  # a real PostgreSQL is started


@pytest.fixture
async def replicas(postgres, make_rig):  # noqa: F811  # the fixture
    url = postgres.emptied()
    first = make_rig("a", database=url)
    return first, make_rig("b", database=url, token=first.admin.token)


async def test_a_job_is_in_the_other_servers_list_when_its_submission_was_answered(replicas):
    first, second = replicas
    async with first.client() as one, second.client() as other:
        for n in range(20):
            job = await one.jobs.submit(WorkloadSpec(name=f"j{n}", command="true"))
            assert (await other.jobs.page(limit=1)).items[0].id == job.id
            await other.jobs.set_desired(job.id, Desired.CANCEL)
            assert (await one.jobs.get(job.id)).desired is Desired.CANCEL
        events = [event async for event in other.events.list()]
        assert len({event.seq for event in events}) == len(events) == 40


async def test_events_written_by_one_server_are_followed_at_the_other_in_order(replicas):
    first, second = replicas
    async with first.client() as one:
        actor = await second.services.authentication.authenticate(first.admin.token)
        seen = []

        async def follow():
            async for batch in second.services.events.follow(actor, after_seq=0):
                seen.extend(batch)
                if len(seen) >= 30:
                    return

        following = asyncio.ensure_future(follow())
        await asyncio.gather(
            *[one.jobs.submit(WorkloadSpec(name=f"j{n}", command="true")) for n in range(30)]
        )
        await asyncio.wait_for(following, 30)
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})


async def test_lists_are_kept_on_postgresql_too(replicas):
    first, _ = replicas
    async with first.client() as one:
        await one.jobs.submit(WorkloadSpec(name="j", command="true"))
        await one.jobs.page()
        asked = []
        real = first.services.jobs.list

        async def counted(*arguments, **more):
            asked.append(arguments)
            return await real(*arguments, **more)

        first.services.jobs.list = counted
        for _ in range(5):
            assert len((await one.jobs.page()).items) == 1
        assert len(asked) <= 1  # the use of the token may be noted meanwhile
