"""What drivers of devices said last: on its way through the leader into the database, and out at any server."""

from __future__ import annotations

import pytest

from people import VISION, People
from trainyard.engines.api import DeviceReading, Reading
from trainyard.lib.errors import UnreachableError
from trainyard.server.leader.leader_lease import LEASE, LeaderTerm, LeadLostError
from trainyard.server.leader.sample_writer import SampleWriter
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store import leases
from trainyard.server.store.jobs import workloads
from trainyard.server.store.usage import device_figures
from trainyard.server.usage import prometheus_text
from trainyard.spec.workload import RoleSpec, State, WorkloadSpec

SUBJECT = ("dlc1.1", "worker-0")


def lead(people: People, owner: str) -> SampleWriter:
    """The meter of a new leader."""
    held = people.db.read_now(lambda c: leases.find(c, LEASE))
    if held is not None:
        people.db.write_now(lambda c: leases.release(c, LEASE, held.epoch))
    lease = people.db.write_now(lambda c: leases.take(c, LEASE, owner=owner, seconds=60.0))
    return SampleWriter(LeaderTerm(people.db, people.clock, owner, lease.epoch), figures_every=0)


def hear(meter: SampleWriter, people: People, **figures: float) -> None:
    """As if a node had sent a reading of a task with one device; its second has no figures."""
    device = DeviceReading(index=2, busy_percent=50.0, uuid="GPU-1", figures=figures)
    reading = Reading(
        cpu_cores=1.0, read_bytes=0.0, written_bytes=0.0, received_bytes=0.0, sent_bytes=0.0, memory_mib=1.0,
        devices=(device, DeviceReading(index=3)),
    )  # fmt: skip
    meter.take("n1", people.clock.now().timestamp(), None, {SUBJECT: reading})


class Silent(LeaderTerm):
    """One whose database does not answer."""

    async def write(self, work):
        raise UnreachableError("the database does not answer", hint="Try again.")


def known(people: People) -> dict:
    return people.db.read_now(lambda c: device_figures.since(c, 0.0))


@pytest.fixture
def job(people: People) -> None:
    """A job that runs with two devices."""
    spec = WorkloadSpec(name="a", command="x", roles=(RoleSpec(name="worker", devices=2),))
    record = WorkloadRecord(
        id="dlc1", name="a", kind="job", workspace_id=VISION, user_id=people.ann.user_id, spec=spec, submitted_at=1.0,
        state=State.RUNNING, attempt=1,
    )  # fmt: skip
    task = TaskRecord(
        workload_id="dlc1",
        attempt=1,
        name="worker-0",
        role="worker",
        number=0,
        rank=0,
        node="n1",
        devices=(2, 3),
    )

    def work(c):
        workloads.insert_many(c, [record])
        workloads.insert_tasks(c, [task])

    people.db.write_now(work)


async def shown(people: People) -> list[str]:
    text = prometheus_text.render(await people.services.metrics.overview(people.root))
    return [line for line in text.splitlines() if line.startswith("task_dcgm_")]


async def test_only_the_newest_figures_are_kept_when_more_come(people, job):
    meter = lead(people, "one")
    for temperature in (50.0, 60.0):
        hear(meter, people, gpu_temp=temperature, sm_active=0.5)
        await meter.write()
    hear(meter, people, gpu_temp=70.0)
    hear(meter, people, gpu_temp=80.0)
    await meter.write()
    assert known(people) == {"dlc1.1/worker-0": {"2": {"gpu_temp": 80.0, "uuid": "GPU-1"}}}
    (line,) = await shown(people)
    assert line.startswith("task_dcgm_gpu_temp{")
    assert 'minor_number="2"' in line
    assert line.endswith(" 80")


async def test_figures_are_written_less_often_when_readings_come_often(people, job):
    meter = lead(people, "one")
    meter._figures_pause = 3600.0
    written = []
    for temperature in range(50, 54):
        if temperature == 53:
            meter._figures_due = 0.0  # as if the hour was over
        hear(meter, people, gpu_temp=float(temperature))
        await meter.write()
        written.append(known(people)["dlc1.1/worker-0"]["2"]["gpu_temp"])
    assert written == [50, 50, 50, 53]


async def test_figures_stay_when_another_server_leads(people, job):
    first = lead(people, "one")
    hear(first, people, gpu_temp=50.0)
    await first.write()
    second = lead(people, "two")
    (line,) = await shown(people)
    assert line.endswith(" 50")
    hear(first, people, gpu_temp=1.0)  # it has not noticed yet: nothing of it is written
    with pytest.raises(LeadLostError):
        await first.write()
    hear(second, people, gpu_temp=60.0)
    await second.write()
    (line,) = await shown(people)
    assert line.endswith(" 60")


async def test_the_newest_figures_are_written_when_the_database_answers_again(people, job):
    meter = lead(people, "one")
    right = meter._term
    meter._term = Silent(people.db, people.clock, "one", right.epoch)
    for temperature in (50.0, 60.0):
        hear(meter, people, gpu_temp=temperature)
        await meter.write()
    assert known(people) == {}
    meter._term = right
    await meter.write()
    assert known(people)["dlc1.1/worker-0"]["2"]["gpu_temp"] == 60.0


async def test_figures_are_no_longer_shown_when_they_are_old(people, job):
    meter = lead(people, "one")
    hear(meter, people, gpu_temp=50.0)
    await meter.write()
    people.clock.advance(61)
    assert await shown(people) == []
    people.clock.advance(device_figures.KEPT_SECONDS)
    people.db.write_now(lambda c: device_figures.delete_before(c, people.clock.now().timestamp()))
    assert known(people) == {}
