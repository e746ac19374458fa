"""Elastic jobs that grow while they run, and shrink when others need their room: through the leader's loop, nodes in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
import test_reconciler
from engines import WorldEngine
from test_reconciler import SteppingClock, Yard

from trainyard.lib.errors import Error
from trainyard.lib.ids import new_id
from trainyard.server.leader.pool_demand import PoolChannel
from trainyard.server.store import events
from trainyard.server.store.cluster import nodes
from trainyard.server.store.cluster.nodes import NodeDesired
from trainyard.server.store.jobs import workloads
from trainyard.server.store.jobs.workloads import WorkloadRecord
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


class GrowingYard(Yard):
    """Two nodes of four cores each."""

    def leap(self, seconds: float) -> None:
        self.clock.ahead += seconds
        self.hints.wake("conductor")

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
        self.hints.wake("conductor")
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
        self.hints.wake("conductor")

    def told(self, job: str, code: str) -> list[Event]:
        found = self.db.read_now(lambda c: events.page(c, subject_id=job, limit=1000))
        return [one for one in found if one.code == code]


@pytest.fixture
async def yard(tmp_path, monkeypatch):
    monkeypatch.setattr(test_conductor, "WorldEngine", PatientEngine)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    made = GrowingYard(tmp_path)
    made.clock = LeapingClock()
    await made.lead()
    yield made
    await made.kill()
    made.db.close()


async def begin(yard: GrowingYard, **given: object) -> tuple[str, str]:
    """A job that has four cores, and an elastic one that has the other four."""
    blocker = await yard.submit("0", replicas=4)
    await yard.until(blocker, State.RUNNING)
    job = await yard.elastic(**given)
    await yard.tasks(job, 4)
    return blocker, job


async def leaving(yard, monkeypatch, **given):
    """A job that was told to go for a larger start, and takes its time."""
    blocker, job = await begin(yard, **given)
    monkeypatch.setattr(PatientEngine, "is_patient", True)
    yard.leap(150)
    yard.world.finish(blocker)
    await yard.until(job, State.FINISHING)
    return job


async def close_all(yard):
    """Let no node take anything more, and see that the scheduler knows."""
    for name in ("a", "b"):
        await yard.cordon(name)
    async with asyncio.timeout(20):
        while yard.conductor.memory.scheduler.cluster.ready:
            await asyncio.sleep(0.01)


async def test_an_elastic_job_grows_when_it_has_run_long_enough_and_there_is_room(yard):
    blocker, job = await begin(yard)
    yard.leap(50)
    yard.world.finish(blocker)
    await yard.until(blocker, *FINAL)
    assert await yard.is_as_before(job), "not before its time"
    yard.leap(51)
    grown = await yard.tasks(job, 8)
    assert (grown.attempt, grown.failures, grown.queued_at) == (2, 0, 7.0)
    assert (grown.wait, grown.leave_by, grown.leave_for) == (None, None, "")
    told = yard.told(job, "growing")
    assert [one.data for one in told if one.data] == [{"from": 4, "to": 8}]
    assert "It had 4 tasks, and has 8 now." in yard.told(job, "admitted")[-1].message
    assert {task.env["TRAINYARD_TASKS"] for task in yard.world.launched[f"{job}.2"].tasks} == {"8"}
    yard.world.finish(job)
    assert (await yard.until(job, *FINAL)).state is State.SUCCEEDED


async def test_an_elastic_job_grows_without_any_news_when_time_alone_has_passed(yard):
    blocker, job = await begin(yard)
    yard.leap(200)
    assert await yard.is_as_before(job), "there is no room"
    yard.world.finish(blocker)
    await yard.tasks(job, 8)


async def test_an_elastic_job_stays_as_it_is_when_nobody_asked_it_to_grow(yard):
    blocker, job = await begin(yard, grow_seconds=0)
    yard.world.finish(blocker)
    await yard.until(blocker, *FINAL)
    yard.leap(100_000)
    assert await yard.is_as_before(job)


async def test_an_elastic_job_does_not_grow_again_when_it_has_just_grown(yard):
    first, second = await yard.submit("0", replicas=2), await yard.submit("0", replicas=4)
    for one in (first, second):
        await yard.until(one, State.RUNNING)
    job = await yard.elastic()
    await yard.tasks(job, 2)
    yard.leap(150)
    yard.world.finish(first)
    await yard.tasks(job, 4)
    yard.world.finish(second)
    await yard.until(second, *FINAL)
    assert await yard.is_as_before(job)
    yard.leap(150)
    await yard.tasks(job, 8)


async def test_an_elastic_job_lets_others_have_the_room_when_they_wait_for_it(yard):
    blocker, job = await begin(yard)
    waits = await yard.submit("0", replicas=5)
    yard.leap(150)
    yard.world.finish(blocker)
    await yard.until(blocker, *FINAL)
    assert await yard.is_as_before(job), "four cores are free, and somebody waits for five"
    await yard.want(waits, Desired.CANCEL)
    await yard.tasks(job, 8)


async def test_a_growing_job_keeps_its_places_when_the_leader_dies_before_it_has_gone(yard, monkeypatch):
    job = await leaving(yard, monkeypatch)
    other = await yard.submit("0", replicas=2)
    await yard.kill()
    await yard.lead()
    assert await yard.is_as_before(other), "the room is kept"
    places = PoolChannel(yard.conductor)
    assert places.is_busy("a") and places.is_busy("b"), "a pool does not release the node that it goes to"
    assert not places.is_busy("c")
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(yard, job)
    await yard.tasks(job, 8)
    assert (await yard.get(other)).state is State.WAITING
    decided = [one.data for one in yard.told(job, "growing") if one.data]
    assert decided == [{"from": 4, "to": 8}], "it was decided once"


async def test_a_growing_job_stays_away_when_it_is_paused_while_it_goes(yard, monkeypatch):
    job = await leaving(yard, monkeypatch)
    await yard.want(job, Desired.PAUSE)
    other = await yard.submit("0", replicas=8)
    assert await yard.is_as_before(other)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(yard, job)
    await yard.until(other, State.RUNNING)
    held = await yard.until(job, State.HELD)
    assert held.wait is None
    yard.world.finish(other)
    await yard.want(job, Desired.RUN)
    await yard.tasks(job, 8)


async def test_a_growing_job_is_not_run_again_when_it_was_done_before_it_heard(yard, monkeypatch):
    job = await leaving(yard, monkeypatch)
    yard.world.finish(job)
    ended = await yard.until(job, *FINAL)
    assert (ended.state, ended.attempt) == (State.SUCCEEDED, 1)
    other = await yard.submit("0", replicas=8)
    await yard.until(other, State.RUNNING)


async def test_a_growing_job_comes_back_when_a_node_is_lost_while_it_goes(yard, monkeypatch):
    blocker, job = await begin(yard)
    here = {task.node for task in yard.world.launched[f"{job}.1"].tasks}
    monkeypatch.setattr(PatientEngine, "is_patient", True)
    yard.leap(150)
    yard.world.finish(blocker)
    await yard.until(job, State.FINISHING)
    other = next(name for name in ("a", "b") if name not in here)
    yard.world.cut(other)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(yard, job)
    back = await yard.tasks(job, 4)
    assert back.attempt == 2
    yard.world.mend(other)
    yard.leap(150)
    await yard.tasks(job, 8)


async def test_a_growing_job_stands_in_line_again_when_all_nodes_are_closed_while_it_goes(yard, monkeypatch):
    job = await leaving(yard, monkeypatch)
    await close_all(yard)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(yard, job)
    waits = await yard.until(job, State.WAITING)
    async with asyncio.timeout(20):
        while waits.wait is not None:
            waits = await yard.get(job)
            await asyncio.sleep(0.01)
    assert waits.queued_at == 7.0


async def test_a_time_limit_goes_on_when_a_job_grows(yard):
    blocker, job = await begin(yard, max_run_seconds=400)
    yard.leap(150)
    yard.world.finish(blocker)
    grown = await yard.tasks(job, 8)
    assert grown.wait is not None and 150 <= grown.wait["ran"] < 200
    assert 200 < yard.conductor.memory.scheduler.running[job].request.limit <= 250, (
        "others plan with what is left"
    )
    yard.leap(200)
    assert await yard.is_as_before(job)
    yard.leap(50)
    ended = await yard.until(job, *FINAL)
    assert (ended.state, ended.reason, ended.wait) == (State.FAILED, "time_limit", None)


async def test_a_time_limit_goes_on_when_the_leader_dies_while_a_job_grows(yard, monkeypatch):
    job = await leaving(yard, monkeypatch, max_run_seconds=400)
    await yard.kill()
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    await yard.lead()
    grown = await yard.tasks(job, 8)
    assert grown.wait is not None and 150 <= grown.wait["ran"] < 200
    yard.leap(250)
    assert (await yard.until(job, *FINAL)).reason == "time_limit"


async def test_a_time_limit_goes_on_when_the_larger_places_are_lost(yard, monkeypatch):
    job = await leaving(yard, monkeypatch, max_run_seconds=400)
    await close_all(yard)
    monkeypatch.setattr(PatientEngine, "is_patient", False)
    depart(yard, job)
    async with asyncio.timeout(20):
        while list((await yard.until(job, State.WAITING)).wait or ()) != ["ran"]:
            await asyncio.sleep(0.01)
    assert await yard.is_as_before(job)


async def test_a_time_limit_begins_anew_when_a_job_that_has_grown_is_preempted(yard):
    blocker, job = await begin(yard, max_run_seconds=400, preemptible=True, priority=3)
    yard.leap(150)
    yard.world.finish(blocker)
    await yard.tasks(job, 8)
    higher = await yard.elastic(replicas=4, minimum=4, priority=8, grow_seconds=0)
    await yard.until(higher, State.RUNNING)
    shrunk = await yard.tasks(job, 4)
    assert (shrunk.attempt, shrunk.wait) == (3, None)
    yard.leap(300)
    assert await yard.is_as_before(job)


async def test_a_job_does_not_grow_when_little_of_its_time_is_left(yard):
    blocker, job = await begin(yard, max_run_seconds=240)
    yard.leap(150)
    yard.world.finish(blocker)
    await yard.until(blocker, *FINAL)
    assert await yard.is_as_before(job)


async def test_an_elastic_job_shrinks_when_a_higher_one_needs_a_part_of_its_room_and_grows_again(yard):
    job = await yard.elastic(preemptible=True, priority=3)
    await yard.tasks(job, 8)
    higher = await yard.elastic(replicas=4, minimum=4, priority=8, grow_seconds=0)
    await yard.until(higher, State.RUNNING)
    shrunk = await yard.tasks(job, 4)
    assert (shrunk.attempt, shrunk.failures, shrunk.queued_at) == (2, 0, 7.0)
    assert [one.state for one in yard.told(job, "preempted")] == ["finishing", "waiting"]
    assert "runs with 4 of 8 tasks" in yard.told(job, "admitted")[-1].message
    yard.leap(150)
    yard.world.finish(higher)
    await yard.tasks(job, 8)


async def test_an_elastic_job_waits_when_a_higher_one_leaves_it_less_than_its_minimum(yard):
    job = await yard.elastic(minimum=4, preemptible=True, priority=3)
    await yard.tasks(job, 8)
    higher = await yard.elastic(replicas=6, minimum=6, priority=8, grow_seconds=0)
    await yard.until(higher, State.RUNNING)
    assert (await yard.until(job, State.WAITING)).attempt == 1
    yard.world.finish(higher)
    assert (await yard.tasks(job, 8)).attempt == 2


def depart(yard: GrowingYard, job: str) -> None:
    """What was told to go is gone, wherever its node answers."""
    for node in yard.world.nodes.values():
        for task in list(node.tasks.values()):
            if task.exit_code is None and task.attempt_id.rpartition(".")[0] == job:
                yard.world.finish_task(node, task, 143, was_told=True)
