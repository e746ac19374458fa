"""The leader's one loop: gather what happened, decide, write it in one transaction, then act on nodes.

One turn at a time, so that no two parts of the platform change a workload at once. What becomes of a workload is
workflow.py; who may start is scheduling; what nodes do is the engine's. Acting happens beside the turns and comes back as
input to one of the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from trainyard.engines.api import (
    Engine,
    NodeLost,
    NodeSeen,
    Observation,
    TaskStarted,
    TaskUnknown,
)
from trainyard.lib.errors import Error
from trainyard.scheduling import Policy, Preempt, Request, Scheduler
from trainyard.scheduling.forecast import Forecast
from trainyard.server import avoiding, hanging, needs, snapshot, workflow
from trainyard.server.hanging import Hung
from trainyard.server.loops.acting import Acting, Ended, NotLaunched
from trainyard.server.loops.growing import Growing
from trainyard.server.loops.leader import Term
from trainyard.server.loops.roster import Roster
from trainyard.server.services.hints import Hints
from trainyard.server.store import dependencies, events, pastuse, workloads
from trainyard.server.store.workloads import WorkloadRecord
from trainyard.server.surroundings import Surroundings, Surveyor
from trainyard.server.task_views import ViewFacts
from trainyard.server.workflow import Draft, Job, OfTask
from trainyard.spec.events import Subject
from trainyard.spec.workload import FINAL, HOLDING, State

logger = logging.getLogger(__name__)

# Without a hint: how long a wish written by another process may go unseen.
LOOK_SECONDS = 1.0
TICK_SECONDS = 0.5
# Ends that were not confirmed are asked for again so often.
REPEAT_SECONDS = 15.0
KEEP_USE_SECONDS = 60.0
# What ended lately, from which the running times of what waits are forecast.
PAST_STATES = frozenset({State.SUCCEEDED, State.FAILED})
PAST_RUNS = 2000
BY_ITSELF = frozenset({"succeeded", "failed"})

Input = Observation | NotLaunched | Ended | Hung


@dataclass(frozen=True, slots=True)
class Feed:
    """What people wrote since the last look."""

    records: Sequence[WorkloadRecord]
    nodes_changed: bool
    quotas_changed: bool
    last: int
    needs: Sequence[dependencies.EndedNeed] = ()  # whose jobs have ended
    needs_left: Mapping[str, int] = field(default_factory=dict)  # by workload, those and others
    are_needs: bool = False  # any


class Conductor:
    """One term of leading."""

    def __init__(
        self,
        term: Term,
        engine: Engine,
        hints: Hints,
        *,
        policy: Policy,
        cpu_overcommit: float = 1.0,
        secret: bytes = b"",
        views: Callable[[Connection], ViewFacts] | None = None,
    ) -> None:
        self.term = term
        self.engine = engine
        self.hints = hints
        self.clock = term.clock
        # From the secret the keys of jobs are made.
        self._surveyor = Surveyor(term.db, self.clock.monotonic, secret=secret, views=views)
        self.roster = Roster(term, engine, cpu_overcommit=cpu_overcommit)
        self.waiting: dict[str, WorkloadRecord] = {}
        self.held: dict[str, Job] = {}
        self.growing = Growing(hints)
        self.scheduler: Scheduler
        self._policy = policy
        self._forecast = Forecast()
        self._inputs: deque[Input] = deque()
        self._acting = Acting(engine, self.arrived, self._surround)
        self._wake = asyncio.Event()
        self._seq = 0
        self._is_dirty = True  # something changed that the scheduler should look at
        self._are_needs = True  # some workload may wait for others
        self._repeat_at = 0.0
        self._keep_use_at = 0.0

    async def run(self) -> None:
        """Lead until cancelled. An error of one turn is logged; the memory is then read anew from the store."""
        try:
            await self._learn()
            await self._load()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._observe())
                group.create_task(self._tick())
                group.create_task(self._follow_hints())
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

    async def _follow_hints(self) -> None:
        while True:
            await self.hints.wait("conductor", timeout=LOOK_SECONDS)
            self._wake.set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._now()
            if self._is_due(now):
                self._wake.set()

    def _is_due(self, now: float) -> bool:
        if self.clock.monotonic() >= min(self._repeat_at, self._keep_use_at) or self.roster.is_due(now):
            return True
        return any(self._is_up(job, now) for job in self.held.values())

    def _is_up(self, job: Job, now: float) -> bool:
        """Whether the time of a workload is up."""
        tick = self.clock.monotonic()
        due = workflow.next_due(job, now, tick)
        return due is not None and due <= tick

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

        def read(c: Connection) -> tuple[int, list[WorkloadRecord], dict[str, list[workloads.TaskRecord]]]:
            last = events.last_seq(c)
            live = workloads.in_states(c, frozenset({State.HELD, State.WAITING}) | HOLDING)
            holders = [(one.id, one.attempt) for one in live if one.state in HOLDING]
            return last, live, workloads.tasks_of(c, holders)

        self._seq, live, tasks = await self.term.db.read(read)
        self.held = {
            one.id: self._remembered(Job(one, {task.name: task for task in tasks.get(one.id, ())}))
            for one in live
            if one.state in HOLDING
        }
        self.waiting = {one.id: one for one in live if one.state == State.WAITING}
        given: dict[str, list[tuple[str, str]]] = {}
        for job in self.held.values():
            if job.record.state in {State.ADMITTED, State.STARTING}:
                continue  # it may not have got there yet, and is launched again below
            for task in job.tasks.values():
                if not task.is_cleared:
                    given.setdefault(task.node, []).append((job.attempt_id, task.name))
        await self.roster.load(given)
        await self._rebuild()
        draft = Draft(are_repeated=True)
        now = self._now()
        for record in [one for one in live if one.state in {State.HELD, State.WAITING}]:
            self._intake(draft, record, now)
        for job in list(self.held.values()):
            if job.record.state in {State.ADMITTED, State.STARTING}:
                draft.launches.append(job.record.id)  # launching twice is launching once
            elif job.record.state == State.FINISHING:
                draft.ends[job.record.id] = None
            workflow.follow_wish_of_holder(draft, job, now)
            workflow.settle(draft, job, now)
            self._after(draft, job, now)
        await self._write(draft, [])

    def _remembered(self, job: Job) -> Job:
        """With what the store cannot know of it: times by our own clock, for as long as this term lasts."""
        known = self.held.get(job.record.id)
        if known is None or known.attempt_id != job.attempt_id:
            return job
        return replace(job, began=known.began, kept_until=known.kept_until, leaves_at=known.leaves_at)

    async def _rebuild(self) -> None:
        """Make the scheduler's memory anew from ours."""
        now = self._now()
        quotas, use, elastic = await self.term.db.read(
            lambda c: (snapshot.load_quotas(c), pastuse.load(c, now), self.growing.load(c, now))
        )
        view = snapshot.snapshot_of(
            nodes=self.roster.records(),
            waiting=self.waiting.values(),
            running=[(job.record, list(job.tasks.values())) for job in self.held.values()],
            quotas=quotas,
            now=now,
            policy=self._policy,
            past_use=use,
            elastic=elastic,
        )
        waiting = tuple(self._with_forecast(request) for request in view.waiting)
        self.scheduler = Scheduler(replace(view, waiting=waiting), now)
        self._is_dirty = True

    async def _learn(self) -> None:
        """Learn from what ended before this term; what ends during it is noted as it ends."""
        past = await self.term.db.read(lambda c: workloads.list_page(c, states=PAST_STATES, limit=PAST_RUNS))
        for record in reversed(past):
            self._note_run(record)

    def _with_forecast(self, request: Request) -> Request:
        """Say how long it will probably run: limits are mostly far too long."""
        return replace(request, expected=self._forecast.expect(request))

    def _note_run(self, record: WorkloadRecord) -> None:
        """Learn from a workload that has ended by itself."""
        if record.reason in BY_ITSELF and record.started_at is not None and record.stopped_at is not None:
            self._forecast.note(snapshot.request_of(record), max(0.0, record.stopped_at - record.started_at))

    async def _read_feed(self) -> Feed:
        def read(c: Connection) -> Feed:
            changed, last = events.wishes_since(c, self._seq)
            ids = [one for subject, one in changed if subject == Subject.WORKLOAD]
            subjects = {subject for subject, _ in changed}
            found = workloads.load_many(c, ids) if ids else {}
            are_needs = self._are_needs or any(one.spec.after for one in found.values())
            ended = dependencies.ended_needs(c) if are_needs else []
            waiting = {one.need.workload_id for one in ended}
            return Feed(
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
        draft = Draft()
        try:
            has_news, self.growing.has_news = self.growing.has_news, False
            if feed.nodes_changed or has_news:
                await self.roster.reload()
            if feed.quotas_changed or (has_news and await self.growing.take_news(self.term.db, now)):
                await self._rebuild()
            for name in self.growing.take_changed():
                self._node_changed(name, now)
            self._are_needs = feed.are_needs
            for record in self._follow_needs(draft, feed, now):
                self._intake(draft, record, now)
            for found in inputs:
                self._take(draft, found, now)
            self._pass_time(draft, now)
            self._look_after_nodes(draft, now)
            self._decide(draft, now)
            await self._write(draft, inputs)
        except BaseException:
            self._inputs.extendleft(reversed(inputs))  # nothing was written: all of it is still to be done
            raise
        self._seq = max(self._seq, feed.last)

    def _follow_needs(self, draft: Draft, feed: Feed, now: float) -> Iterable[WorkloadRecord]:
        """What was read, after what the ends of other workloads mean for it."""
        ended: dict[str, list[dependencies.EndedNeed]] = {}
        for one in feed.needs:
            ended.setdefault(one.need.workload_id, []).append(one)
        for record in feed.records:
            own = ended.get(record.id, ())
            left = feed.needs_left.get(record.id, 0) - len(own)
            yield needs.follow_needs(draft, record, own, now, left=left) if own else record

    def _intake(self, draft: Draft, record: WorkloadRecord, now: float) -> None:
        """Take over what people want of a workload."""
        job = self.held.get(record.id)
        if job is not None:
            if record.version > job.record.version and record.state in HOLDING:
                job.record = record
                workflow.follow_wish_of_holder(draft, job, now)
                self._after(draft, job, now)
            return
        known = self.waiting.get(record.id)
        if known is not None and known.version > record.version:
            return
        if record.state not in {State.HELD, State.WAITING}:
            return
        self._queue(draft, workflow.follow_wish(draft, record, now), now)

    def _queue(self, draft: Draft, record: WorkloadRecord, now: float) -> None:
        """Let the scheduler know of a workload that holds nothing: in the queue, or not any more."""
        if record.avoid and record.state == State.WAITING:
            record = avoiding.relieve(draft, record, self.roster.records(), now)
        known = self.waiting.pop(record.id, None)
        if record.state != State.WAITING:
            if known is not None:
                self.scheduler.withdraw(record.id)
                self._is_dirty = True
            return
        self.waiting[record.id] = record
        request = snapshot.request_of(record)
        if known is not None:
            if snapshot.request_of(known) == request:
                return
            self.scheduler.withdraw(record.id)
        self._is_dirty = True
        try:
            self.scheduler.submit(self._with_forecast(request), now=now)
        except Error as error:  # it can never be placed: say so, instead of trying for ever
            del self.waiting[record.id]
            draft.advance(record, State.FAILED, now, reason="refused", message=error.message)

    def _take(self, draft: Draft, found: Input, now: float) -> None:
        match found:
            case NodeSeen():
                self.roster.see(found, now)
                self._node_changed(found.node, now)
                self._repeat_at = 0.0  # ends that it missed
            case NodeLost():
                if self.roster.lose(found, now):
                    for job in self._on(found.node):
                        workflow.lose_node(draft, job, found.node, now)
                    self._node_changed(found.node, now)
            case NotLaunched():
                self._not_launched(draft, found, now)
            case Hung():
                if found.workload_id in self.held:
                    hanging.end_hung(draft, self.held[found.workload_id], found, now)
                    self._after(draft, self.held[found.workload_id], now)
            case Ended():
                self._ended(draft, found, now)
            case _:
                self._watch(draft, found, now)

    def _watch(self, draft: Draft, seen: OfTask, now: float) -> None:
        workload, attempt = workflow.split_attempt(seen.attempt_id)
        job = self.held.get(workload)
        if job is None or job.record.attempt != attempt:
            # Something of an attempt that is over. NB: its end may be of this very turn, and not written yet: were the
            # node told to forget it now and the leader to die, the next one would take it for lost and start it again.
            if not isinstance(seen, TaskUnknown):
                draft.strays[seen.attempt_id] = None
            return
        workflow.watch(draft, job, seen, now)
        if isinstance(seen, TaskStarted):
            began = self.clock.monotonic() - seen.ran_seconds
            job.began = began if job.began is None else min(began, job.began)
            self.roster.praise(job.tasks[seen.task].node)
        self._after(draft, job, now)

    def _not_launched(self, draft: Draft, found: NotLaunched, now: float) -> None:
        job = self.held.get(found.workload_id)
        if job is None or job.attempt_id != found.attempt_id or job.record.state != State.STARTING:
            return
        unsent = "" if found.was_sent else found.node
        blamed = found.node if found.is_nodes_fault else ""
        workflow.could_not_start(draft, job, now, message=found.message, unsent=unsent, blamed=blamed)
        if found.node and found.is_nodes_fault:
            self.roster.blame(found.node, found.message, now)
            self._node_changed(found.node, now)
        self._after(draft, job, now)

    def _ended(self, draft: Draft, found: Ended, now: float) -> None:
        """The nodes have taken an end; what they do not have never ran."""
        job = self.held.get(found.workload_id)
        if job is None or job.attempt_id != found.attempt_id:
            return
        for task in list(job.tasks.values()):
            has = found.tasks.get(task.node)
            if has is not None and task.name not in has and not task.is_cleared:
                job.tasks[task.name] = draft.change_task(replace(task, is_cleared=True))
        workflow.settle(draft, job, now)
        self._after(draft, job, now)

    def _after(self, draft: Draft, job: Job, now: float) -> None:
        """Where a workload has let go of its places, tell the scheduler."""
        record = job.record
        if record.state in HOLDING or self.held.get(record.id) is not job:
            return
        del self.held[record.id]
        if record.id in self.scheduler.running:
            self.scheduler.end(record.id, now)
        self._is_dirty = True
        self._note_run(record)
        if record.state in {State.WAITING, State.HELD}:
            self._queue(draft, workflow.follow_wish(draft, record, now), now)

    def _pass_time(self, draft: Draft, now: float) -> None:
        for job in list(self.held.values()):
            if self._is_up(job, now):
                workflow.pass_time(draft, job, now)
                self._after(draft, job, now)
        # NB: by the clock that never steps: set back an hour, the other one would have us wait for that hour.
        if self.clock.monotonic() >= self._repeat_at:
            self._repeat_at = self.clock.monotonic() + REPEAT_SECONDS
            for job in self.held.values():
                if job.record.state == State.FINISHING:
                    draft.ends[job.record.id] = None

    # -- nodes

    def _on(self, node: str) -> list[Job]:
        return [job for job in self.held.values() if node in job.nodes]

    def _look_after_nodes(self, draft: Draft, now: float) -> None:
        for node, why in self.roster.buried():
            for job in self._on(node):
                workflow.bury(draft, job, node, now, why)
                self._after(draft, job, now)
        for node in self.roster.draining():
            for job in self._on(node):
                if job.record.state in {State.ADMITTED, State.STARTING, State.RUNNING}:
                    workflow.finish(
                        draft,
                        job,
                        now,
                        State.WAITING,
                        reason="drained",
                        message=f"Node {node} is being drained; it goes back to the queue.",
                    )
                    self._after(draft, job, now)
        changed = self.roster.take_changed(now, is_busy=lambda name: bool(self._on(name)))
        for node in changed:
            self._node_changed(node, now)
        for record in [one for one in self.waiting.values() if one.avoid] if changed else ():
            self._queue(draft, record, now)  # what it avoids may be all that is left

    def _node_changed(self, name: str, now: float) -> None:
        node = self.growing.node(self.roster.find(name), name, now)
        known = name in self.scheduler.cluster.index
        self._is_dirty = True
        if node is None:
            if known:
                self.scheduler.remove_node(name)
            return
        if known:
            self.scheduler.change_node(node)
        else:
            self.scheduler.add_node(node)

    # -- deciding

    def _decide(self, draft: Draft, now: float) -> None:
        if not self._is_dirty:
            return
        self._is_dirty = False
        cycle = self.scheduler.cycle(now)
        for admitted in cycle.admits:
            record = self.waiting.pop(admitted.id)
            self.held[record.id] = workflow.admit(draft, record, admitted, now)
        for told in cycle.preempts:
            self._preempt(draft, told, now)
        self.growing.order(cycle, self.scheduler, now)

    def _preempt(self, draft: Draft, told: Preempt, now: float) -> None:
        job = self.held.get(told.id)
        if job is None or job.record.state == State.FINISHING:
            return
        # NB: whose job that is, is not for everybody who reads this one's events.
        seconds = max(0, round(told.leave_by - now))
        message = f"It has {seconds} s to make room for a job that goes before it; then it waits again, with its age."
        workflow.preempt(draft, job, now, for_id=told.for_id, leave_by=told.leave_by, message=message)
        self._after(draft, job, now)

    # -- writing and acting

    async def _write(self, draft: Draft, inputs: Iterable[Input]) -> None:
        changed = bool(draft.records or draft.tasks or draft.new_tasks or draft.events or draft.met)
        node_writes = self.roster.take_writes()
        wanted = self.growing.take_wanted()
        use = self._use_to_keep()
        if changed or node_writes or wanted or use:

            def work(c: Connection) -> list[str]:
                stale = workloads.save_many(c, list(draft.records.values()))
                draft.without(stale)
                workloads.insert_tasks(c, draft.new_tasks)
                workloads.save_tasks(c, list(draft.tasks.values()))
                self.roster.write(c, node_writes)
                self.growing.write(c, wanted, self._now())
                events.append_many(c, draft.events)
                dependencies.delete_needs(c, draft.met)
                if use:
                    pastuse.save(c, use, self._now())
                return stale

            stale = await self.term.write(work)
            for record in draft.records.values():
                self._saved(record)
            if self._are_needs and any(record.state in FINAL for record in draft.records.values()):
                self._wake.set()  # somebody may have waited for it
            self.growing.tell(wanted)
            if draft.events:
                self.hints.wake("events")
            if stale:
                logger.info("written by somebody else meanwhile: %s", ", ".join(stale))
                # NB: in front of what has come meanwhile. A task's end must not be heard of after its clearing.
                again = [found for found in inputs if _workload_of(found) in stale]
                self._inputs.extendleft(reversed(again))
                await self._load()
                self._wake.set()
        self._act(draft)

    def _saved(self, record: WorkloadRecord) -> None:
        """The row has the next version now."""
        job = self.held.get(record.id)
        if job is not None:
            job.record = replace(job.record, version=record.version + 1)
        elif record.id in self.waiting:
            self.waiting[record.id] = replace(self.waiting[record.id], version=record.version + 1)

    async def _surround(self, jobs: Sequence[Job]) -> Surroundings:
        """What the launches of these have to know."""
        return await self._surveyor.survey(jobs, self.roster.records())

    def _act(self, draft: Draft) -> None:
        now = self._now()
        launches = [self.held[one] for one in draft.launches if one in self.held]
        starting = [job for job in launches if job.record.state == State.STARTING]
        self._acting.launch(starting, were_sent=draft.are_repeated)
        ending = [self.held[one] for one in draft.ends if one in self.held]
        tick = self.clock.monotonic()
        self._acting.end([(job, workflow.grace_left(job, now, tick)) for job in ending])
        self._acting.forget(draft.forgets)
        for attempt in draft.strays:
            job = self.held.get(workflow.split_attempt(attempt)[0])
            if job is None or job.attempt_id != attempt:  # else it came back with what was read anew
                self._acting.clear_stray(attempt, self.roster.names())

    def _use_to_keep(self) -> dict[tuple[str, str], float]:
        now = self._now()
        if self.clock.monotonic() < self._keep_use_at:
            return {}
        self._keep_use_at = self.clock.monotonic() + KEEP_USE_SECONDS
        return snapshot.past_use_of(self.scheduler, now)


def _workload_of(found: Input) -> str:
    if isinstance(found, NodeSeen | NodeLost):
        return ""
    return workflow.split_attempt(found.attempt_id)[0]


__all__ = ["Conductor"]
