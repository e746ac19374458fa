"""Plays jobs on a cluster in simulated time. The scheduler decides; this module does the events between decisions.

Events (a job comes, ends, breaks or has to leave; a node is lost, repaired, joins or is given back) wait in a heap. The
scheduler is asked at most once every `tick`, like the platform's loop, so that events of one moment are decided upon
together. Work per event does not grow with the number of jobs or nodes. Figures are metrics.py's and result.py's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from math import ceil, inf
from random import Random
from typing import Protocol

from trainyard.scheduling.forecast import Forecast
from trainyard.scheduling.model import (
    Acquire,
    Admit,
    Node,
    NodeState,
    Policy,
    Preempt,
    Request,
    Slot,
    Snapshot,
)
from trainyard.simulation.cluster import Cluster, Growth
from trainyard.simulation.jobs import Job
from trainyard.simulation.metrics import LARGE, Meter

TICK = 1.0
HEARTBEAT = 300.0  # while somebody waits, time alone may let them start: ageing, windows that grow
PATIENCE = 2 * 86400.0  # with nothing running and nothing coming, whoever waits so long waits for ever
PROGRESS_CYCLES = 50
OBJECTS = 50_000  # that are made before Python looks for garbage


class Deciding(Protocol):
    """What the simulator asks of a scheduler."""

    def submit(self, request: Request) -> None:
        """It joins the queue."""

    def end(self, id: str, now: float) -> None:  # noqa: A002  # the scheduler's word
        """A running one has gone."""

    def cycle(self, now: float) -> Cycle:
        """Decide."""

    def add_node(self, node: Node) -> None:
        """A node has been acquired."""

    def change_node(self, node: Node) -> None:
        """A node is in another state."""

    def remove_node(self, name: str) -> None:
        """A node has gone."""


class Cycle(Protocol):
    """What a scheduler decided."""

    @property
    def admits(self) -> Sequence[Admit]:
        """Who starts."""

    @property
    def preempts(self) -> Sequence[Preempt]:
        """Who has to go."""

    @property
    def acquires(self) -> Sequence[Acquire]:
        """Which nodes to get."""


class Run:
    """One job on its way through a simulation."""

    __slots__ = (
        "attempt", "broken", "ended", "first_start", "group", "job", "leaving", "lost", "outcome", "places",
        "preemptions", "queued", "rate", "remaining", "request", "shape", "started", "wait",
    )  # fmt: skip

    def __init__(self, job: Job) -> None:
        self.job = job
        self.request = job.request()
        self.group = (job.workspace, job.user)
        self.shape = (job.replicas, job.devices)
        self.attempt = 0  # told apart so that the end of an earlier one is not taken for that of this one
        self.broken = 0  # attempts that failed by themselves
        self.remaining = job.duration
        self.queued = job.submitted
        self.wait = 0.0  # in the queue, over all attempts
        self.started = -1.0
        self.first_start = -1.0
        self.ended = -1.0
        self.rate = 1.0  # replicas that run, of those it would like
        self.leaving = False
        self.places: Sequence[Slot] = ()
        self.preemptions = 0
        self.lost = 0.0  # device-seconds that had to be done again
        self.outcome = "waiting"


END, LEAVE, LOSE, REPAIR, JOIN, IDLE = range(6)


@contextmanager
def few_collections() -> Iterator[None]:
    """Let Python look for garbage in rings less often: next to nothing here is, and every look goes over all who wait."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(OBJECTS, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


class Simulation:
    """One policy's run."""

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[Job],
        policy: Policy,
        make: Callable[[Snapshot], Deciding],
        *,
        seed: int = 0,
        tick: float = TICK,
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.runs = [Run(job) for job in sorted(jobs, key=lambda job: (job.submitted, job.id))]
        self.cycles = 0
        self.admissions = 0
        self.acquired = 0
        self.losses = 0
        self.now = 0.0
        self._tick = tick
        self._scheduler = make(cluster.snapshot(policy))
        self._forecast = Forecast()  # from what has ended so far, as the platform knows it
        self._running: dict[str, Run] = {}
        self._waiting = 0
        self._known: dict[str, Run] = {}
        self._heap: list[tuple[float, int, int, Run | str, int]] = []
        self._sequence = 0
        self._random = Random(seed)  # noqa: S311  # repeatable is what is wanted
        self._nodes: dict[str, Node] = {node.name: node for node in cluster.nodes}
        self._pools = {pool.name: pool for pool in cluster.pools}
        self._tenants: dict[str, set[str]] = {}  # of nodes that may be lost or given back
        self._grown: dict[str, int] = {}  # nodes that came later → how often each became busy
        self._coming = 0
        self.meter = Meter(
            {node.name: sum(node.devices.values()) for node in cluster.nodes},
            _weights(cluster),
            common_large_shape(jobs),
            window(cluster, jobs),
        )
        self._watches_nodes = cluster.losses.every > 0 or any(pool.promise for pool in cluster.pools)
        if cluster.losses.every > 0:
            for name in self._nodes:
                self._plan_loss(name, 0.0)

    # -- time ----------------------------------------------------------------------------------------------------

    def play(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Run to the end. `progress` is told now and then how many jobs have ended, of how many."""
        with few_collections():
            self._play(progress)

    def _play(self, progress: Callable[[int, int], None] | None) -> None:
        arrived, ended, total = 0, 0, len(self.runs)
        beat, idle_since = inf, -1.0
        while arrived < total or self._running or self._waiting:
            moment = self._next_moment(arrived, beat)
            arrived = self._arrive(arrived, moment)
            self._happen(moment)
            self.now = moment
            if self._waiting:
                self._decide(moment)
            beat = moment + HEARTBEAT if self._waiting else inf
            if self._running or self._coming or arrived < total or not self._waiting:
                idle_since = -1.0
            elif idle_since < 0:
                idle_since = moment
            elif moment - idle_since > PATIENCE:
                break
            if progress is not None and self.cycles % PROGRESS_CYCLES == 0:
                ended = arrived - self._waiting - len(self._running)
                progress(ended, total)
        self.meter.advance(max(self.now, self.meter.until))

    def _next_moment(self, arrived: int, beat: float) -> float:
        """When the scheduler is asked next: the first tick at which something has happened."""
        event = self._heap[0][0] if self._heap else inf
        arrival = self.runs[arrived].job.submitted if arrived < len(self.runs) else inf
        earliest = max(self.now, min(event, arrival, beat))
        return ceil(earliest / self._tick - 1e-9) * self._tick if self._tick > 0 else earliest

    def _arrive(self, arrived: int, moment: float) -> int:
        runs = self.runs
        while arrived < len(runs) and runs[arrived].job.submitted <= moment:
            run = runs[arrived]
            arrived += 1
            self._known[run.job.id] = run
            self._queue(run, run.job.submitted)
        return arrived

    def _happen(self, moment: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= moment:
            at, kind, _, subject, stamp = heappop(heap)
            if isinstance(subject, str):
                _NODE_EVENTS[kind](self, subject, stamp, at)
            elif subject.attempt == stamp and subject.started >= 0:
                if kind == END:
                    self._end(subject, at)
                else:
                    self._leave(subject, at)

    def _later(self, at: float, kind: int, subject: Run | str, stamp: int = 0) -> None:
        """`stamp` tells an event that has been overtaken: another attempt, or a node that was used since."""
        self._sequence += 1
        heappush(self._heap, (at, kind, self._sequence, subject, stamp))

    # -- decisions -----------------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        cycle = self._scheduler.cycle(now)
        self.cycles += 1
        for admit in cycle.admits:
            self._start(self._known[admit.id], admit, now)
        for preempt in cycle.preempts:
            victim = self._running.get(preempt.id)
            if victim is not None and not victim.leaving:
                victim.leaving = True
                self._later(max(now, preempt.leave_by), LEAVE, victim, victim.attempt)
        for acquire in cycle.acquires:
            self._acquire(acquire, now)

    def _start(self, run: Run, admit: Admit, now: float) -> None:
        job = run.job
        self._waiting -= 1
        self.admissions += 1
        self._running[job.id] = run
        run.attempt += 1
        run.wait += now - run.queued
        run.started = now
        if run.first_start < 0:
            run.first_start = now
        run.leaving = False
        run.places = admit.slots
        run.rate = min(1.0, len(admit.slots) / job.replicas)
        self.meter.wait(run.group, run.shape, now, -1)
        self.meter.run(run.group, admit.slots, now, 1)
        seconds = job.failures[run.broken] if run.broken < len(job.failures) else run.remaining
        seconds /= run.rate
        if job.limit is not None:
            seconds = min(seconds, job.limit)
        self._later(now + seconds, END, run, run.attempt)
        if self._watches_nodes:
            for slot in admit.slots:
                self._tenants.setdefault(slot.node, set()).add(job.id)

    def _acquire(self, acquire: Acquire, now: float) -> None:
        pool = self._pools[acquire.pool]
        if pool.promise is None:
            return
        for _ in range(acquire.count):
            self.acquired += 1
            node = replace(
                pool.promise, name=f"{pool.name}+{self.acquired}", pool=pool.name, state=NodeState.COMING
            )
            self._nodes[node.name] = node
            self._coming += 1
            self._scheduler.add_node(node)
            delay = self.cluster.growth.get(pool.name, Growth()).delay
            self._later(now + delay, JOIN, node.name)

    # -- jobs ----------------------------------------------------------------------------------------------------

    def _queue(self, run: Run, now: float) -> None:
        self._waiting += 1
        run.queued = now
        run.request = run.job.request(self._forecast.expect(run.request))
        self._scheduler.submit(run.request)
        self.meter.wait(run.group, run.shape, now, 1)

    def _stop(self, run: Run, now: float) -> None:
        self._scheduler.end(run.job.id, now)
        del self._running[run.job.id]
        self.meter.run(run.group, run.places, now, -1)
        if self._watches_nodes:
            for slot in run.places:
                tenants = self._tenants.get(slot.node, set())
                tenants.discard(run.job.id)
                if not tenants and slot.node in self._grown:
                    self._rest(slot.node, now)
        run.started = -1.0
        run.places = ()

    def _end(self, run: Run, now: float) -> None:
        ran = now - run.started
        self._stop(run, now)
        self._forecast.note(run.request, ran)
        if run.broken < len(run.job.failures):
            run.broken += 1  # it is tried again, with its age
            self._queue(run, now)
            return
        run.ended = now
        over_limit = run.job.limit is not None and run.remaining / run.rate > ran + 1e-6
        run.outcome = "stopped" if over_limit else run.job.outcome

    def _leave(self, run: Run, now: float, *, preempted: bool = True) -> None:
        """Stopped from outside: what was not saved is lost, and it queues again with its age."""
        job = run.job
        progress = (now - run.started) * run.rate
        if run.broken < len(job.failures):
            lost = progress
        else:
            done = job.duration - run.remaining + progress
            saved = done - done % job.checkpoint if job.checkpoint > 0 else 0.0
            lost = done - saved
            run.remaining = job.duration - saved
        run.lost += lost * job.total_devices
        run.preemptions += preempted
        self._stop(run, now)
        self._queue(run, now)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _plan_loss(self, name: str, now: float) -> None:
        self._later(now + self._random.expovariate(1 / self.cluster.losses.every), LOSE, name)

    def _lose(self, name: str, _stamp: int, now: float) -> None:
        self.losses += 1
        self._nodes[name] = replace(self._nodes[name], state=NodeState.LOST)
        self._scheduler.change_node(self._nodes[name])
        for id_ in sorted(self._tenants.get(name, ())):
            self._leave(self._running[id_], now, preempted=False)
        self._later(now + self.cluster.losses.repair, REPAIR, name)

    def _repair(self, name: str, _stamp: int, now: float) -> None:
        self._nodes[name] = replace(self._nodes[name], state=NodeState.READY)
        self._scheduler.change_node(self._nodes[name])
        self._plan_loss(name, now)

    def _join(self, name: str, _stamp: int, now: float) -> None:
        self._coming -= 1
        self._nodes[name] = replace(self._nodes[name], state=NodeState.READY)
        self._scheduler.change_node(self._nodes[name])
        self.meter.join(name, sum(self._nodes[name].devices.values()), now)
        self._grown[name] = 0
        self._rest(name, now)

    def _rest(self, name: str, now: float) -> None:
        """A node that came later is empty: if it still is after a while, it is given back."""
        self._grown[name] += 1
        idle = self.cluster.growth.get(self._nodes[name].pool, Growth()).idle
        self._later(now + idle, IDLE, name, self._grown[name])

    def _retire(self, name: str, stamp: int, now: float) -> None:
        if self._grown.get(name) == stamp and not self._tenants.get(name):
            self._scheduler.remove_node(name)
            self.meter.leave(name, sum(self._nodes[name].devices.values()), now)
            del self._grown[name], self._nodes[name]


_NODE_EVENTS: Mapping[int, Callable[[Simulation, str, int, float], None]] = {
    LOSE: Simulation._lose,  # noqa: SLF001  # its own
    REPAIR: Simulation._repair,  # noqa: SLF001  # its own
    JOIN: Simulation._join,  # noqa: SLF001  # its own
    IDLE: Simulation._retire,  # noqa: SLF001  # its own
}


def possible(cluster: Cluster, jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """Tell jobs that the empty cluster could hold from those that it never could: one of these would block a FIFO."""
    checked: dict[tuple[object, ...], bool] = {}
    fine: list[Job] = []
    never: list[Job] = []
    for job in jobs:
        key = (job.replicas, job.minimum, job.devices, job.device, job.cpu, job.memory, job.pool)
        if key not in checked:
            checked[key] = _fits(cluster, job)
        (fine if checked[key] else never).append(job)
    return fine, never


def _fits(cluster: Cluster, job: Job) -> bool:
    nodes = list(cluster.nodes)
    for pool in cluster.pools:
        if pool.promise is not None:
            there = sum(node.pool == pool.name for node in nodes)
            nodes += [replace(pool.promise, pool=pool.name)] * max(0, pool.limit - there)
    needed = job.replicas if job.minimum is None else job.minimum
    return sum(_holds(node, job) for node in nodes if job.pool in {"", node.pool}) >= needed


def _holds(node: Node, job: Job) -> int:
    devices = node.devices.get(job.device, 0) if job.device else sum(node.devices.values())
    rooms = [
        (devices, job.devices),
        (node.cpu - node.reserved_cpu, job.cpu),
        (node.memory - node.reserved_memory, job.memory),
    ]
    return min((have // want for have, want in rooms if want), default=job.replicas)


def window(cluster: Cluster, jobs: Sequence[Job]) -> float:
    """The time over which use is measured: while jobs arrive, and at least as long as full use would take for them.

    What comes after is the emptying of a cluster to which nobody sends anything, which says nothing about a policy.
    """
    last = max((job.submitted for job in jobs), default=0.0)
    return max(last, sum(job.work for job in jobs) / cluster.devices if cluster.devices else 0.0)


def common_large_shape(jobs: Sequence[Job]) -> tuple[int, int]:
    """Replicas and devices of each, of the most frequent gang that spans machines; (0, 1) if there is none."""
    counts: dict[tuple[int, int], int] = {}
    for job in jobs:
        if job.total_devices > LARGE:
            shape = (job.replicas, job.devices)
            counts[shape] = counts.get(shape, 0) + 1
    return max(counts, key=lambda shape: (counts[shape], shape), default=(0, 1))


def _weights(cluster: Cluster) -> dict[str, float]:
    """What workspaces are entitled to: by guaranteed devices where all have some, else by weight."""
    leaves = [quota for quota in cluster.quotas if quota.name in cluster.workspaces]
    types = set(cluster.device_types)
    nominal = {
        quota.name: float(sum(count for name, count in quota.nominal.items() if name in types))
        for quota in leaves
    }
    return nominal if nominal and all(nominal.values()) else {quota.name: quota.weight for quota in leaves}
