"""The result of a simulation as values, JSON and CSV. metrics.py measures it; charts.py draws it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainyard.simulation.metrics import BRIEF, LARGE, SIZES, Spreading, size_class
from trainyard.simulation.simulator import Run, Simulation

HOUR = 3600.0
LARGE_NAME = "large"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What all policies were given."""

    cluster: str
    nodes: int
    devices: int
    jobs: int
    source: str  # a trace's name or a file's
    seed: int
    days: float  # between the first and the last submission
    load: float  # work of all jobs, in capacities over that time
    impossible: tuple[str, ...] = ()  # ids of jobs that no policy could start here; they were left out


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """One policy's figures. Times are seconds, work is device-hours, shares are from 0 to 1."""

    policy: str
    utilisation: float  # time-weighted, over the window
    makespan: float  # until the last job has ended
    wait: Spreading  # in the queue, over all attempts
    wait_large: Spreading  # of gangs with more than LARGE devices
    wait_by_size: Mapping[str, Spreading]
    wait_by_priority: Mapping[int, Spreading]
    slowdown: Spreading  # (wait + running) / running, running at least BRIEF
    fair_workspaces: float
    fair_users: float
    fragmentation: (
        float  # mean share of the devices that are free but useless to the common large gang that waits
    )
    preemptions: int
    lost: float  # device-hours done again after a preemption or the loss of a node
    lost_share: float  # of all device-hours that were used
    completed: int
    unfinished: int
    acquired: int
    node_losses: int
    queue_mean: float
    queue_max: int
    admissions: int
    cycles: int
    seconds: float  # of wall time, scheduler and simulator together
    width: float  # of one point of the series, in seconds
    window: int  # points of the series that the window has: the time in which jobs arrive
    queue: tuple[float, ...]  # workloads that wait
    busy: tuple[float, ...]  # share of the devices in use
    large_waits: tuple[float, ...]  # ranked

    def as_dict(self) -> dict[str, object]:
        """The JSON of one policy."""
        return {
            "utilisation": round(self.utilisation, 5),
            "makespan_seconds": round(self.makespan, 1),
            "wait_seconds": {
                "all": self.wait.as_dict(),
                LARGE_NAME: self.wait_large.as_dict(),
                "by_size": {name: each.as_dict() for name, each in self.wait_by_size.items()},
                "by_priority": {str(level): each.as_dict() for level, each in self.wait_by_priority.items()},
            },
            "slowdown": self.slowdown.as_dict(),
            "fairness": {"workspaces": round(self.fair_workspaces, 5), "users": round(self.fair_users, 5)},
            "fragmentation": round(self.fragmentation, 5),
            "preemptions": self.preemptions,
            "work_lost_device_hours": round(self.lost, 3),
            "work_lost_share": round(self.lost_share, 6),
            "completed": self.completed,
            "unfinished": self.unfinished,
            "nodes_acquired": self.acquired,
            "nodes_lost": self.node_losses,
            "queue": {
                "mean": round(self.queue_mean, 3),
                "max": self.queue_max,
                "step_seconds": round(self.width, 3),
                "length": [round(value, 2) for value in self.queue],
                "busy": [round(value, 4) for value in self.busy],
            },
            "speed": {
                "seconds": round(self.seconds, 3),
                "admissions": self.admissions,
                "cycles": self.cycles,
                "admissions_per_second": round(self.admissions / self.seconds, 1)
                if self.seconds > 0
                else None,
            },
        }


def summarise(simulation: Simulation, seconds: float) -> PolicyResult:
    """The figures of a simulation that has been played, which took `seconds` of wall time."""
    meter = simulation.meter
    ended = [run for run in simulation.runs if run.ended >= 0]
    waits = {id(run): _wait_of(run, simulation.now) for run in simulation.runs}
    used = sum(meter.busy.buckets) / HOUR
    lost = sum(run.lost for run in simulation.runs) / HOUR
    capacity = meter.capacity.until(meter.buckets)
    contended = meter.contended.until(len(meter.contended.buckets))
    queue = tuple(area / meter.width for area in meter.queue.buckets)
    large = sorted(waits[id(run)] for run in simulation.runs if run.job.total_devices > LARGE)
    return PolicyResult(
        policy=simulation.policy.name,
        utilisation=meter.busy.until(meter.buckets) / capacity if capacity else 0.0,
        makespan=max((run.ended for run in ended), default=0.0),
        wait=Spreading.of(waits.values()),
        wait_large=Spreading.of(large),
        wait_by_size=_by_size(simulation.runs, waits),
        wait_by_priority=_by_priority(simulation.runs, waits),
        slowdown=Spreading.of(_slowdown(run, waits[id(run)]) for run in ended),
        fair_workspaces=meter.workspaces.jain(),
        fair_users=meter.users.jain(),
        fragmentation=_fragmentation(simulation, contended),
        preemptions=sum(run.preemptions for run in simulation.runs),
        lost=lost,
        lost_share=lost / used if used else 0.0,
        completed=len(ended),
        unfinished=len(simulation.runs) - len(ended),
        acquired=simulation.acquired,
        node_losses=simulation.losses,
        queue_mean=meter.queue.until(meter.buckets) / meter.until,
        queue_max=meter.longest_queue,
        admissions=simulation.admissions,
        cycles=simulation.cycles,
        seconds=seconds,
        width=meter.width,
        window=meter.buckets,
        queue=queue,
        busy=tuple(
            busy / there if there else 0.0
            for busy, there in zip(meter.busy.buckets, meter.capacity.buckets, strict=False)
        ),
        large_waits=tuple(large),
    )


def _wait_of(run: Run, now: float) -> float:
    """Count the wait of jobs that still wait until now."""
    return run.wait + (now - run.queued if run.ended < 0 and run.started < 0 else 0.0)


def _slowdown(run: Run, wait: float) -> float:
    running = max(BRIEF, run.job.duration)
    return (wait + running) / running


def _fragmentation(simulation: Simulation, contended: float) -> float:
    meter = simulation.meter
    devices = simulation.cluster.devices
    return sum(meter.stranded.buckets) / contended / devices if contended and devices else 0.0


def _by_size(runs: Sequence[Run], waits: Mapping[int, float]) -> dict[str, Spreading]:
    groups: dict[str, list[float]] = {name: [] for name, _, _ in SIZES}
    for run in runs:
        groups[size_class(run.job.total_devices)].append(waits[id(run)])
    return {name: Spreading.of(values) for name, values in groups.items() if values}


def _by_priority(runs: Sequence[Run], waits: Mapping[int, float]) -> dict[int, Spreading]:
    groups: dict[int, list[float]] = {}
    for run in runs:
        groups.setdefault(run.job.priority, []).append(waits[id(run)])
    return {level: Spreading.of(groups[level]) for level in sorted(groups, reverse=True)}


# -- texts -----------------------------------------------------------------------------------------------------------


def as_document(experiment: Experiment, results: Sequence[PolicyResult]) -> dict[str, object]:
    """The one JSON object: what was simulated, and a result for each policy."""
    return {
        "cluster": {"name": experiment.cluster, "nodes": experiment.nodes, "devices": experiment.devices},
        "jobs": {
            "source": experiment.source,
            "count": experiment.jobs,
            "seed": experiment.seed,
            "days": round(experiment.days, 4),
            "load": round(experiment.load, 4),
            "impossible": list(experiment.impossible),
        },
        "large_gang_devices": LARGE + 1,
        "results": {result.policy: result.as_dict() for result in results},
    }


def format_json(document: Mapping[str, object]) -> str:
    """JSON for a file."""
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


JOB_COLUMNS = (
    "policy", "id", "user", "workspace", "priority", "devices", "submitted", "started", "ended", "wait", "duration",
    "preemptions", "lost_device_hours", "outcome",
)  # fmt: skip


def job_rows(simulation: Simulation) -> list[list[str]]:
    """One row for each job; times in seconds, empty where it has not come to that."""
    return [
        [
            simulation.policy.name,
            run.job.id,
            run.job.user,
            run.job.workspace,
            str(run.job.priority),
            str(run.job.total_devices),
            _time(run.job.submitted),
            _time(run.first_start),
            _time(run.ended),
            _time(_wait_of(run, simulation.now)),
            _time(run.job.duration),
            str(run.preemptions),
            f"{run.lost / HOUR:.3f}",
            run.outcome,
        ]
        for run in simulation.runs
    ]


QUEUE_COLUMNS = ("policy", "time", "waiting", "busy")


def queue_rows(result: PolicyResult) -> list[list[str]]:
    """The series: the beginning of each step in seconds, workloads that wait, share of the devices in use."""
    return [
        [result.policy, f"{place * result.width:.1f}", f"{waiting:.2f}", f"{busy:.4f}"]
        for place, (waiting, busy) in enumerate(zip(result.queue, result.busy, strict=False))
    ]


def format_csv(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """CSV for a file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def _time(value: float) -> str:
    return "" if value < 0 else f"{value:.1f}"
