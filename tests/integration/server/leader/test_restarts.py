"""Jobs that hang, that a node has failed, and that begin with fewer tasks: through the leader's loop, with nodes in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from test_reconciler import Lab

from trainyard.engines.api import DeviceReading, Reading
from trainyard.lib.clock import ManualClock
from trainyard.server.jobs.hang_policy import HungAttempt
from trainyard.server.jobs.node_blacklist import relieve
from trainyard.server.jobs.turn_changes import Job, TurnChanges
from trainyard.server.leader.hang_detector import ActivityMeter, HangDetector
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store import events
from trainyard.server.store.cluster import nodes
from trainyard.server.store.jobs import workloads
from trainyard.spec.workload import FINAL, Restart, RoleSpec, State, TaskState, WorkloadSpec


@pytest.fixture
async def lab(tmp_path):
    made = Lab(tmp_path)
    yield made
    if made.leading is not None:
        await made.kill()
    made.db.close()


def codes(lab: Lab, job: str) -> list[str]:
    return [one.code for one in lab.db.read_now(lambda c: events.page(c, subject_id=job, limit=1000))]


async def until_attempt(lab: Lab, job: str, attempt: int) -> WorkloadRecord:
    async with asyncio.timeout(20):
        while (record := await lab.get(job)).attempt < attempt or record.state is not State.RUNNING:
            await asyncio.sleep(0.01)
    return record


async def test_a_hung_job_is_tried_again_and_given_up_when_its_retries_are_used_up(lab):
    await lab.lead()
    job = await lab.submit("0", hang_seconds=5, max_retries=1)
    await lab.until(job, State.RUNNING)
    lab.reconciler.arrived(HungAttempt(job, f"{job}.1", 6, "worker-0", devices_known=False))
    await until_attempt(lab, job, 2)
    lab.reconciler.arrived(HungAttempt(job, f"{job}.1", 6, "worker-0", devices_known=False))  # of the past
    lab.reconciler.arrived(HungAttempt(job, f"{job}.2", 7, "", devices_known=False))
    ended = await lab.until(job, *FINAL)
    assert (ended.state, ended.reason, ended.attempt, ended.failures) == (State.FAILED, "hung", 2, 1)
    assert ended.message == "It hangs: no output for 7 s; it never said anything."
    assert codes(lab, job).count("hang_found") == 2
    assert not lab.world.live(job)


async def test_a_hung_job_fails_at_once_when_it_is_never_to_be_restarted(lab):
    await lab.lead()
    job = await lab.submit("0", hang_seconds=5, max_retries=3, restart=Restart.NEVER)
    await lab.until(job, State.RUNNING)
    lab.reconciler.arrived(HungAttempt(job, f"{job}.1", 6, "", devices_known=False))
    assert (await lab.until(job, *FINAL)).attempt == 1


class Quiet:
    """A job, its log and a meter, without anything around them."""

    def __init__(self, **given) -> None:
        spec = WorkloadSpec(name="j", command="x", **{"hang_seconds": 60, **given})
        record = WorkloadRecord(
            id="d", name="j", kind="job", workspace_id="w", user_id="u", spec=spec, submitted_at=0.0,
            state=State.RUNNING, attempt=1,
        )  # fmt: skip
        tasks = [
            TaskRecord(workload_id="d", attempt=1, name=f"worker-{n}", role="worker", number=n, rank=n, node="a",
                       devices=(n,), state=TaskState.RUNNING)
            for n in range(2)
        ]  # fmt: skip
        self.job = Job(record, {task.name: task for task in tasks})
        self.clock = ManualClock()
        self.sizes: dict[str, int] = {}
        self.told: list[HungAttempt] = []
        self.handed: list[str] = []
        self.pulse = ActivityMeter(self.clock, self)
        self.loop = HangDetector(
            self.clock,
            lambda: [self.job],
            lambda _j, _a, task: self.sizes.get(task, 0),
            self.told.append,
            self.pulse,
        )

    def take(self, node, _time, _own, _tasks) -> None:
        self.handed.append(node)

    def use(self, percent: float | None) -> None:
        nothing = {"cpu_cores": 0.0, "memory_mib": 0.0, "read_bytes": 0.0, "written_bytes": 0.0}
        device = DeviceReading(index=0, busy_percent=percent)
        reading = Reading(received_bytes=0.0, sent_bytes=0.0, devices=(device,), **nothing)
        self.pulse.take("a", 0.0, None, {("d.1", "worker-0"): reading})

    def after(self, seconds: float) -> list[HungAttempt]:
        self.clock.advance(seconds)
        self.loop.look()
        return self.told


def test_a_job_hangs_when_no_task_says_anything_for_long_enough():
    quiet = Quiet()
    quiet.loop.look()
    assert quiet.after(50) == []
    quiet.sizes["worker-1"] = 10
    assert quiet.after(50) == [] and quiet.after(59) == []
    assert quiet.after(2) == [HungAttempt("d", "d.1", 61, "worker-1", devices_known=False)]
    assert len(quiet.after(100)) == 1, "it is told once"


def test_a_job_lives_when_its_devices_work_and_hangs_when_they_do_not():
    quiet = Quiet()
    quiet.loop.look()
    for _ in range(5):
        quiet.use(97.0)
        assert quiet.after(50) == []
    quiet.use(0.2)
    quiet.use(None)
    assert quiet.after(30) == [HungAttempt("d", "d.1", 80, "", devices_known=True)]
    assert quiet.handed == ["a"] * 7, "readings go on to who keeps them"


@pytest.mark.parametrize("why", ["lost", "finishing", "never asked"])
def test_nothing_hangs_when_nobody_can_know_or_wants_to(why):
    quiet = Quiet(hang_seconds=0 if why == "never asked" else 60)
    if why == "lost":
        task = quiet.job.tasks["worker-0"]
        quiet.job.tasks["worker-0"] = replace(task, state=TaskState.LOST)
    if why == "finishing":
        quiet.job.record = replace(quiet.job.record, state=State.FINISHING)
    quiet.loop.look()
    assert quiet.after(1000) == []


async def test_a_job_avoids_the_node_that_lost_it_when_another_has_room(lab):
    await lab.lead()
    job = await lab.submit("0")
    first = await lab.until(job, State.RUNNING)
    node = (await lab.db.read(lambda c: workloads.tasks(c, job, first.attempt)))[0].node
    lab.world.reboot(node)
    again = await until_attempt(lab, job, 2)
    other = (await lab.db.read(lambda c: workloads.tasks(c, job, 2)))[0].node
    assert (again.avoid, other != node) == ((node,), True)
    assert "task_lost" in codes(lab, job)


async def test_a_job_is_tried_on_the_same_node_when_there_is_no_other(tmp_path):
    lab = Lab(tmp_path, node_names=("a",))
    try:
        await lab.lead()
        job = await lab.submit("0")
        await lab.until(job, State.RUNNING)
        lab.world.reboot("a")
        again = await until_attempt(lab, job, 2)
        assert again.avoid == ()
        assert "avoid_lifted" in codes(lab, job)
    finally:
        await lab.kill()
        lab.db.close()


async def test_a_job_comes_back_to_a_node_when_the_others_leave(lab):
    await lab.lead()
    blocker = await lab.submit("0", replicas=4)
    await lab.until(blocker, State.RUNNING)
    job = await lab.submit("0", replicas=2)
    first = await lab.until(job, State.RUNNING)
    node = (await lab.db.read(lambda c: workloads.tasks(c, job, first.attempt)))[0].node
    lab.world.reboot(node)
    async with asyncio.timeout(20):
        while (await lab.get(job)).avoid != (node,):
            await asyncio.sleep(0.01)
    other = "b" if node == "a" else "a"
    lab.world.cut(other)  # where the first one still runs, as far as anybody knows
    await until_attempt(lab, job, 2)
    assert (await lab.get(job)).avoid == ()


async def test_a_programs_own_failure_is_no_nodes_fault(lab):
    await lab.lead()
    job = await lab.submit("137", max_retries=1)
    await lab.until(job, State.RUNNING)
    lab.world.step()
    assert (await until_attempt(lab, job, 2)).avoid == ()


def test_a_black_list_is_lifted_only_where_it_is_what_keeps_the_job():
    ready = {"state": "ready", "created_at": 0.0, "address": {}, "cpu": 4000, "memory_mib": 8192}
    small, large = NodeRecord(name="s", **ready), NodeRecord(name="l", **{**ready, "devices": {"V100": 8}})

    def left(avoid: tuple[str, ...], role: RoleSpec, *known: NodeRecord) -> tuple[str, ...]:
        spec = WorkloadSpec(name="j", command="x", roles=(role,))
        record = WorkloadRecord(
            id="d",
            name="j",
            kind="job",
            workspace_id="w",
            user_id="u",
            spec=spec,
            submitted_at=0.0,
            avoid=avoid,
        )
        return relieve(TurnChanges(), record, known, 1.0).avoid

    assert left(("s",), RoleSpec(), small, large) == ("s",)
    assert left(("l",), RoleSpec(devices=8, device="V100"), small, large) == ()
    assert left(("l",), RoleSpec(devices=9), small, large) == ("l",), "nothing could have it"
    assert left(("s",), RoleSpec(nodes=("s",)), small, large) == ()
    assert left(("s",), RoleSpec(replicas=6, cpu=1.0), small, large) == ()
    assert left(("s",), RoleSpec(replicas=6, minimum=2, cpu=1.0), small, large) == ("s",)
    assert left(("s",), RoleSpec(), small, replace(large, desired="cordoned")) == ()


async def submit_elastic(lab, role: RoleSpec) -> WorkloadRecord:
    spec = WorkloadSpec(name="e", command="0", workspace="w", roles=(role,))
    record = WorkloadRecord(
        id="dlcelastic",
        name="e",
        kind="job",
        workspace_id="w",
        user_id="u",
        spec=spec,
        submitted_at=0.0,
        queued_at=0.0,
    )
    await lab.db.write(lambda c: (workloads.insert(c, record), lab._say(c, record, "submitted")))
    lab.wakeups.wake("reconciler")
    return record


async def test_an_elastic_job_begins_with_what_fits_and_knows_how_many_it_is(lab):
    await lab.lead()
    blocker = await lab.submit("0", replicas=4)
    await lab.until(blocker, State.RUNNING)
    record = await submit_elastic(lab, RoleSpec(replicas=8, minimum=2, cpu=1.0))
    await lab.until(record.id, State.RUNNING)
    launch = lab.world.launched[f"{record.id}.1"]
    assert [task.name for task in launch.tasks] == [f"worker-{n}" for n in range(4)]
    assert {task.env["TRAINYARD_TASKS"] for task in launch.tasks} == {"4"}
    told = lab.db.read_now(lambda c: events.page(c, subject_id=record.id, limit=100))
    assert "runs with 4 of 8 tasks" in " ".join(one.message for one in told)
    for _ in range(9):
        lab.world.step()
    assert (await lab.until(record.id, *FINAL)).state is State.SUCCEEDED, "four were enough"


async def test_an_elastic_job_waits_when_not_even_its_least_fits(lab):
    await lab.lead()
    blockers = [await lab.submit("0", replicas=4), await lab.submit("0", replicas=3)]
    for one in blockers:
        await lab.until(one, State.RUNNING)
    record = await submit_elastic(lab, RoleSpec(replicas=4, minimum=2, cpu=1.0))
    # Whoever it would pass by may keep the room for itself: nobody before the most urgent.
    probe = await lab.submit("0", priority=9)
    await lab.until(probe, State.RUNNING)
    assert (await lab.get(record.id)).state is State.WAITING
    assert lab.db.read_now(nodes.list_nodes)
