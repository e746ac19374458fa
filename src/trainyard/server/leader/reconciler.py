"""The leader's one loop: gather what happened, decide, write it in one transaction, then act on nodes.

One turn at a time, so that no two parts of the platform change a workload at once. Here is what reads, writes and waits; what
is remembered, and how what happens changes it, is memory.py. What nodes do is the engine's. Acting happens beside the turns
and comes back as input to one of the next.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from trainyard.engines.api import Engine, NodeDiscovered, NodeLost, NodeSeen, NodesListed
from trainyard.lib.clock import Steps
from trainyard.lib.errors import Error
from trainyard.scheduling import Policy, Scheduler
from trainyard.server.cluster import scheduler_snapshot
from trainyard.server.cluster.snapshot_loader import load_quotas
from trainyard.server.jobs import dependencies as needs
from trainyard.server.jobs import lifecycle
from trainyard.server.jobs.turn_changes import Job, TurnChanges, split_attempt
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.launch.sandbox_spec import SandboxFacts
from trainyard.server.leader.engine_calls import EngineCalls
from trainyard.server.leader.launch_facts_loader import LaunchFactsLoader
from trainyard.server.leader.leader_lease import LeaderTerm
from trainyard.server.leader.leader_state import Input, LeaderState
from trainyard.server.leader.node_cache import NodeCache
from trainyard.server.leader.pool_demand import PoolDemand
from trainyard.server.records.dependencies import EndedNeed
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store import events
from trainyard.server.store.jobs import dependencies, workloads
from trainyard.server.store.jobs.workload_steps import save_many
from trainyard.server.store.usage import past_use
from trainyard.server.wakeups import Wakeups
from trainyard.spec.events import Subject
from trainyard.spec.workload import FINAL, HOLDING, State

logger = logging.getLogger(__name__)

# Without a hint: how long a wish written by another process may go unseen.
LOOK_SECONDS = 1.0
TICK_SECONDS = 0.5
KEEP_USE_SECONDS = 60.0
# What ended lately, from which the running times of what waits are forecast.
PAST_STATES = frozenset({State.SUCCEEDED, State.FAILED})
PAST_RUNS = 2000


@dataclass(frozen=True, slots=True)
class ChangeFeed:
    """What people wrote since the last look."""

    records: Sequence[WorkloadRecord]
    nodes_changed: bool
    quotas_changed: bool
    last: int
    needs: Sequence[EndedNeed] = ()  # whose jobs have ended
    needs_left: Mapping[str, int] = field(default_factory=dict)  # by workload, those and others
    are_needs: bool = False  # any


class Reconciler:
    """One term of leading."""

    def __init__(
        self,
        term: LeaderTerm,
        engine: Engine,
        wakeups: Wakeups,
        *,
        policy: Policy,
        cpu_overcommit: float = 1.0,
        secret: bytes = b"",
        seal: Seal | None = None,
        views: Callable[[Connection], SandboxFacts] | None = None,
    ) -> None:
        self.term = term
        self.engine = engine
        self.wakeups = wakeups
        self.clock = term.clock
        # From the secret the keys of jobs are made.
        self._surveyor = LaunchFactsLoader(
            term.db,
            self.clock.monotonic,
            lambda: self.clock.now().timestamp(),
            secret=secret,
            seal=seal,
            views=views,
        )
        self.node_cache = NodeCache(term, engine, cpu_overcommit=cpu_overcommit)
        self.pool_demand = PoolDemand(wakeups)
        self.memory = LeaderState(self.clock, self.node_cache, self.pool_demand)
        self._policy = policy
        self._inputs: deque[Input] = deque()
        self._acting = EngineCalls(engine, self.arrived, self._surround)
        self._wake = asyncio.Event()
        self._seq = 0
        self._are_needs = True  # some workload may wait for others
        self._keep_use_at = 0.0
        self._steps = Steps(self.clock)

    async def run(self) -> None:
        """Lead until cancelled. An error of one turn is logged; the memory is then read anew from the store."""
        try:
            await self._learn()
            await self._load()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._observe())
                group.create_task(self._tick())
                group.create_task(self._follow_wakeups())
                group.create_task(self._turns())
        finally:
            self._acting.cancel()

    # -- waking

    def arrived(self, found: Input) -> None:
        """Take in what came of acting, or what somebody noticed."""
        self._inputs.append(found)
        self._wake.set()

    async def _observe(self) -> None:
        async for batch in self.engine.observe():
            self._inputs.extend(batch)
            self._wake.set()

    async def _follow_wakeups(self) -> None:
        while True:
            await self.wakeups.wait("reconciler", timeout=LOOK_SECONDS)
            self._wake.set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self.clock.monotonic() >= self._keep_use_at or self.memory.is_due(self._now()):
                self._wake.set()

    async def _turns(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._turn()
            except Error as error:
                logger.warning("a turn was not written and is done again: %s", error)
                await asyncio.sleep(TICK_SECONDS)
                await self._reload_after_failure()

    async def _reload_after_failure(self) -> None:
        while True:
            try:
                await self._load()
            except Error as error:
                logger.warning("the database does not answer: %s", error)
                await asyncio.sleep(TICK_SECONDS)
            else:
                self._wake.set()
                return

    def _now(self) -> float:
        return self.clock.now().timestamp()

    # -- memory

    async def _load(self) -> None:
        """Read everything that is not final from the store, and go on from there."""

        def read(c: Connection) -> tuple[int, list[WorkloadRecord], dict[str, list[TaskRecord]]]:
            last = events.last_seq(c)
            live = workloads.in_states(c, frozenset({State.HELD, State.WAITING}) | HOLDING)
            holders = [(one.id, one.attempt) for one in live if one.state in HOLDING]
            return last, live, workloads.tasks_of(c, holders)

        self._seq, live, tasks = await self.term.db.read(read)
        self.memory.held = {
            one.id: self.memory.remembered(Job(one, {task.name: task for task in tasks.get(one.id, ())}))
            for one in live
            if one.state in HOLDING
        }
        self.memory.waiting = {one.id: one for one in live if one.state == State.WAITING}
        given: dict[str, list[tuple[str, str]]] = {}
        for job in self.memory.held.values():
            if job.record.state in {State.ADMITTED, State.STARTING}:
                continue  # it may not have got there yet, and is launched again below
            for task in job.tasks.values():
                if not task.is_cleared:
                    given.setdefault(task.node, []).append((job.attempt_id, task.name))
        await self.node_cache.load(given)
        await self._rebuild()
        turn_changes = TurnChanges(are_repeated=True)
        now = self._now()
        for record in [one for one in live if one.state in {State.HELD, State.WAITING}]:
            self.memory.intake(turn_changes, record, now)
        for job in list(self.memory.held.values()):
            if job.record.state in {State.ADMITTED, State.STARTING}:
                turn_changes.launches.append(job.record.id)  # launching twice is launching once
            elif job.record.state == State.FINISHING:
                turn_changes.ends[job.record.id] = None
            lifecycle.follow_wish_of_holder(turn_changes, job, now)
            lifecycle.settle(turn_changes, job, now)
            self.memory.after(turn_changes, job, now)
        await self._write(turn_changes, [])

    async def _rebuild(self, *, was_clock_set: bool = False) -> None:
        """Make the scheduler's memory anew from ours."""
        now = self._now()
        half_life = math.inf if was_clock_set else past_use.HALF_LIFE  # no time has passed
        quotas, use, elastic = await self.term.db.read(
            lambda c: (
                load_quotas(c),
                past_use.load(c, now, half_life=half_life),
                self.pool_demand.load(c, now),
            )
        )
        view = scheduler_snapshot.snapshot_of(
            nodes=self.node_cache.records(),
            waiting=self.memory.waiting.values(),
            running=[(job.record, list(job.tasks.values())) for job in self.memory.held.values()],
            quotas=quotas,
            now=now,
            policy=self._policy,
            past_use=use,
            elastic=elastic,
        )
        waiting = tuple(self.memory.with_forecast(request) for request in view.waiting)
        self.memory.scheduler = Scheduler(replace(view, waiting=waiting), now)
        self.memory.is_dirty = True

    async def _learn(self) -> None:
        """Learn from what ended before this term; what ends during it is noted as it ends."""
        past = await self.term.db.read(lambda c: workloads.list_page(c, states=PAST_STATES, limit=PAST_RUNS))
        for record in reversed(past):
            self.memory.note_run(record)

    async def _read_feed(self) -> ChangeFeed:
        def read(c: Connection) -> ChangeFeed:
            changed, last = events.wishes_since(c, self._seq)
            ids = [one for subject, one in changed if subject == Subject.WORKLOAD]
            subjects = {subject for subject, _ in changed}
            found = workloads.load_many(c, ids) if ids else {}
            are_needs = self._are_needs or any(one.spec.after for one in found.values())
            ended = dependencies.ended_needs(c) if are_needs else []
            waiting = {one.need.workload_id for one in ended}
            return ChangeFeed(
                list((found | workloads.load_many(c, waiting - found.keys())).values()),
                Subject.NODE in subjects,
                bool(subjects & {Subject.WORKSPACE, Subject.POOL}),
                last,
                ended,
                dependencies.counts(c, waiting),
                are_needs and dependencies.are_any(c),
            )

        return await self.term.db.read(read)

    # -- a turn

    async def _turn(self) -> None:
        feed = await self._read_feed()
        inputs = [self._inputs.popleft() for _ in range(len(self._inputs))]
        now = self._now()
        turn_changes = TurnChanges()
        try:
            has_news, self.pool_demand.has_news = self.pool_demand.has_news, False
            if feed.nodes_changed or has_news:
                await self.node_cache.reload()
            # NB: what the scheduler has planned, noted and counted stands at times of a clock that has gone.
            if self._steps.was_set():
                logger.warning("the clock was set: the scheduler plans anew")
                await self._rebuild(was_clock_set=True)
            elif feed.quotas_changed or (has_news and await self.pool_demand.take_news(self.term.db, now)):
                await self._rebuild()
            for name in self.pool_demand.take_changed():
                self.memory.node_changed(name, now)
            self._are_needs = feed.are_needs
            for record in self._follow_needs(turn_changes, feed, now):
                self.memory.intake(turn_changes, record, now)
            for found in inputs:
                self.memory.take(turn_changes, found, now)
            self.memory.pass_time(turn_changes, now)
            self.memory.look_after_nodes(turn_changes, now)
            self.memory.decide(turn_changes, now)
            await self._write(turn_changes, inputs)
        except BaseException:
            self._inputs.extendleft(reversed(inputs))  # nothing was written: all of it is still to be done
            raise
        self._seq = max(self._seq, feed.last)

    def _follow_needs(
        self, turn_changes: TurnChanges, feed: ChangeFeed, now: float
    ) -> Iterable[WorkloadRecord]:
        """What was read, after what the ends of other workloads mean for it."""
        ended: dict[str, list[EndedNeed]] = {}
        for one in feed.needs:
            ended.setdefault(one.need.workload_id, []).append(one)
        for record in feed.records:
            own = ended.get(record.id, ())
            left = feed.needs_left.get(record.id, 0) - len(own)
            yield needs.follow_needs(turn_changes, record, own, now, left=left) if own else record

    # -- writing and acting

    async def _write(self, turn_changes: TurnChanges, inputs: Iterable[Input]) -> None:
        changed = bool(
            turn_changes.records
            or turn_changes.tasks
            or turn_changes.new_tasks
            or turn_changes.events
            or turn_changes.met
        )
        node_writes = self.node_cache.take_writes()
        wanted = self.pool_demand.take_wanted()
        use = self._use_to_keep()
        if changed or node_writes or wanted or use:

            def work(c: Connection) -> list[str]:
                stale = save_many(c, list(turn_changes.records.values()))
                turn_changes.without(stale)
                workloads.insert_tasks(c, turn_changes.new_tasks)
                workloads.save_tasks(c, list(turn_changes.tasks.values()))
                self.node_cache.write(c, node_writes)
                self.pool_demand.write(c, wanted, self._now())
                events.append_many(c, turn_changes.events)
                dependencies.delete_needs(c, turn_changes.met)
                if use:
                    past_use.save(c, use, self._now())
                return stale

            stale = await self.term.write(work)
            if node_writes is not None:
                await self.node_cache.release()
            for record in turn_changes.records.values():
                self.memory.saved(record)
            if self._are_needs and any(record.state in FINAL for record in turn_changes.records.values()):
                self._wake.set()  # somebody may have waited for it
            self.pool_demand.tell(wanted)
            if turn_changes.events:
                self.wakeups.wake("events")
            if stale:
                logger.info("written by somebody else meanwhile: %s", ", ".join(stale))
                # NB: in front of what has come meanwhile. A task's end must not be heard of after its clearing.
                again = [found for found in inputs if _workload_of(found) in stale]
                self._inputs.extendleft(reversed(again))
                await self._load()
                self._wake.set()
        self._act(turn_changes)

    async def _surround(self, jobs: Sequence[Job]) -> LaunchFacts:
        """What the launches of these have to know."""
        return await self._surveyor.survey(jobs, self.node_cache.records())

    def _act(self, turn_changes: TurnChanges) -> None:
        now = self._now()
        launches = [self.memory.held[one] for one in turn_changes.launches if one in self.memory.held]
        starting = [job for job in launches if job.record.state == State.STARTING]
        self._acting.launch(starting, were_sent=turn_changes.are_repeated)
        ending = [self.memory.held[one] for one in turn_changes.ends if one in self.memory.held]
        tick = self.clock.monotonic()
        self._acting.end([(job, lifecycle.grace_left(job, now, tick)) for job in ending])
        self._acting.bind_peers(
            [self.memory.held[one] for one in turn_changes.binds if one in self.memory.held]
        )
        self._acting.forget(turn_changes.forgets)
        for attempt in turn_changes.strays:
            job = self.memory.held.get(split_attempt(attempt)[0])
            if job is None or job.attempt_id != attempt:  # else it came back with what was read anew
                self._acting.clear_stray(attempt, self.node_cache.names())

    def _use_to_keep(self) -> dict[tuple[str, str], float]:
        now = self._now()
        if self.clock.monotonic() < self._keep_use_at:
            return {}
        self._keep_use_at = self.clock.monotonic() + KEEP_USE_SECONDS
        return scheduler_snapshot.past_use_of(self.memory.scheduler, now)


def _workload_of(found: Input) -> str:
    if isinstance(found, NodeSeen | NodeLost | NodeDiscovered | NodesListed):
        return ""
    return split_attempt(found.attempt_id)[0]


__all__ = ["Reconciler"]
