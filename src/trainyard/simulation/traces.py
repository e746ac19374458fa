"""Generates workloads with the statistics of published GPU clusters. jobs.py reads workloads from files.

What was published, and where; nothing of the traces themselves is here, only their outlines:

* Philly. Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", ATC 2019, and
  github.com/msr-fiddle/philly-traces: 117,325 jobs of 2017 on 552 machines; 69.3 % passed, 13.5 % killed, 17.2 %
  unsuccessful, the killed ones with 37.7 % of the GPU time; one in 200 jobs runs longer than a week; failed attempts
  are repeated. Hu et al. (below) give 1.75 GPUs and 28,329 s as means over its jobs.
* Helios. Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters",
  SC 2021, with the table helios_cluster_summary.csv of its artifact: 1,580,464 GPU jobs, mean 3.716 GPUs, median 1;
  running time median 206 s and mean 6,652 s; 62.4 % completed, 22.1 % cancelled, 15.5 % failed; 49,400 GPU-seconds
  a job, which is twice the product of the two means: large jobs run longer. Submissions follow the working day, with
  dips at noon and in the evening.
* PAI. Weng et al., "MLaaS in the Wild", NSDI 2022: 7.5 million replicas in 1.2 million tasks of 1,300 users on 6,742
  GPUs; the top 5 % of users submit 77 % of the replicas; 85 % of the replicas are in gangs and a fifth in gangs of
  more than 100 GPUs; a replica runs 23 minutes in the median and 4.5 hours at the 90th percentile; about 65 % of the
  tasks are runs of something that was run before, which is what predictions from a user's past live on. Helios' authors
  predict from the past as well; the other two get the same share.
* Announced limits. Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates",
  TPDS 2001: people announce round numbers, mostly far too much; that part is the same for all three.

What was not published is chosen plainly: priorities are 5 for four in five whatever the size, nobody is preemptible,
and a user's jobs come one at a time or as a sweep of similar ones. Gangs and running times are cut to what a cluster
and a trace of this length can hold; the number of jobs follows from the load.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import exp, log, pow  # noqa: A004  # the operator's type is Any
from operator import itemgetter
from random import Random
from types import MappingProxyType
from typing import TypeVar

from trainyard.lib.errors import InvalidError
from trainyard.simulation.cluster import Cluster
from trainyard.simulation.jobs import Job

DAY = 86400.0
HOUR = 3600.0
NODE_DEVICES = 8  # gangs are made of whole machines of this size, as in Philly and Helios

# Submissions by hour of the day: few at night, dips at noon and at six (Helios, SC 2021, figure on daily patterns).
HOURS = (
    0.55, 0.40, 0.30, 0.25, 0.22, 0.22, 0.28, 0.45, 0.85, 1.35, 1.60, 1.50,
    1.05, 1.30, 1.65, 1.70, 1.65, 1.45, 1.05, 1.25, 1.40, 1.35, 1.15, 0.80,
)  # fmt: skip
WEEKEND = 0.6
LIMITS = tuple(
    hours * HOUR for hours in (0.5, 1, 2, 4, 8, 12, 24, 48, 72, 168)
)  # the round numbers people announce
SWEEP_SECONDS = 120.0  # a sweep is submitted by a loop
SWEEP_MEAN = 6.0  # jobs beside the first
LARGEST_SWEPT = 4  # devices; what takes a machine or more is submitted one at a time
CHECKPOINT_SECONDS = 1800.0
PROJECTS = 6  # things that a user works on at a time
SHORTEST = 5.0

Each = TypeVar("Each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The outline of one cluster's workloads."""

    name: str
    sizes: Mapping[int, float]  # devices of all replicas → share of the jobs
    durations: tuple[tuple[float, float], ...]  # (quantile, seconds), log-linear between them
    stretch: float  # a job with n devices runs n ** stretch times as long
    replica: int  # devices of one replica at most
    failed: float
    cancelled: float
    retried: float  # of those that complete: after one or two failed attempts
    attempts: int  # of those that fail for good
    users: int
    skew: float  # the k-th busiest user submits k ** -skew as much as the busiest
    sweep: float  # share of the submissions that are a sweep
    repeated: float = 0.65  # share of the submissions that run something of the same user's once more
    priorities: Mapping[int, float] = field(
        default_factory=lambda: MappingProxyType({5: 0.8, 3: 0.1, 7: 0.08, 8: 0.02})
    )


PHILLY = Shape(
    name="philly",
    sizes=MappingProxyType({1: 0.86, 2: 0.04, 4: 0.045, 8: 0.04, 16: 0.01, 32: 0.004, 64: 0.001}),
    durations=(
        (0.0, 20.0),
        (0.25, 300.0),
        (0.5, 1900.0),
        (0.9, 55_000.0),
        (0.995, 604_800.0),
        (1.0, 1_000_000.0),
    ),
    stretch=0.1,
    replica=8,
    failed=0.172,
    cancelled=0.135,
    retried=0.05,
    attempts=3,
    users=60,
    skew=1.2,
    sweep=0.15,
)
HELIOS = Shape(
    name="helios",
    sizes=MappingProxyType({1: 0.60, 2: 0.10, 4: 0.107, 8: 0.14, 16: 0.032, 32: 0.015, 64: 0.006}),
    durations=((0.0, 5.0), (0.25, 50.0), (0.5, 190.0), (0.9, 5_000.0), (0.99, 75_000.0), (1.0, 500_000.0)),
    stretch=0.3,
    replica=8,
    failed=0.155,
    cancelled=0.221,
    retried=0.0,
    attempts=1,
    users=80,
    skew=1.3,
    sweep=0.2,
)
PAI = Shape(
    name="pai",
    sizes=MappingProxyType(
        {
            1: 0.66,
            2: 0.11,
            4: 0.07,
            8: 0.06,
            16: 0.04,
            32: 0.03,
            64: 0.0175,
            128: 0.0125,
        }
    ),
    durations=(
        (0.0, 10.0),
        (0.25, 300.0),
        (0.5, 1380.0),
        (0.9, 16_200.0),
        (0.99, 90_000.0),
        (1.0, 300_000.0),
    ),
    stretch=0.0,
    replica=1,
    failed=0.12,
    cancelled=0.1,
    retried=0.0,
    attempts=1,
    users=120,
    skew=1.55,
    sweep=0.3,
)
SHAPES: Mapping[str, Shape] = MappingProxyType({shape.name: shape for shape in (PHILLY, HELIOS, PAI)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a trace is made for: how many devices there are, and who shares them."""

    devices: int
    node_devices: int = NODE_DEVICES
    device: str = ""
    workspaces: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({"default": 1.0}))
    cpu: int = 8000  # for each device, thousandths of a core
    memory: int = 48 * 1024  # for each device, MiB


def room_in(cluster: Cluster) -> Room:
    """What a cluster offers: the devices of its most common type, with the cores and memory that go with one."""
    types = cluster.device_types
    if not types:
        return Room(devices=0)
    kind = types[0]
    nodes = [node for node in cluster.nodes if node.devices.get(kind)]
    return Room(
        devices=sum(node.devices[kind] for node in nodes),
        node_devices=max(node.devices[kind] for node in nodes),
        device=kind,
        workspaces=cluster.workspaces or MappingProxyType({"default": 1.0}),
        cpu=min(8000, *((node.cpu - node.reserved_cpu) // node.devices[kind] for node in nodes)),
        memory=min(
            48 * 1024, *((node.memory - node.reserved_memory) // node.devices[kind] for node in nodes)
        ),
    )


def generate(shape: Shape, room: Room, *, days: float, load: float, seed: int) -> list[Job]:
    """Invent jobs for `days`, of which the work is `load` times what the devices can do; the same for the same seed.

    The number of jobs follows from the load.
    """
    if room.devices < 1:
        raise InvalidError(
            "this cluster has no devices to invent work for", hint="Give its nodes devices, or pass --jobs."
        )
    if days <= 0 or load <= 0:
        raise InvalidError(
            "a trace needs days and a load above 0", hint="Pass for example --days 7 --load 0.9."
        )
    random = Random(seed)  # noqa: S311  # repeatable is what is wanted
    people = _People(shape, room, random)
    make = _Maker(shape, room, random, longest=min(shape.durations[-1][1], days * DAY / 7))
    wanted = load * room.devices * days * DAY
    submissions: list[list[Job]] = []
    work = 0.0
    while work < wanted:
        user, workspace = people.pick()
        plan = make.plan(user)
        sweeps = plan.size <= LARGEST_SWEPT and random.random() < shape.sweep
        twins = 1 + min(30, int(random.expovariate(1 / SWEEP_MEAN) + 0.5)) if sweeps else 1
        batch: list[Job] = []
        while len(batch) < twins and work < wanted:
            batch.append(make.job(plan, random.random() * SWEEP_SECONDS, user, workspace))
            work += batch[-1].work
        submissions.append(batch)
    clock = _Clock(days)
    # In the order in which they were thought of, so that a user's projects follow one another.
    moments = sorted(clock.moment(random.random()) for _ in submissions)
    jobs = [
        (moment + job.submitted, job)
        for moment, batch in zip(moments, submissions, strict=True)
        for job in batch
    ]
    jobs.sort(key=itemgetter(0))
    width = len(str(len(jobs)))
    return [
        replace(job, id=f"job-{number:0{width}d}", submitted=round(at, 1))
        for number, (at, job) in enumerate(jobs, 1)
    ]


class _Clock:
    """Moments spread over days as people's working hours are."""

    def __init__(self, days: float) -> None:
        self._end = days * DAY
        hours = max(1, round(days * 24))
        self._step = self._end / hours
        weights = [
            HOURS[int(hour * self._step / HOUR) % 24]
            * (WEEKEND if int(hour * self._step / DAY) % 7 > 4 else 1.0)
            for hour in range(hours)
        ]
        self._sums = list(accumulate(weights))

    def moment(self, share: float) -> float:
        """The moment before which this share of the submissions has come."""
        wanted = share * self._sums[-1]
        hour = min(bisect_right(self._sums, wanted), len(self._sums) - 1)
        before = self._sums[hour - 1] if hour else 0.0
        inside = (wanted - before) / (self._sums[hour] - before)
        return (hour + inside) * self._step


class _People:
    """Users of skewed activity, each in one workspace; a workspace gets jobs by its share."""

    def __init__(self, shape: Shape, room: Room, random: Random) -> None:
        self._random = random
        self._workspaces = list(room.workspaces)
        self._shares = list(accumulate(room.workspaces.values()))
        each = max(3, shape.users // len(self._workspaces))
        self._users = {
            name: (
                [f"{name}-u{k}" for k in range(1, each + 1)],
                list(accumulate(k**-shape.skew for k in range(1, each + 1))),
            )
            for name in self._workspaces
        }

    def pick(self) -> tuple[str, str]:
        """A user, and the workspace they are in."""
        workspace = _draw(self._workspaces, self._shares, self._random)
        names, sums = self._users[workspace]
        return _draw(names, sums, self._random), workspace


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the jobs of one sweep, or of one project, have in common."""

    size: int
    seconds: float  # that the user believes it takes
    priority: int
    careless: bool  # announces the longest limit there is


class _Maker:
    """Draws one job after the other."""

    def __init__(self, shape: Shape, room: Room, random: Random, *, longest: float) -> None:
        self._shape = shape
        self._room = room
        self._random = random
        self._longest = longest
        largest = max(
            1, room.devices // 8
        )  # more than an eighth of a cluster for one gang is not its everyday
        # A sweep counts as many jobs: its sizes are drawn so much more rarely that the shares of jobs come out right.
        twins = 1 + shape.sweep * SWEEP_MEAN
        sizes = {
            size: share / (twins if size <= LARGEST_SWEPT else 1.0)
            for size, share in shape.sizes.items()
            if size <= largest
        } or {1: 1.0}
        self._sizes, self._size_sums = list(sizes), list(accumulate(sizes.values()))
        self._priorities = list(shape.priorities)
        self._priority_sums = list(accumulate(shape.priorities.values()))
        self._projects: dict[str, list[_Plan]] = {}

    def plan(self, user: str) -> _Plan:
        """Something new, or one of the things that the user has been working on."""
        projects = self._projects.setdefault(user, [])
        if projects and self._random.random() < self._shape.repeated:
            return self._random.choice(projects)
        size = _draw(self._sizes, self._size_sums, self._random)
        plan = _Plan(
            size,
            self._seconds(size),
            _draw(self._priorities, self._priority_sums, self._random),
            self._random.random() < 0.1,
        )
        projects.append(plan)
        del projects[:-PROJECTS]
        return plan

    def job(self, plan: _Plan, after: float, user: str, workspace: str) -> Job:
        """One job of a plan; others of the same plan differ by a little."""
        seconds = min(self._longest, plan.seconds * exp(self._random.gauss(0.0, 0.25)))
        outcome, duration, failures = self._fate(seconds)
        replicas, devices = self._split(plan.size)
        return Job(
            id="",
            submitted=after,
            duration=round(max(SHORTEST, duration), 1),
            replicas=replicas,
            devices=devices,
            device=self._room.device,
            cpu=self._room.cpu * devices,
            memory=self._room.memory * devices,
            user=user,
            workspace=workspace,
            priority=plan.priority,
            limit=self._limit(max(seconds, duration, *failures), plan),
            checkpoint=CHECKPOINT_SECONDS if plan.seconds > 2 * CHECKPOINT_SECONDS else 0.0,
            failures=tuple(round(max(SHORTEST, each), 1) for each in failures),
            outcome=outcome,
        )

    def _seconds(self, size: int) -> float:
        drawn = quantile(self._shape.durations, self._random.random()) * pow(size, self._shape.stretch)
        return min(self._longest, drawn)

    def _fate(self, seconds: float) -> tuple[str, float, list[float]]:
        """How it ends, how long the last attempt runs, and those that broke before."""
        chance = self._random.random()
        if chance < self._shape.failed:
            # Most programs that are wrong say so early (Philly): the square draws towards the beginning.
            early = [seconds * self._random.random() ** 2 for _ in range(self._shape.attempts)]
            return "failed", early[-1], early[:-1]
        if chance < self._shape.failed + self._shape.cancelled:
            # People stop what they have watched for long: in Philly and Helios these hold more devices than their share.
            return "cancelled", min(self._longest, seconds * (0.5 + 2 * self._random.random())), []
        if self._random.random() < self._shape.retried:
            return (
                "completed",
                seconds,
                [seconds * self._random.random() ** 2 for _ in range(self._random.choice((1, 2)))],
            )
        return "completed", seconds, []

    def _split(self, size: int) -> tuple[int, int]:
        each = min(self._shape.replica, self._room.node_devices, size)
        return -(-size // each), each

    def _limit(self, seconds: float, plan: _Plan) -> float:
        if plan.careless:
            return max(LIMITS[-1], seconds)
        wanted = max(seconds, plan.seconds) * (1.2 + 3 * self._random.random())
        return next((limit for limit in LIMITS if limit >= wanted), max(LIMITS[-1], seconds))


def quantile(anchors: Sequence[tuple[float, float]], share: float) -> float:
    """Between two anchors the logarithm grows linearly."""
    for (low, first), (high, last) in pairwise(anchors):
        if share <= high:
            return exp(log(first) + (log(last) - log(first)) * (share - low) / (high - low))
    return anchors[-1][1]


def _draw(values: Sequence[Each], sums: Sequence[float], random: Random) -> Each:
    return values[min(bisect_right(sums, random.random() * sums[-1]), len(values) - 1)]
