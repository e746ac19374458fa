"""What the leader remembers between turns, and how everything that happens changes it: the deciding half of the conductor.

Nothing here reads or writes the store, or waits: changes are noted in the turn's draft. Turns, reading, writing and acting are
reconciler.py; what becomes of one workload is lifecycle.py and task_events.py; who may start is scheduling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainyard.engines.api import (
    NodeDiscovered,
    NodeLost,
    NodeSeen,
    NodesListed,
    Observation,
    TaskStarted,
    TaskUnknown,
)
from trainyard.lib.clock import Clock
from trainyard.lib.errors import Error
from trainyard.scheduling import Preempt, Request, Scheduler, Snapshot
from trainyard.scheduling.forecast import Forecast
from trainyard.server.cluster import scheduler_snapshot
from trainyard.server.jobs import elastic_jobs, hang_policy, lifecycle, node_blacklist, task_events
from trainyard.server.jobs.hang_policy import HungAttempt
from trainyard.server.jobs.task_events import OfTask
from trainyard.server.jobs.turn_changes import Job, TurnChanges, split_attempt
from trainyard.server.launch import rank_order
from trainyard.server.leader.engine_calls import Ended, NotLaunched
from trainyard.server.leader.node_cache import NodeCache
from trainyard.server.leader.pool_demand import PoolDemand
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import HOLDING, State

# Ends that were not confirmed are asked for again so often.
REPEAT_SECONDS = 15.0
BY_ITSELF = frozenset({"succeeded", "failed"})

Input = Observation | NotLaunched | Ended | HungAttempt


class LeaderState:
    """A cache of what waits and what holds places, and the scheduler that knows the same. The store is right."""

    def __init__(self, clock: Clock, node_cache: NodeCache, pool_demand: PoolDemand) -> None:
        self.clock = clock
        self.node_cache = node_cache
        self.pool_demand = pool_demand
        self.waiting: dict[str, WorkloadRecord] = {}
        self.held: dict[str, Job] = {}
        self.scheduler = Scheduler(Snapshot(nodes=()))  # until everything is read
        self.is_dirty = True  # something changed that the scheduler should look at
        self._forecast = Forecast()
        self._repeat_at = 0.0

    # -- remembering

    def remembered(self, job: Job) -> Job:
        """With what the store cannot know of it: times by our own clock, for as long as this term lasts."""
        known = self.held.get(job.record.id)
        if known is None or known.attempt_id != job.attempt_id:
            return job
        return replace(job, began=known.began, kept_until=known.kept_until, leaves_at=known.leaves_at)

    def saved(self, record: WorkloadRecord) -> None:
        """The row has the next version now."""
        job = self.held.get(record.id)
        if job is not None:
            job.record = replace(job.record, version=record.version + 1)
        elif record.id in self.waiting:
            self.waiting[record.id] = replace(self.waiting[record.id], version=record.version + 1)

    def with_forecast(self, request: Request) -> Request:
        """Say how long it will probably run: limits are mostly far too long. None came later than now: it would never age."""
        submitted = min(request.submitted, self.clock.now().timestamp())
        return replace(request, submitted=submitted, expected=self._forecast.expect(request))

    def note_run(self, record: WorkloadRecord) -> None:
        """Learn from a workload that has ended by itself."""
        if record.reason in BY_ITSELF and record.started_at is not None and record.stopped_at is not None:
            self._forecast.note(
                scheduler_snapshot.request_of(record), max(0.0, record.stopped_at - record.started_at)
            )

    # -- what people want

    def intake(self, turn_changes: TurnChanges, record: WorkloadRecord, now: float) -> None:
        """Take over what people want of a workload."""
        job = self.held.get(record.id)
        if job is not None:
            if record.version > job.record.version and record.state in HOLDING:
                job.record = record
                lifecycle.follow_wish_of_holder(turn_changes, job, now)
                self.after(turn_changes, job, now)
            return
        known = self.waiting.get(record.id)
        if known is not None and known.version > record.version:
            return
        if record.state not in {State.HELD, State.WAITING}:
            return
        self.queue(turn_changes, lifecycle.follow_wish(turn_changes, record, now), now)

    def queue(self, turn_changes: TurnChanges, record: WorkloadRecord, now: float) -> None:
        """Let the scheduler know of a workload that holds nothing: in the queue, or not any more."""
        if record.avoid and record.state == State.WAITING:
            record = node_blacklist.relieve(turn_changes, record, self.node_cache.records(), now)
        known = self.waiting.pop(record.id, None)
        if record.state != State.WAITING:
            if known is not None:
                self.scheduler.withdraw(record.id)
                self.is_dirty = True
            return
        self.waiting[record.id] = record
        request = scheduler_snapshot.request_of(record)
        if known is not None:
            if scheduler_snapshot.request_of(known) == request:
                return
            self.scheduler.withdraw(record.id)
        self.is_dirty = True
        try:
            self.scheduler.submit(self.with_forecast(request), now=now)
            if request.claim and record.id not in self.scheduler.claims:
                self._lose_claim(turn_changes, record.id)
        except Error as error:  # it can never be placed: say so, instead of trying for ever
            del self.waiting[record.id]
            turn_changes.advance(record, State.FAILED, now, reason="refused", message=error.message)

    def _lose_claim(self, turn_changes: TurnChanges, workload: str) -> None:
        """The places of a larger start are not to be had any more: it waits like everybody."""
        record = self.waiting[workload]
        self.waiting[workload] = turn_changes.change(
            replace(record, wait=scheduler_snapshot.time_run(record))
        )

    def after(self, turn_changes: TurnChanges, job: Job, now: float) -> None:
        """Where a workload has let go of its places, tell the scheduler."""
        record = job.record
        if record.state in HOLDING or self.held.get(record.id) is not job:
            return
        del self.held[record.id]
        if record.id in self.scheduler.running:
            self.scheduler.end(record.id, now)
        if record.id in self.scheduler.claims:
            self.scheduler.withdraw(record.id)  # submitted again it has its larger places again
        self.is_dirty = True
        self.note_run(record)
        if record.state in {State.WAITING, State.HELD}:
            self.queue(turn_changes, lifecycle.follow_wish(turn_changes, record, now), now)

    # -- what happens

    def take(self, turn_changes: TurnChanges, found: Input, now: float) -> None:
        """Take over what nodes say, and what came of acting."""
        match found:
            case NodeSeen():
                self.node_cache.see(found, now)
                self.node_changed(found.node, now)
                self._repeat_at = 0.0  # ends that it missed
            case NodeLost():
                if self.node_cache.lose(found, now):
                    for job in self._on(found.node):
                        task_events.lose_node(turn_changes, job, found.node, now)
                    self.node_changed(found.node, now)
            case NodeDiscovered():
                self.node_cache.discover(found, now)
            case NodesListed():
                self.node_cache.keep_listed(found)
            case NotLaunched():
                self._not_launched(turn_changes, found, now)
            case HungAttempt():
                if found.workload_id in self.held:
                    hang_policy.end_hung(turn_changes, self.held[found.workload_id], found, now)
                    self.after(turn_changes, self.held[found.workload_id], now)
            case Ended():
                self._ended(turn_changes, found, now)
            case _:
                self._watch(turn_changes, found, now)

    def _watch(self, turn_changes: TurnChanges, seen: OfTask, now: float) -> None:
        workload, attempt = split_attempt(seen.attempt_id)
        job = self.held.get(workload)
        if job is None or job.record.attempt != attempt:
            # Something of an attempt that is over. NB: its end may be of this very turn, and not written yet: were the
            # node told to forget it now and the leader to die, the next one would take it for lost and start it again.
            if not isinstance(seen, TaskUnknown):
                turn_changes.strays[seen.attempt_id] = None
            return
        task_events.watch(turn_changes, job, seen, now)
        if isinstance(seen, TaskStarted):
            began = self.clock.monotonic() - seen.ran_seconds
            job.began = began if job.began is None else min(began, job.began)
            node = job.tasks[seen.task].node
            self.node_cache.praise(node)
            if self.node_cache.binds_peers(node) and all(task.address for task in job.tasks.values()):
                turn_changes.binds[workload] = None
        self.after(turn_changes, job, now)

    def _not_launched(self, turn_changes: TurnChanges, found: NotLaunched, now: float) -> None:
        job = self.held.get(found.workload_id)
        if job is None or job.attempt_id != found.attempt_id or job.record.state != State.STARTING:
            return
        unsent = "" if found.was_sent else found.node
        blamed = found.node if found.is_nodes_fault else ""
        task_events.could_not_start(
            turn_changes,
            job,
            now,
            message=found.message,
            unsent=unsent,
            blamed=blamed,
            is_final=found.is_final,
        )
        if found.node and found.is_nodes_fault:
            self.node_cache.blame(found.node, found.message, now)
            self.node_changed(found.node, now)
        self.after(turn_changes, job, now)

    def _ended(self, turn_changes: TurnChanges, found: Ended, now: float) -> None:
        """The nodes have taken an end; what they do not have never ran."""
        job = self.held.get(found.workload_id)
        if job is None or job.attempt_id != found.attempt_id:
            return
        for task in list(job.tasks.values()):
            has = found.tasks.get(task.node)
            if has is not None and task.name not in has and not task.is_cleared:
                job.tasks[task.name] = turn_changes.change_task(replace(task, is_cleared=True))
        lifecycle.settle(turn_changes, job, now)
        self.after(turn_changes, job, now)

    # -- time

    def is_due(self, now: float) -> bool:
        """Whether time alone has something to be done."""
        if self.clock.monotonic() >= self._repeat_at or self.node_cache.is_due(now):
            return True
        tick = self.clock.monotonic()
        return any(
            self._is_up(job, now) or (elastic_jobs.is_due(job, tick) and not job.was_too_large)
            for job in self.held.values()
        )

    def _is_up(self, job: Job, now: float) -> bool:
        """Whether the time of a workload is up."""
        tick = self.clock.monotonic()
        due = lifecycle.next_due(job, now, tick)
        return due is not None and due <= tick

    def pass_time(self, turn_changes: TurnChanges, now: float) -> None:
        """End what has had its time, and ask again for ends that nobody has confirmed."""
        for job in list(self.held.values()):
            if self._is_up(job, now):
                lifecycle.pass_time(turn_changes, job, now)
                self.after(turn_changes, job, now)
        # NB: by the clock that never steps: set back an hour, the other one would have us wait for that hour.
        if self.clock.monotonic() >= self._repeat_at:
            self._repeat_at = self.clock.monotonic() + REPEAT_SECONDS
            for job in self.held.values():
                if job.record.state == State.FINISHING:
                    turn_changes.ends[job.record.id] = None

    # -- nodes

    def _on(self, node: str) -> list[Job]:
        return [job for job in self.held.values() if node in job.nodes]

    def look_after_nodes(self, turn_changes: TurnChanges, now: float) -> None:
        """Clear nodes that are gone, empty those that are drained, and tell the scheduler of those that have changed."""
        for node, why in self.node_cache.buried():
            for job in self._on(node):
                task_events.bury(turn_changes, job, node, now, why)
                self.after(turn_changes, job, now)
        for node in self.node_cache.draining():
            for job in self._on(node):
                if job.record.state in {State.ADMITTED, State.STARTING, State.RUNNING}:
                    lifecycle.finish(
                        turn_changes,
                        job,
                        now,
                        State.WAITING,
                        reason="drained",
                        message=f"Node {node} is being drained; it goes back to the queue.",
                    )
                    self.after(turn_changes, job, now)
        changed = self.node_cache.take_changed(now, is_busy=lambda name: bool(self._on(name)))
        for node in changed:
            self.node_changed(node, now)
        for record in [one for one in self.waiting.values() if one.avoid] if changed else ():
            self.queue(turn_changes, record, now)  # what it avoids may be all that is left

    def node_changed(self, name: str, now: float) -> None:
        """Tell the scheduler what has become of a node."""
        node = self.pool_demand.node(self.node_cache.find(name), name, now)
        known = name in self.scheduler.cluster.index
        self.is_dirty = True
        if node is None:
            if known:
                self.scheduler.remove_node(name)
            return
        if known:
            self.scheduler.change_node(node)
        else:
            self.scheduler.add_node(node)

    def is_claimed(self, name: str) -> bool:
        """Whether room is kept there for somebody who is about to start."""
        cluster = self.scheduler.cluster
        node = cluster.index.get(name)
        if node is None or not cluster.ready >> node & 1:
            return False
        return any(one.node == node for claim in self.scheduler.claims.values() for one in claim.taken)

    # -- deciding

    def decide(self, turn_changes: TurnChanges, now: float) -> None:
        """Let the scheduler decide who starts and who has to go, where something has changed."""
        if self.is_dirty:
            self.is_dirty = False
            self._cycle(turn_changes, now)
            for job in self.held.values():
                job.was_too_large = False
        self._enlarge(turn_changes, now)

    def _cycle(self, turn_changes: TurnChanges, now: float) -> None:
        claimants = {one for one in self.scheduler.claims if (self._wait(one) or {}).get("claim")}
        cycle = self.scheduler.cycle(now)
        for admitted in cycle.admits:
            record = self.waiting.pop(admitted.id)
            slots = rank_order.by_address(record.spec, admitted.slots, self.node_cache.find)
            self.held[record.id] = lifecycle.admit(turn_changes, record, replace(admitted, slots=slots), now)
        for told in cycle.preempts:
            self._preempt(turn_changes, told, now)
        for one in claimants & self.scheduler.entries.keys():
            self._lose_claim(turn_changes, one)
        self.pool_demand.order(cycle, self.scheduler, now)

    def _wait(self, workload: str) -> Mapping[str, object] | None:
        return self.waiting[workload].wait if workload in self.waiting else None

    def _enlarge(self, turn_changes: TurnChanges, now: float) -> None:
        """Let elastic jobs go for a larger start, where nobody waits for the room."""
        tick = self.clock.monotonic()
        due = [job for job in self.held.values() if not job.was_too_large and elastic_jobs.is_due(job, tick)]
        for job in sorted(due, key=lambda job: (-job.record.priority, job.record.submitted_at)):
            grace = float(job.record.spec.grace_seconds)
            found = self.scheduler.enlarge(job.record.id, now, grace=grace)
            if found is None:
                job.was_too_large = True  # until something changes
            else:
                elastic_jobs.enlarge(turn_changes, job, found, now, tick)
                self.after(turn_changes, job, now)

    def _preempt(self, turn_changes: TurnChanges, told: Preempt, now: float) -> None:
        job = self.held.get(told.id)
        if job is None or job.record.state == State.FINISHING:
            return
        # NB: whose job that is, is not for everybody who reads this one's events.
        seconds = max(0, round(told.leave_by - now))
        message = f"It has {seconds} s to make room for a job that goes before it; then it waits again, with its age."
        lifecycle.preempt(turn_changes, job, now, for_id=told.for_id, leave_by=told.leave_by, message=message)
        self.after(turn_changes, job, now)
