"""The leader's loop over a real database, with nodes in memory: dies anywhere, and every job still ends once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "faults"))
from engines import FakeTask, World, WorldEngine

from trainyard.engines.api import Engine
from trainyard.lib.clock import SystemClock
from trainyard.lib.ids import new_id
from trainyard.scheduling import Policy
from trainyard.server.cluster import scheduler_snapshot
from trainyard.server.leader import leader_lease
from trainyard.server.leader.leader_lease import LeaderTerm
from trainyard.server.leader.reconciler import Reconciler
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.records.workspaces import WorkspaceRecord
from trainyard.server.store import events, leases, tables
from trainyard.server.store.cluster import nodes
from trainyard.server.store.database import Database
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import users, workspaces
from trainyard.server.wakeups import Wakeups
from trainyard.spec.events import Event, Subject
from trainyard.spec.workload import FINAL, Desired, Restart, RoleSpec, State, WorkloadSpec


class SteppingClock(SystemClock):
    """A clock that is set, back and forth."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def now(self) -> datetime:
        return super().now() + self.offset


class Lab:
    """A database, a world of nodes, and leaders that come and go."""

    def __init__(self, folder: Path, *, node_names: tuple[str, ...] = ("a", "b"), seed: int = 0) -> None:
        self.db = Database(f"sqlite:///{folder / 'x.db'}")
        self.db.write_now(tables.metadata.create_all)
        self.wakeups = Wakeups()
        self.world = World(seed)
        self.clock = SteppingClock()
        self.leading: asyncio.Task[None] | None = None
        self.terms = 0
        self.db.write_now(lambda c: self._fill(c, node_names))

    def _fill(self, c, names) -> None:
        users.insert_user(c, UserRecord(id="u", name="me", created_at=0.0))
        workspaces.insert_workspace(c, WorkspaceRecord(id="w", name="team", created_at=0.0))
        for name in names:
            nodes.insert_node(c, NodeRecord(name=name, created_at=0.0, address={"backend": "local"}))

    async def lead(self) -> None:
        self.terms += 1
        owner = f"leader-{self.terms}"
        lease = await self.db.write(
            lambda c: leases.take(
                c, leader_lease.LEASE, owner="one", seconds=10
            )  # the same owner: no waiting
        )
        assert lease is not None, owner
        term = LeaderTerm(self.db, self.clock, "one", lease.epoch)
        self.reconciler = Reconciler(term, self.open_engine(), self.wakeups, policy=Policy())
        self.leading = asyncio.create_task(self.reconciler.run())

    def open_engine(self) -> Engine:
        return WorldEngine(self.world)

    async def kill(self) -> None:
        assert self.leading is not None
        self.leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.leading

    async def submit(self, command: str, *, replicas: int = 1, **given) -> str:
        spec = WorkloadSpec(
            name="job", command=command, workspace="w", roles=(RoleSpec(replicas=replicas, cpu=1.0),), **given
        )
        record = WorkloadRecord(
            id=new_id("dlc"), name="job", kind="job", workspace_id="w", user_id="u", spec=spec,
            submitted_at=0.0, queued_at=0.0, preemptible=spec.preemptible, priority=spec.priority,
        )  # fmt: skip
        await self.db.write(lambda c: (workloads.insert(c, record), self._say(c, record, "submitted")))
        self.wakeups.wake("reconciler")
        return record.id

    async def want(self, job: str, desired: Desired) -> None:
        def work(c) -> None:
            record = workloads.load(c, job)
            if record.state not in FINAL:
                workloads.save(c, replace(record, desired=desired))
                self._say(c, record, desired.value)

        await self.db.write(work)
        self.wakeups.wake("reconciler")

    @staticmethod
    def _say(c, record: WorkloadRecord, code: str) -> None:
        events.append(
            c,
            Event(
                time=0.0, subject=Subject.WORKLOAD, subject_id=record.id, code=code, message=code, actor="me"
            ),
        )

    async def get(self, job: str) -> WorkloadRecord:
        return await self.db.read(lambda c: workloads.load(c, job))

    async def until(self, job: str, *states: State, seconds: float = 20.0) -> WorkloadRecord:
        async with asyncio.timeout(seconds):
            while (record := await self.get(job)).state not in states:
                await asyncio.sleep(0.01)
        return record


@pytest.fixture
async def lab(tmp_path):
    made = Lab(tmp_path)
    yield made
    if made.leading is not None:
        await made.kill()
    made.db.close()


async def test_a_job_runs_to_its_end_when_there_is_room(lab):
    await lab.lead()
    job = await lab.submit("0")
    await lab.until(job, State.RUNNING)
    lab.world.step()
    ended = await lab.until(job, *FINAL)
    assert (ended.state, ended.exit_code, ended.attempt) == (State.SUCCEEDED, 0, 1)
    assert ended.started_at is not None
    assert ended.ended_at is not None
    assert [node.tasks for node in lab.world.nodes.values()] == [{}, {}], "nodes have forgotten it"


async def test_a_failed_program_fails_its_job(lab):
    await lab.lead()
    job = await lab.submit("3", replicas=2)
    await lab.until(job, State.RUNNING)
    lab.world.step()
    ended = await lab.until(job, *FINAL)
    assert (ended.state, ended.exit_code) == (State.FAILED, 3)
    assert not lab.world.live(job), "its other task was ended"


async def test_a_job_is_tried_again_when_its_code_allows_it(lab):
    await lab.lead()
    job = await lab.submit("137", max_retries=1)
    await lab.until(job, State.RUNNING)
    lab.world.step()
    async with asyncio.timeout(10):
        while len(lab.world.ran[job]) < 2:
            await asyncio.sleep(0.01)
    await lab.until(job, State.RUNNING)
    lab.world.step()
    ended = await lab.until(job, *FINAL)
    assert (ended.state, ended.attempt, ended.failures) == (State.FAILED, 2, 1)


async def test_a_job_is_not_tried_again_when_its_code_is_its_verdict(lab):
    await lab.lead()
    job = await lab.submit("1", max_retries=3, restart=Restart.EXIT_CODE)
    await lab.until(job, State.RUNNING)
    lab.world.step()
    assert (await lab.until(job, *FINAL)).attempt == 1


async def test_a_waiting_job_is_cancelled_when_it_is_stopped(lab):
    await lab.lead()
    big = [await lab.submit("0", replicas=4) for _ in range(2)]
    late = await lab.submit("0", replicas=2)
    for one in big:
        await lab.until(one, State.RUNNING)
    await lab.want(late, Desired.CANCEL)
    assert (await lab.until(late, *FINAL)).state is State.CANCELLED
    assert late not in lab.world.ran


async def test_a_running_job_goes_back_to_the_queue_when_it_is_paused_and_resumed(lab):
    await lab.lead()
    job = await lab.submit("0")
    await lab.until(job, State.RUNNING)
    await lab.want(job, Desired.PAUSE)
    await lab.until(job, State.HELD)
    assert not lab.world.live(job)
    await lab.want(job, Desired.RUN)
    assert (await lab.until(job, State.RUNNING)).attempt == 2


async def test_a_job_is_stopped_when_its_time_is_up(lab):
    await lab.lead()
    job = await lab.submit("0", max_run_seconds=1)
    ended = await lab.until(job, *FINAL)
    assert (ended.state, ended.reason) == (State.FAILED, "time_limit")


@pytest.mark.slow
@pytest.mark.parametrize("step", [3600, -7200])  # a limit of two seconds is waited for
async def test_a_job_has_its_whole_time_and_no_more_when_the_clock_is_set(lab, step):
    await lab.lead()
    job = await lab.submit("0", max_run_seconds=2)
    kept = await lab.submit("0", retain_seconds=2)
    await lab.until(job, State.RUNNING)
    await lab.until(kept, State.RUNNING)
    began = time.monotonic()
    lab.clock.offset += timedelta(seconds=step)
    lab.world.finish(kept)
    await lab.until(kept, State.RETAINED)
    lab.clock.offset += timedelta(seconds=step)
    lab.wakeups.wake("reconciler")
    await asyncio.sleep(1.0)
    assert (await lab.get(job)).state is State.RUNNING
    assert (await lab.get(kept)).state is State.RETAINED
    for one in (job, kept):
        await lab.until(one, *FINAL)
    assert 1.9 < time.monotonic() - began < 10
    assert (await lab.get(job)).reason == "time_limit"


@pytest.mark.slow
async def test_a_job_has_its_whole_time_when_another_leader_comes_after_the_clock_was_set(lab):
    await lab.lead()
    job = await lab.submit("0", max_run_seconds=3)  # is waited for
    await lab.until(job, State.RUNNING)
    began = time.monotonic()
    lab.clock.offset += timedelta(hours=5)
    await lab.kill()
    await lab.lead()
    await asyncio.sleep(1.5)
    assert (await lab.get(job)).state is State.RUNNING
    assert (await lab.until(job, *FINAL)).reason == "time_limit"
    assert 2.9 < time.monotonic() - began < 10


async def test_places_are_kept_for_a_look_when_that_was_asked_for(lab):
    await lab.lead()
    job = await lab.submit("5", retain_seconds=1)
    await lab.until(job, State.RUNNING)
    lab.world.step()
    kept = await lab.until(job, State.RETAINED)
    assert kept.exit_code == 5
    assert (await lab.until(job, *FINAL)).state is State.FAILED


async def test_a_silent_node_keeps_its_job_and_another_boot_gives_it_back_to_the_queue(lab):
    await lab.lead()
    job = await lab.submit("0")
    await lab.until(job, State.RUNNING)
    home = next(node.name for node in lab.world.nodes.values() if node.tasks)
    lab.world.cut(home)
    await asyncio.sleep(0.2)
    assert (await lab.get(job)).state is State.RUNNING, "silence is not an end"
    lab.world.mend(home)
    await asyncio.sleep(0.1)
    assert len(lab.world.ran[job]) == 1, "it was found again"
    lab.world.reboot(home)
    async with asyncio.timeout(10):
        while len(lab.world.ran[job]) < 2:
            await asyncio.sleep(0.01)


async def test_a_stray_is_ended_when_its_node_answers_again(lab):
    await lab.lead()
    await lab.until(await lab.submit("0"), State.RUNNING)
    node = lab.world.node("a")
    node.tasks["old.1", "worker-0"] = FakeTask("old.1", "worker-0", "0")
    for _ in range(3):  # it does not answer when it is told to end it, again and again
        lab.world.mend("a")
        lab.world.cut("a")
        await asyncio.sleep(0.05)
    assert ("old.1", "worker-0") in node.tasks
    lab.world.mend("a")
    async with asyncio.timeout(10):
        while ("old.1", "worker-0") in node.tasks:
            await asyncio.sleep(0.01)


async def test_running_times_stay_known_when_a_quota_is_changed(lab):
    past = [await lab.submit("0") for _ in range(2)]
    await lab.lead()
    reconciler = lab.reconciler
    for job in past:
        await lab.until(job, State.RUNNING)
    for _ in past:
        lab.world.step()
    ended = [await lab.until(job, *FINAL) for job in past]
    request = scheduler_snapshot.request_of(ended[0])
    expected = reconciler.memory._forecast.expect(request)
    assert expected is not None
    changed = Event(time=0.0, subject=Subject.WORKSPACE, subject_id="w", code="x", message="x", actor="me")
    before = reconciler.memory.scheduler
    await lab.db.write(lambda c: events.append(c, changed))
    lab.wakeups.wake("reconciler")
    async with asyncio.timeout(10):
        while reconciler.memory.scheduler is before:
            await asyncio.sleep(0.01)
    assert reconciler.memory._forecast.expect(request) == expected
    await lab.kill()
    await lab.lead()
    await lab.until(await lab.submit("0"), State.RUNNING)
    assert lab.reconciler.memory._forecast.expect(request) == expected, "the next leader has learnt it too"


async def test_a_preemptible_job_makes_room_for_a_higher_priority(lab):
    await lab.lead()
    low = [await lab.submit("0", replicas=4, preemptible=True, grace_seconds=90) for _ in range(2)]
    for one in low:
        await lab.until(one, State.RUNNING)

    def raise_priority(record: WorkloadRecord) -> WorkloadRecord:
        return replace(record, priority=9)

    spec = WorkloadSpec(
        name="vip", command="0", workspace="w", roles=(RoleSpec(replicas=4, cpu=1.0),), priority=9
    )
    vip = WorkloadRecord(
        id=new_id("dlc"), name="vip", kind="job", workspace_id="w", user_id="u", spec=spec, priority=9,
        submitted_at=0.0, queued_at=0.0,
    )  # fmt: skip
    await lab.db.write(lambda c: (workloads.insert(c, raise_priority(vip)), lab._say(c, vip, "submitted")))
    lab.wakeups.wake("reconciler")
    await lab.until(vip.id, State.RUNNING)
    states = {one: (await lab.get(one)).state for one in low}
    assert sorted(states.values()) == [State.RUNNING, State.WAITING]
    [graces] = lab.world.graces.values()
    assert all(60 < grace <= 90 for grace in graces), "it has its own grace to save, not everybody's"


@pytest.mark.slow
# Each turns through some hundred crashes and cuts: about 5 s.
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(2, 8))]
)
async def test_every_job_ends_once_when_leaders_die_anywhere(tmp_path, seed, monkeypatch):
    monkeypatch.setattr("trainyard.server.leader.engine_calls.PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("trainyard.server.leader.leader_state.REPEAT_SECONDS", 0.2)
    chance = random.Random(seed)
    lab = Lab(tmp_path, seed=seed)
    await lab.lead()
    jobs: dict[str, str] = {}
    stopped: set[str] = set()
    for _ in range(250):
        action = chance.random()
        if action < 0.3 and len(jobs) < 60:
            code = chance.choice(["0", "0", "0", "1", "137"])
            jobs[await lab.submit(code, replicas=chance.choice([1, 1, 2, 3]), max_retries=20)] = code
        elif action < 0.55:
            lab.world.step()
        elif action < 0.62 and jobs:
            one = chance.choice(list(jobs))
            await lab.want(one, Desired.CANCEL)
            stopped.add(one)
        elif action < 0.7 and jobs:
            await lab.want(
                chance.choice(list(jobs.keys() - stopped) or list(jobs)), chance.choice(list(Desired)[:2])
            )
        elif action < 0.8:
            await lab.kill()
            await lab.lead()
        elif action < 0.86:
            lab.world.cut(chance.choice("ab"))
        elif action < 0.95:
            lab.world.mend(chance.choice("ab"))
        elif action < 0.97:
            lab.world.reboot(chance.choice("ab"))
        else:
            lab.clock.offset += timedelta(seconds=chance.choice([-7200, -5, 60, 3600]))
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        await asyncio.sleep(chance.choice([0, 0.002, 0.01]))
    for name in "ab":
        lab.world.mend(name)
    for one in jobs:
        await lab.want(one, Desired.CANCEL if one in stopped else Desired.RUN)
    for _ in range(4000):
        left = [record for one in jobs if (record := await lab.get(one)).state not in FINAL]
        if not left:
            break
        assert lab.leading is not None
        assert not lab.leading.done(), lab.leading.exception()
        lab.world.step()
        await asyncio.sleep(0.005)
    assert not left, left[0]
    for one, code in jobs.items():
        record = await lab.get(one)
        if one in stopped and record.state is State.CANCELLED:
            continue
        wanted = {"0": State.SUCCEEDED, "1": State.FAILED, "137": State.FAILED}[code]
        assert record.state is wanted, (one, code, record)
        attempts = lab.world.completed.get(one, [])
        told = await lab.db.read(lambda c, one=one: events.page(c, subject=Subject.WORKLOAD, subject_id=one))
        story = "\n".join(f"{event.state} {event.code}: {event.message}" for event in told)
        assert len(attempts) == (code == "0"), f"{one} did not run to its end once: {attempts}\n{story}"
    assert all(not node.tasks for node in lab.world.nodes.values()) or await _forgotten(lab)
    await lab.kill()
    lab.db.close()


async def _forgotten(lab: Lab) -> bool:
    """Nodes are told to forget beside the turns: give them a moment, and one new leader."""
    await lab.kill()
    await lab.lead()
    for _ in range(300):
        if all(not node.tasks for node in lab.world.nodes.values()):
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_task_is_told_its_nodes_type_of_device_when_it_named_none(lab):
    def declare(c) -> None:
        for name in "ab":
            record = nodes.load(c, name)
            nodes.save(
                c, replace(record, devices={"Ascend910": 8}, simulated=True, cpu=4000, memory_mib=4096)
            )

    await lab.db.write(declare)
    await lab.lead()
    spec = WorkloadSpec(name="npu", command="0", workspace="w", roles=(RoleSpec(cpu=1.0, devices=2),))
    record = WorkloadRecord(
        id=new_id("dlc"), name="npu", kind="job", workspace_id="w", user_id="u", spec=spec, submitted_at=0.0, queued_at=0.0,
    )  # fmt: skip
    await lab.db.write(lambda c: (workloads.insert(c, record), lab._say(c, record, "submitted")))
    lab.wakeups.wake("reconciler")
    await lab.until(record.id, State.RUNNING)
    assert lab.world.launched[f"{record.id}.1"].tasks[0].device_type == "Ascend910"
