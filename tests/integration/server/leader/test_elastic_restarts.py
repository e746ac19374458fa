"""Elastic jobs that grow while they run, and shrink when others need their room: through the leader's loop, nodes in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
import test_reconciler
from engines import WorldEngine
from test_reconciler import Lab, SteppingClock

from trainyard.lib.errors import Error
from trainyard.lib.ids import new_id
from trainyard.server.leader.pool_demand import PoolChannel
from trainyard.server.records.nodes import NodeDesired
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store import events
from trainyard.server.store.cluster import nodes
from trainyard.server.store.jobs import workloads
from trainyard.spec.events import Event, Subject
from trainyard.spec.workload import FINAL, Desired, RoleSpec, State, WorkloadSpec


class LeapingClock(SteppingClock):
    """A clock whose seconds may pass all at once."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class PatientEngine(WorldEngine):
    """Nodes whose tasks take their time to save their work, until they are let go."""

    is_patient = False

    def _end(self, attempt: str, names: Iterable[str]) -> Mapping[str, frozenset[str]] | Error:
        if not PatientEngine.is_patient:
            return super()._end(attempt, names)
        there = {
            name: [key for key in self.world.node(name).tasks if key[0] == attempt] for name in list(names)
        }
        return {name: frozenset(task for _, task in keys) for name, keys in there.items()}


class GrowingLab(Lab):
    """Two nodes of four cores each."""

    def leap(self, seconds: float) -> None:
        self.clock.ahead += seconds
        self.wakeups.wake("reconciler")

    async def elastic(self, *, replicas: int = 8, minimum: int = 2, **given: object) -> str:
        role = RoleSpec(replicas=replicas, minimum=minimum, cpu=1.0)
        spec = WorkloadSpec(
            **{"name": "e", "command": "0", "workspace": "w", "grow_seconds": 100, "roles": (role,), **given}
        )
        record = WorkloadRecord(
            id=new_id("dlc"), name="e", kind="job", workspace_id="w", user_id="u", spec=spec, submitted_at=0.0,
            queued_at=7.0, preemptible=spec.preemptible, priority=spec.priority,
        )  # fmt: skip
        await self.db.write(lambda c: (workloads.insert(c, record), self._say(c, record, "submitted")))
        self.wakeups.wake("reconciler")
        return record.id

    async def tasks(self, job: str, count: int) -> WorkloadRecord:
        """Wait until it runs with so many tasks."""
        async with asyncio.timeout(20):
            while True:
                record = await self.get(job)
                tasks = await self.db.read(lambda c, one=record: workloads.tasks(c, one.id, one.attempt))
                if record.state is State.RUNNING and len(tasks) == count:
                    return record
                await asyncio.sleep(0.01)

    async def is_as_before(self, job: str) -> bool:
        """Whether a look, and another after it, have changed nothing."""
        before = await self.get(job)
        for _ in range(2):
            probe = await self.submit("0", replicas=99)  # it never starts; its intake is a turn
            await self.want(probe, Desired.CANCEL)
            await self.until(probe, State.CANCELLED)
        after = await self.get(job)
        return (before.attempt, before.state) == (after.attempt, after.state)

    async def cordon(self, name: str) -> None:
        changed = Event(time=0.0, subject=Subject.NODE, subject_id=name, code="x", message="x", actor="me")

        def work(c) -> None:
            nodes.save(c, replace(nodes.load(c, name), desired=NodeDesired.CORDONED))
            events.append(c, changed)

        await self.db.write(work)
        self.wakeups.wake("reconciler")

    def told(self, job: str, code: str) -> list[Event]:
        found = self.db.read_now(lambda c: events.page(c, subject_id=job, limit=1000))
        return [one for one in found if one.code == code]


@pytest.fixture
async def lab(tmp_path, monkeypatch):
    monkeypatch.setattr(test_reconciler, "WorldEngine", PatientEngine)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    made = GrowingLab(tmp_path)
    made.clock = LeapingClock()
    await made.lead()
    yield made
    await made.kill()
    made.db.close()


async def begin(lab: GrowingLab, **given: object) -> tuple[str, str]:
    """A job that has four cores, and an elastic one that has the other four."""
    blocker = await lab.submit("0", replicas=4)
    await lab.until(blocker, State.RUNNING)
    job = await lab.elastic(**given)
    await lab.tasks(job, 4)
    return blocker, job


async def leaving(lab, monkeypatch, **given):
    """A job that was told to go for a larger start, and takes its time."""
    blocker, job = await begin(lab, **given)
    monkeypatch.setattr(PatientEngine, "is_patient", True)
    lab.leap(150)
    lab.world.finish(blocker)
    await lab.until(job, State.FINISHING)
    return job


async def close_all(lab):
    """Let no node take anything more, and see that the scheduler knows."""
    for name in ("a", "b"):
        await lab.cordon(name)
    async with asyncio.timeout(20):
        while lab.reconciler.memory.scheduler.cluster.ready:
            await asyncio.sleep(0.01)


async def test_an_elastic_job_grows_when_it_has_run_long_enough_and_there_is_room(lab):
    blocker, job = await begin(lab)
    lab.leap(50)
    lab.world.finish(blocker)
    await lab.until(blocker, *FINAL)
    assert await lab.is_as_before(job), "not before its time"
    lab.leap(51)
    grown = await lab.tasks(job, 8)
    assert (grown.attempt, grown.failures, grown.queued_at) == (2, 0, 7.0)
    assert (grown.wait, grown.leave_by, grown.leave_for) == (None, None, "")
    told = lab.told(job, "growing")
    assert [one.data for one in told if "from" in (one.data or {})] == [{"from": 4, "to": 8}]
    assert "It had 4 tasks, and has 8 now." in lab.told(job, "admitted")[-1].message
    assert {task.env["TRAINYARD_TASKS"] for task in lab.world.launched[f"{job}.2"].tasks} == {"8"}
    lab.world.finish(job)
    assert (await lab.until(job, *FINAL)).state is State.SUCCEEDED


async def test_an_elastic_job_grows_without_any_news_when_time_alone_has_passed(lab):
    blocker, job = await begin(lab)
    lab.leap(200)
    assert await lab.is_as_before(job), "there is no room"
    lab.world.finish(blocker)
    await lab.tasks(job, 8)


async def test_an_elastic_job_stays_as_it_is_when_nobody_asked_it_to_grow(lab):
    blocker, job = await begin(lab, grow_seconds=0)
    lab.world.finish(blocker)
    await lab.until(blocker, *FINAL)
    lab.leap(100_000)
    assert await lab.is_as_before(job)


async def test_an_elastic_job_does_not_grow_again_when_it_has_just_grown(lab):
    first, second = await lab.submit("0", replicas=2), await lab.submit("0", replicas=4)
    for one in (first, second):
        await lab.until(one, State.RUNNING)
    job = await lab.elastic()
    await lab.tasks(job, 2)
    lab.leap(150)
    lab.world.finish(first)
    await lab.tasks(job, 4)
    lab.world.finish(second)
    await lab.until(second, *FINAL)
    assert await lab.is_as_before(job)
    lab.leap(150)
    await lab.tasks(job, 8)


async def test_an_elastic_job_lets_others_have_the_room_when_they_wait_for_it(lab):
    blocker, job = await begin(lab)
    waits = await lab.submit("0", replicas=5)
    lab.leap(150)
    lab.world.finish(blocker)
    await lab.until(blocker, *FINAL)
    assert await lab.is_as_before(job), "four cores are free, and somebody waits for five"
    await lab.want(waits, Desired.CANCEL)
    await lab.tasks(job, 8)


async def test_a_growing_job_keeps_its_places_when_the_leader_dies_before_it_has_gone(lab, monkeypatch):
    job = await leaving(lab, monkeypatch)
    other = await lab.submit("0", replicas=2)
    await lab.kill()
    await lab.lead()
    assert await lab.is_as_before(other), "the room is kept"
    places = PoolChannel(lab.reconciler)
    assert places.is_busy("a") and places.is_busy("b"), "a pool does not release the node that it goes to"
    assert not places.is_busy("c")
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(lab, job)
    await lab.tasks(job, 8)
    assert (await lab.get(other)).state is State.WAITING
    decided = [one.data for one in lab.told(job, "growing") if "from" in (one.data or {})]
    assert decided == [{"from": 4, "to": 8}], "it was decided once"


async def test_a_growing_job_stays_away_when_it_is_paused_while_it_goes(lab, monkeypatch):
    job = await leaving(lab, monkeypatch)
    await lab.want(job, Desired.PAUSE)
    other = await lab.submit("0", replicas=8)
    assert await lab.is_as_before(other)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(lab, job)
    await lab.until(other, State.RUNNING)
    held = await lab.until(job, State.HELD)
    assert held.wait is None
    lab.world.finish(other)
    await lab.want(job, Desired.RUN)
    await lab.tasks(job, 8)


async def test_a_growing_job_is_not_run_again_when_it_was_done_before_it_heard(lab, monkeypatch):
    job = await leaving(lab, monkeypatch)
    lab.world.finish(job)
    ended = await lab.until(job, *FINAL)
    assert (ended.state, ended.attempt) == (State.SUCCEEDED, 1)
    other = await lab.submit("0", replicas=8)
    await lab.until(other, State.RUNNING)


async def test_a_growing_job_comes_back_when_a_node_is_lost_while_it_goes(lab, monkeypatch):
    blocker, job = await begin(lab)
    here = {task.node for task in lab.world.launched[f"{job}.1"].tasks}
    monkeypatch.setattr(PatientEngine, "is_patient", True)
    lab.leap(150)
    lab.world.finish(blocker)
    await lab.until(job, State.FINISHING)
    other = next(name for name in ("a", "b") if name not in here)
    lab.world.cut(other)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(lab, job)
    back = await lab.tasks(job, 4)
    assert back.attempt == 2
    lab.world.mend(other)
    lab.leap(150)
    await lab.tasks(job, 8)


async def test_a_growing_job_stands_in_line_again_when_all_nodes_are_closed_while_it_goes(lab, monkeypatch):
    job = await leaving(lab, monkeypatch)
    await close_all(lab)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(lab, job)
    waits = await lab.until(job, State.WAITING)
    async with asyncio.timeout(20):
        while waits.wait is not None:
            waits = await lab.get(job)
            await asyncio.sleep(0.01)
    assert waits.queued_at == 7.0


async def test_a_time_limit_goes_on_when_a_job_grows(lab):
    blocker, job = await begin(lab, max_run_seconds=400)
    lab.leap(150)
    lab.world.finish(blocker)
    grown = await lab.tasks(job, 8)
    assert grown.wait is not None and 150 <= grown.wait["ran"] < 200
    assert 200 < lab.reconciler.memory.scheduler.running[job].request.limit <= 250, (
        "others plan with what is left"
    )
    lab.leap(200)
    assert await lab.is_as_before(job)
    lab.leap(50)
    ended = await lab.until(job, *FINAL)
    assert (ended.state, ended.reason, ended.wait) == (State.FAILED, "time_limit", None)


async def test_a_time_limit_goes_on_when_the_leader_dies_while_a_job_grows(lab, monkeypatch):
    job = await leaving(lab, monkeypatch, max_run_seconds=400)
    await lab.kill()
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    await lab.lead()
    grown = await lab.tasks(job, 8)
    assert grown.wait is not None and 150 <= grown.wait["ran"] < 200
    lab.leap(250)
    assert (await lab.until(job, *FINAL)).reason == "time_limit"


async def test_a_time_limit_goes_on_when_the_larger_places_are_lost(lab, monkeypatch):
    job = await leaving(lab, monkeypatch, max_run_seconds=400)
    await close_all(lab)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(lab, job)
    async with asyncio.timeout(20):
        while list((await lab.until(job, State.WAITING)).wait or ()) != ["ran"]:
            await asyncio.sleep(0.01)
    assert await lab.is_as_before(job)


async def test_a_time_limit_begins_anew_when_a_job_that_has_grown_is_preempted(lab):
    blocker, job = await begin(lab, max_run_seconds=400, preemptible=True, priority=3)
    lab.leap(150)
    lab.world.finish(blocker)
    await lab.tasks(job, 8)
    higher = await lab.elastic(replicas=4, minimum=4, priority=8, grow_seconds=0)
    await lab.until(higher, State.RUNNING)
    shrunk = await lab.tasks(job, 4)
    assert (shrunk.attempt, shrunk.wait) == (3, None)
    lab.leap(300)
    assert await lab.is_as_before(job)


async def test_a_job_does_not_grow_when_little_of_its_time_is_left(lab):
    blocker, job = await begin(lab, max_run_seconds=240)
    lab.leap(150)
    lab.world.finish(blocker)
    await lab.until(blocker, *FINAL)
    assert await lab.is_as_before(job)


async def test_an_elastic_job_shrinks_when_a_higher_one_needs_a_part_of_its_room_and_grows_again(lab):
    job = await lab.elastic(preemptible=True, priority=3)
    await lab.tasks(job, 8)
    higher = await lab.elastic(replicas=4, minimum=4, priority=8, grow_seconds=0)
    await lab.until(higher, State.RUNNING)
    shrunk = await lab.tasks(job, 4)
    assert (shrunk.attempt, shrunk.failures, shrunk.queued_at) == (2, 0, 7.0)
    assert [one.state for one in lab.told(job, "preempted")] == ["finishing", "waiting"]
    assert "runs with 4 of 8 tasks" in lab.told(job, "admitted")[-1].message
    lab.leap(150)
    lab.world.finish(higher)
    await lab.tasks(job, 8)


async def test_an_elastic_job_waits_when_a_higher_one_leaves_it_less_than_its_minimum(lab):
    job = await lab.elastic(minimum=4, preemptible=True, priority=3)
    await lab.tasks(job, 8)
    higher = await lab.elastic(replicas=6, minimum=6, priority=8, grow_seconds=0)
    await lab.until(higher, State.RUNNING)
    assert (await lab.until(job, State.WAITING)).attempt == 1
    lab.world.finish(higher)
    assert (await lab.tasks(job, 8)).attempt == 2


def depart(lab: GrowingLab, job: str) -> None:
    """What was told to go is gone, wherever its node answers."""
    for node in lab.world.nodes.values():
        for task in list(node.tasks.values()):
            if task.exit_code is None and task.attempt_id.rpartition(".")[0] == job:
                lab.world.finish_task(node, task, 143, was_told=True)
