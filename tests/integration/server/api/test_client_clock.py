"""A computer whose clock is wrong, and a server whose clock is right: times are the server's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from trainyard.cli.jobs.job_top import fetch_uses
from trainyard.client import Client
from trainyard.server.records.samples import task_subject
from trainyard.server.store.usage import samples
from trainyard.spec.workload import WorkloadSpec

AGO = timedelta(hours=20)


def with_date(app, date):
    """The application as a server that says what time it has."""

    async def dated(scope, receive, send):
        async def tell(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"date", date().encode())]}
            await send(message)

        await app(scope, receive, tell)

    return dated


def asking(rig, date):
    transport = httpx2.ASGITransport(app=with_date(rig.app, date))
    return Client("http://platform.test", rig.admin.token, transport=transport)


async def test_the_last_minutes_are_the_servers_when_the_computers_clock_is_ahead(rig):
    async with asking(rig, lambda: format_datetime(datetime.now(UTC) - AGO, usegmt=True)) as client:
        job = await client.jobs.submit(WorkloadSpec(name="busy", command="true"))
        record = rig.start(job.id)
        subject = task_subject(f"{job.id}.{record.attempt}", "worker-0")
        then = (datetime.now(UTC) - AGO - timedelta(minutes=2)).timestamp()
        rig.db.write_now(lambda c: samples.add(c, [(subject, then, {"cpu": 2.0, "memory": 5.0})]))
        [use] = await fetch_uses(client, [])
        assert (use.job.id, use.task, use.now["cpu"]) == (job.id, "worker-0", 2.0)
        assert abs(datetime.now(UTC) - AGO - client.connection.now()) < timedelta(seconds=60)


@pytest.mark.parametrize(
    "date", ["", "yesterday", "Mon, 16 Nov 2026 12:00:00 -9999", "Tue, 99 Foo 2020 25:00:00 GMT"]
)
async def test_our_own_clock_is_taken_when_a_server_says_no_time(rig, date):
    async with asking(rig, lambda: date) as client:
        await client.version()
        assert abs(datetime.now(UTC) - client.connection.now()) < timedelta(seconds=60)


async def test_our_own_clock_is_taken_when_the_two_hardly_differ(rig):
    async with asking(rig, lambda: format_datetime(datetime.now(UTC), usegmt=True)) as client:
        await client.version()
        assert client.connection._ahead == timedelta()
