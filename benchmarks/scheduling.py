"""`python benchmarks/scheduling.py --nodes 1000 --waiting 10000 --json`: how fast the scheduler decides.

A cluster of nodes with 8 devices is filled and a backlog waits: 60% ask for one device, the largest gangs for 16 nodes;
20 workspaces in 5 groups with quotas that may be borrowed, 200 users, priorities 1 to 9, a tenth preemptible, time
limits of a minute to three days. Then, on one core:

full_cycle_s      schedule(snapshot, now) from nothing: a decision with its reason for everybody, best of three
incremental_ms    one arrival, one end, one cycle of the scheduler that remembers: the median
admissions_per_s  the simulator plays a heavy trace to its end: workloads started per second of playing it. They run
                  for a minute on average; two in five wait from the beginning, the others come as fast as they can
                  run; the scheduler is asked every 5 s
bytes_per_waiting memory of a waiting workload, its request included

Seconds are processor time: nothing here sleeps or waits, so on a quiet machine that is the time by the clock, and on a
busy one it is the figure that can be compared. What the clock said is in the fields that end with `wall`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":  # as a script from anywhere: the source beside it is measured
    sys.path[:0] = [
        str(Path(__file__).resolve().parents[1] / "src"),
        str(Path(__file__).resolve().parents[1]),
    ]

from benchmarks.measure import Row
from benchmarks.scheduling_curves import measure_curves, save
from benchmarks.slurm import Measured, Unmeasured, measure_slurm
from trainyard.scheduling import Holding, Node, Quota, Request, Role, Scheduler, Snapshot, schedule
from trainyard.scheduling.model import Policy, Preempt
from trainyard.simulation.cluster import Cluster
from trainyard.simulation.jobs import Job
from trainyard.simulation.simulator import Simulation

SHAPES = (
    [(1, 1)] * 60
    + [(1, 2)] * 10
    + [(1, 4)] * 10
    + [(1, 8)] * 10
    + [(2, 8)] * 4
    + [(4, 8)] * 3
    + [(8, 8)] * 2
    + [(16, 8)]
)
DEVICE = "A100"
START = 1_000_000.0

# What is promised, by nodes: seconds of a full cycle, seconds of an incremental one.
BARS = {1000: (0.5, 0.010), 10_000: (8.0, 0.050)}
ADMISSIONS = 5000  # a second
BYTES = 1024

# The heavy trace of `admissions`.
RUN_MEAN = 60.0
TICK = 5.0
BACKLOG = 0.4  # so much of it waits from the beginning; the rest comes as fast as it can run


@dataclass(frozen=True, slots=True)
class Published:
    """What others say of themselves: never measured here, on machines we do not know."""

    who: str
    figure: str
    source: str


PUBLISHED = (
    Published(
        "Slurm", "500 simple batch jobs/s sustained, more in bursts", "Slurm, doc/html/high_throughput.shtml"
    ),
    Published(
        "Kueue",
        "15,000 workloads in 351 s on average, 43/s: throughput of a loaded system, with running times and quotas",
        "Kueue, test/performance/scheduler/configs/baseline; the division is ours",
    ),
    Published(
        "Kueue",
        "50,000 workloads in 1,179 s on average, 42/s: likewise",
        "Kueue, test/performance/scheduler/configs/large-scale; the division is ours",
    ),
    Published(
        "Volcano",
        "2,000 pods/s at 10,000 nodes is what a user read and asked to verify; no method was given in reply",
        "Volcano, issue 3203",
    ),
    Published(
        "Armada",
        "millions of jobs per day across tens of thousands of nodes (a million a day is 12/s); no rate is published",
        "Armada, README",
    ),
)


class Workloads:
    """An endless row of workloads, the same for the same seed."""

    def __init__(self, seed: int, *, largest: int = 16) -> None:
        self.random = random.Random(seed)
        self.shapes = [shape for shape in SHAPES if shape[0] <= largest]
        self.roles: dict[tuple[int, ...], tuple[Role, ...]] = {}
        self.count = 0

    def make(
        self, now: float, *, shape: tuple[int, int] | None = None, limit: float | None = None
    ) -> Request:
        chance = self.random
        replicas, devices = shape or chance.choice(self.shapes)
        cpu = chance.choice((4, 8, 10)) * 1000 * devices
        memory = chance.choice((16, 32, 64)) * 1024 * devices
        key = (replicas, devices, cpu, memory)
        if key not in self.roles:
            self.roles[key] = (
                Role(replicas=replicas, devices=devices, device=DEVICE, cpu=cpu, memory=memory),
            )
        self.count += 1
        return Request(
            id=f"job-{self.count}",
            roles=self.roles[key],
            workspace=f"workspace-{chance.randrange(20)}",
            user=f"user-{chance.randrange(200)}",
            priority=chance.choice((1, 3, 5, 5, 5, 7, 9)),
            submitted=now - chance.random() * 18_000,
            limit=limit if limit is not None else 60 * 2 ** chance.uniform(0, 12),
            preemptible=chance.random() < 0.1,
        )


def cluster(nodes: int) -> Snapshot:
    """Nodes of 8 devices under switches of 16, and a tree of quotas."""
    devices = 8 * nodes
    groups = [Quota(name=f"group-{at}", nominal={DEVICE: devices // 5}) for at in range(5)]
    workspaces = [
        Quota(name=f"workspace-{at}", parent=f"group-{at % 5}", nominal={DEVICE: devices // 25}, borrow={DEVICE: devices // 2})
        for at in range(20)
    ]  # fmt: skip
    return Snapshot(
        nodes=tuple(
            Node(
                name=f"node-{at}", cpu=96_000, memory=768 * 1024, devices={DEVICE: 8}, reserved_cpu=4000,
                topology=(f"row-{at // 128}", f"switch-{at // 16}"),
            )
            for at in range(nodes)
        ),
        quotas=(*groups, *workspaces),
    )  # fmt: skip


def settled(nodes: int, waiting: int, workloads: Workloads) -> Scheduler:
    """A full cluster with a backlog, in which nothing can start without an event."""
    scheduler = Scheduler(cluster(nodes), START)
    while True:
        while len(scheduler.entries) < waiting:
            scheduler.submit(workloads.make(START))
        cycle = scheduler.cycle(START)
        for preempted in cycle.preempts:
            request = scheduler.running[preempted.id].request
            scheduler.end(preempted.id, START)
            scheduler.submit(request)
        if not cycle.admits and not cycle.preempts:
            return scheduler


def snapshot_of(scheduler: Scheduler, nodes: int) -> Snapshot:
    """The same state for schedule()."""
    running = tuple(
        Holding(
            request=one.request,
            started=one.started,
            slots=tuple(t.slot(scheduler.cluster) for t in one.taken),
        )
        for one in scheduler.running.values()
    )
    waiting = tuple(entry.request for entry in scheduler.entries.values())
    still = cluster(nodes)
    return Snapshot(nodes=still.nodes, quotas=still.quotas, waiting=waiting, running=running)


class Watch:
    """Processor time, and time by the clock beside it."""

    def __init__(self) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Seconds since it was made: of the processor, of the clock."""
        return time.process_time() - self.cpu, time.perf_counter() - self.wall


def full_cycle(snapshot: Snapshot, rounds: int) -> tuple[float, float]:
    """Seconds of one decision about everything, the best of some rounds: of the processor, of the clock."""
    best = (float("inf"), float("inf"))
    for _ in range(rounds):
        gc.collect()
        watch = Watch()
        decisions = schedule(snapshot, START)
        best = min(best, watch.read())
        if len(decisions) < len(snapshot.waiting):
            raise RuntimeError("somebody got no decision")
    return best


def incremental(scheduler: Scheduler, workloads: Workloads, rounds: int) -> list[float]:
    """Seconds of each cycle after one arrival and one end."""
    seconds = []
    now = START
    for _ in range(rounds):
        now += 1
        arrived = workloads.make(now)
        ended = workloads.random.choice(list(scheduler.running))
        watch = Watch()
        scheduler.submit(arrived)
        scheduler.end(ended, now)
        cycle = scheduler.cycle(now)
        seconds.append(watch.read()[0])
        _let_go(scheduler, cycle.preempts, now)
    return seconds


def _let_go(scheduler: Scheduler, preempts: list[Preempt], now: float) -> None:
    for preempted in preempts:
        request = scheduler.running[preempted.id].request
        scheduler.end(preempted.id, now)
        scheduler.submit(request)


def heavy_trace(nodes: int, count: int) -> list[Job]:
    """Short workloads, of which a backlog waits until nearly the end; the same each time."""
    workloads = Workloads(3)
    chance = random.Random(5)
    requests = [workloads.make(0.0) for _ in range(count)]
    durations = [chance.expovariate(1 / RUN_MEAN) for _ in requests]
    work = sum(
        one.roles[0].replicas * one.roles[0].devices * seconds
        for one, seconds in zip(requests, durations, strict=True)
    )
    apart = work / (8 * nodes) / count
    backlog = int(count * BACKLOG)
    jobs = []
    for at, (one, seconds) in enumerate(zip(requests, durations, strict=True)):
        role = one.roles[0]
        jobs.append(
            Job(
                id=one.id, submitted=max(0, at - backlog) * apart, duration=seconds, limit=seconds * chance.uniform(1, 4),
                replicas=role.replicas, devices=role.devices, device=role.device, cpu=role.cpu, memory=role.memory,
                user=one.user, workspace=one.workspace, priority=one.priority, preemptible=one.preemptible,
                checkpoint=RUN_MEAN,
            )
        )  # fmt: skip
    return jobs


def admissions(nodes: int, count: int) -> dict[str, float]:
    """Play the heavy trace to its end: workloads started per second, and what was played."""
    still = cluster(nodes)
    workspaces = {quota.name: 1.0 for quota in still.quotas if quota.parent}
    played = Cluster(name="heavy", nodes=still.nodes, quotas=still.quotas, workspaces=workspaces)
    simulation = Simulation(played, heavy_trace(nodes, count), Policy(), Scheduler, tick=TICK)
    gc.collect()
    watch = Watch()
    simulation.play()
    cpu, wall = watch.read()
    return {
        "admissions_per_s": round(simulation.admissions / cpu),
        "admissions_per_s_wall": round(simulation.admissions / wall),
        "admissions": simulation.admissions,
        "admissions_per_cycle": round(simulation.admissions / simulation.cycles),
        "longest_queue": simulation.meter.longest_queue,
        "preemptions": sum(run.preemptions for run in simulation.runs),
    }


def bytes_per_waiting(nodes: int, waiting: int) -> float:
    """Memory that each waiting workload adds, its request included."""
    workloads = Workloads(4)
    scheduler = settled(nodes, max(1, waiting // 10), workloads)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(waiting):
        scheduler.submit(workloads.make(START))
    scheduler.cycle(START)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / waiting


def measure_all(nodes: int, waiting: int, *, quick: bool = False) -> dict[str, float]:
    """All figures of one size. Admissions and memory are taken with 1,000 nodes at most: they hardly depend on it."""
    figures = measure_cycles(nodes, waiting, quick=quick)
    figures.update(admissions(min(nodes, 1000), 6000 if quick else 20_000))
    figures["bytes_per_waiting"] = round(bytes_per_waiting(min(nodes, 1000), min(waiting, 10_000)))
    return figures


def measure_cycles(nodes: int, waiting: int, *, quick: bool = False) -> dict[str, float]:
    """A full cycle, and incremental ones."""
    workloads = Workloads(1)
    scheduler = settled(nodes, waiting, workloads)
    full, wall = full_cycle(snapshot_of(scheduler, nodes), 1 if quick else 3)
    running = len(scheduler.running)
    seconds = sorted(incremental(scheduler, workloads, 20 if quick else 200))
    return {
        "nodes": nodes,
        "waiting": waiting,
        "running": running,
        "full_cycle_s": round(full, 4),
        "full_cycle_s_wall": round(wall, 4),
        "incremental_ms": round(statistics.median(seconds) * 1e3, 3),
        "incremental_p95_ms": round(seconds[int(len(seconds) * 0.95)] * 1e3, 3),
    }


def curve_cost(nodes: int, waiting: int, gang: int | None) -> float:
    """Seconds of a full cycle of a settled cluster, the best of two; with `gang` everybody asks for so many nodes."""
    workloads = Workloads(6)
    if gang is not None:
        workloads.shapes = [(gang, 8)]
    return full_cycle(snapshot_of(settled(nodes, waiting, workloads), nodes), 2)[0]


def draw_curves(folder: Path, *, quick: bool) -> dict[str, object]:
    """Measure how the cost grows, write the table and the drawing; for `--json`."""
    curves = measure_curves(curve_cost, quick=quick)
    save(curves, folder)
    return {curve.name: curve.as_dict() for curve in curves}


def starting(nodes: int, jobs: int) -> tuple[float, float]:
    """Seconds in which ours does what slurm.py asks of slurmctld: one cycle that starts all, of processor and clock."""
    scheduler = Scheduler(cluster(nodes), START)
    workloads = Workloads(2)
    for _ in range(jobs):
        scheduler.submit(workloads.make(START, shape=(1, 1), limit=3600.0))
    watch = Watch()
    cycle = scheduler.cycle(START)
    read = watch.read()
    if len(cycle.admits) != jobs:
        raise RuntimeError("not all of them started")
    return read


def beside_slurm(nodes: int, jobs: int) -> tuple[Measured | None, str, tuple[float, float]]:
    """Slurm's figures (or None and why not), then ours for the same."""
    try:
        theirs, why = measure_slurm(nodes, jobs), ""
    except Unmeasured as error:
        theirs, why = None, str(error)
    return theirs, why, starting(nodes, jobs)


def slurm_document(nodes: int = 1000, jobs: int = 2000) -> dict[str, object]:
    """For `--json`: measured here, and published by others."""
    theirs, why, (cpu, wall) = beside_slurm(nodes, jobs)
    return {
        "slurm": {"not_measured": why} if theirs is None else theirs.as_dict(),
        "ours_for_the_same": {"jobs_per_s": round(jobs / wall), "jobs_per_cpu_s": round(jobs / cpu)},
        "published": [asdict(one) for one in PUBLISHED],
    }


def measure(*, quick: bool) -> list[Row]:
    """The rows for `python -m benchmarks scheduling`."""
    rows = []
    for nodes, waiting in ((1000, 10_000),) if quick else ((1000, 10_000), (10_000, 100_000)):
        figures = measure_cycles(nodes, waiting, quick=quick)
        full, step = BARS[nodes]
        size = f"{nodes:,} nodes, {waiting:,} waiting"
        rows += [
            Row(f"full cycle, {size}", figures["full_cycle_s"], "limit", full, bar=1.0),
            Row(f"one arrival and one end, {size}", figures["incremental_ms"] / 1e3, "limit", step, bar=1.0),
        ]
    rate = admissions(1000, 6000 if quick else 20_000)["admissions_per_s"]
    size = bytes_per_waiting(1000, 10_000)
    rows += [
        Row("1,000 admissions in simulation", 1000 / rate, "limit", 1000 / ADMISSIONS, bar=1.0),
        Row("memory of one waiting workload", size, "limit", BYTES, unit="B", bar=1.0),
    ]
    if not quick:
        theirs, why, (_, wall) = beside_slurm(1000, 2000)
        seconds = None if theirs is None else theirs.cycle_s
        rows.append(Row("start 2,000 jobs on 1,000 nodes", wall, "slurmctld, fake nodes", seconds, note=why))
        rows += [Row("admissions", rate, one.who, None, "/s", note=f"published: {one.figure} ({one.source})")
                 for one in PUBLISHED]  # fmt: skip
    return rows


def main(words: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="few rounds, a short trace")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--slurm", action="store_true", help="measure Debian's slurmctld beside it")
    parser.add_argument("--curves", type=Path, metavar="DIR", help="also draw cost curves into this folder")
    wanted = parser.parse_args(words)
    figures: dict[str, object] = dict(measure_all(wanted.nodes, wanted.waiting, quick=wanted.quick))
    if wanted.slurm:
        figures.update(slurm_document())
    if wanted.curves is not None:
        figures["curves"] = draw_curves(wanted.curves, quick=wanted.quick)
    if wanted.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:22} {value:,}" if isinstance(value, int | float) else f"{name:22} {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
