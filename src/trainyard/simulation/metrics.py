"""Measures a running simulation: integrals with a constant cost per event, and summaries at the end.

Every measure is an integral over simulated time or a distribution over jobs; none looks at all nodes or all jobs while
the simulation runs. What the figures mean is said where each is defined; how they are drawn is charts.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil

from trainyard.scheduling.model import Slot

BUCKETS = 240  # of the time series over the time in which jobs arrive: as many as a chart can show
NARROWEST = 60.0  # seconds of one of them at least, however short the experiment
FAIR_SECONDS = 3600.0  # fairness is looked at hour by hour: over weeks everybody gets what they asked for
LARGE = 8  # a gang with more devices than this spans machines
BRIEF = 60.0  # seconds; slowdowns of jobs shorter than this count as if they had run so long
SIZES: tuple[tuple[str, int, int], ...] = (
    ("0", 0, 0),
    ("1", 1, 1),
    ("2-4", 2, 4),
    ("5-8", 5, 8),
    ("9-32", 9, 32),
    ("33+", 33, 10**9),
)


@dataclass(frozen=True, slots=True)
class Spreading:
    """A distribution in six numbers."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float

    @staticmethod
    def of(values: Iterable[float]) -> Spreading:
        """Summarise; percentiles are values that occur (nearest rank)."""
        ranked = sorted(values)
        if not ranked:
            return Spreading(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        p50, p95, p99 = (percentile(ranked, share) for share in (0.5, 0.95, 0.99))
        return Spreading(len(ranked), sum(ranked) / len(ranked), p50, p95, p99, ranked[-1])

    def as_dict(self) -> dict[str, float]:
        """For JSON, rounded to what is meant."""
        return {
            key: value if isinstance(value, int) else round(value, 3) for key, value in asdict(self).items()
        }


def percentile(ranked: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return ranked[max(0, ceil(share * len(ranked)) - 1)]


def size_class(devices: int) -> str:
    """`1`, `2-4` … by devices of all replicas."""
    return next(name for name, least, most in SIZES if least <= devices <= most)


class Area:
    """The integral of a step function over time, kept in buckets of equal width."""

    __slots__ = ("_since", "_width", "buckets", "value")

    def __init__(self, width: float) -> None:
        self.buckets: list[float] = [0.0]
        self.value = 0
        self._since = 0.0
        self._width = width

    def change(self, now: float, step: int) -> None:
        """From now on it is `step` higher."""
        self.advance(now)
        self.value += step

    def advance(self, now: float) -> None:
        """Count what has passed."""
        since = self._since
        if now <= since:
            return
        width = self._width
        buckets = self.buckets
        first, last = int(since / width), int(now / width)
        if last >= len(buckets):
            buckets.extend([0.0] * (last + 1 - len(buckets)))
        if self.value:
            if first == last:
                buckets[first] += self.value * (now - since)
            else:
                buckets[first] += self.value * ((first + 1) * width - since)
                for place in range(first + 1, last):
                    buckets[place] += self.value * width
                buckets[last] += self.value * (now - last * width)
        self._since = now

    def until(self, buckets: int) -> float:
        """The integral over the first buckets."""
        return sum(self.buckets[:buckets])


class Ledger:
    """Fairness between groups: each hour, what a group received of what it was entitled to.

    Entitled: the capacity shared out by weight, where nobody is given more than it asks for (water filling). The
    figure is Jain's: 1 where all got the same part of their due, 1/n where one of n got everything. Hours in which
    nobody waited say nothing and are left out.
    """

    def __init__(self, capacity: int, weights: Mapping[str, float], end: float) -> None:
        self._capacity = capacity
        self._weights = weights
        self._end = end
        self._next = FAIR_SECONDS
        self._groups: dict[str, list[float]] = {}  # running, waiting, since, received, demanded
        self._sum = 0.0
        self._hours = 0

    def change(self, group: str, now: float, running: int, waiting: int) -> None:
        """A group runs, and waits for, so many devices more."""
        if now >= self._next:
            self._close(now)
        entry = self._groups.get(group)
        if entry is None:
            entry = self._groups[group] = [0.0, 0.0, now, 0.0, 0.0]
        if now > entry[2]:
            _count(entry, now)
        entry[0] += running
        entry[1] += waiting

    def jain(self) -> float:
        """The mean over contended hours; 1 if there were none."""
        return self._sum / self._hours if self._hours else 1.0

    def _close(self, now: float) -> None:
        while self._next <= now:
            for entry in self._groups.values():
                _count(entry, self._next)
            if self._next <= self._end:
                self._judge()
            for entry in self._groups.values():
                entry[3] = entry[4] = 0.0
            self._next += FAIR_SECONDS

    def _judge(self) -> None:
        demands = {name: entry[4] for name, entry in self._groups.items() if entry[4] > 0}
        received = {name: self._groups[name][3] for name in demands}
        if len(demands) < 2 or sum(demands.values()) <= sum(received.values()) * (1 + 1e-9):
            return
        dues = fill(self._capacity * FAIR_SECONDS, demands, self._weights)
        parts = [min(1.0, received[name] / due) if due > 0 else 1.0 for name, due in dues.items()]
        squares = sum(part * part for part in parts)
        if squares > 0:
            self._sum += sum(parts) ** 2 / (len(parts) * squares)
            self._hours += 1


def _count(entry: list[float], now: float) -> None:
    span = now - entry[2]
    if span > 0:
        entry[3] += entry[0] * span
        entry[4] += (entry[0] + entry[1]) * span
        entry[2] = now


def fill(capacity: float, demands: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """Share out by weight; nobody gets more than the demand, and what is left over goes to the others."""
    dues: dict[str, float] = {}
    left = capacity
    # The one with the smallest demand for its weight is satisfied first.
    order = sorted(demands, key=lambda name: (demands[name] / max(weights.get(name, 1.0), 1e-9), name))
    total = sum(max(weights.get(name, 1.0), 1e-9) for name in order)
    for name in order:
        weight = max(weights.get(name, 1.0), 1e-9)
        dues[name] = min(demands[name], left * weight / total)
        left -= dues[name]
        total -= weight
    return dues


class Meter:
    """All integrals of one run. The simulator tells it what happens; `until` is the end of the window that counts."""

    def __init__(
        self,
        node_devices: Mapping[str, int],
        weights: Mapping[str, float],
        common: tuple[int, int],
        until: float,
    ) -> None:
        self.width = max(NARROWEST, until / BUCKETS)
        self.buckets = max(1, round(until / self.width))  # in the window
        self.until = self.width * self.buckets
        self.capacity = Area(self.width)
        self.busy = Area(self.width)
        self.queue = Area(self.width)  # workloads
        self.longest_queue = 0
        self.wanted = Area(self.width)  # devices that they ask for
        self.stranded = Area(
            self.width
        )  # free devices that the common large shape cannot use, while one waits
        self.contended = Area(self.width)  # 1 while one waits
        self._common = common
        self._common_waiting = 0
        self._strandedness = 0
        self._free: dict[str, int] = {}
        devices = sum(node_devices.values())
        self.workspaces = Ledger(devices, weights, self.until)
        self.users = Ledger(devices, {}, self.until)
        for name, count in node_devices.items():
            self.join(name, count, 0.0)

    def join(self, name: str, devices: int, now: float) -> None:
        """A node has come."""
        self._free[name] = 0
        self.capacity.change(now, devices)
        self._give(name, devices, now)

    def leave(self, name: str, devices: int, now: float) -> None:
        """An empty node has gone."""
        self._give(name, -devices, now)
        self.capacity.change(now, -devices)
        del self._free[name]

    def wait(self, group: tuple[str, str], shape: tuple[int, int], now: float, step: int) -> None:
        """A workload joins the queue (1) or leaves it (-1)."""
        devices = shape[0] * shape[1] * step
        self.queue.change(now, step)
        self.longest_queue = max(self.longest_queue, self.queue.value)
        self.wanted.change(now, devices)
        self.workspaces.change(group[0], now, 0, devices)
        self.users.change(group[1], now, 0, devices)
        if shape == self._common:
            self._common_waiting += step
            self.contended.change(now, (1 if self._common_waiting else 0) - self.contended.value)
            self._strand(now)

    def run(self, group: tuple[str, str], places: Iterable[Slot], now: float, step: int) -> None:
        """A workload takes its places (1) or gives them back (-1)."""
        devices = 0
        for slot in places:
            count = len(slot.devices)
            if count:
                devices += count
                self._give(slot.node, -count * step, now)
        if devices:
            self.busy.change(now, devices * step)
            self.workspaces.change(group[0], now, devices * step, 0)
            self.users.change(group[1], now, devices * step, 0)

    def _give(self, name: str, devices: int, now: float) -> None:
        each = self._common[1]
        before = self._free[name]
        self._free[name] = before + devices
        if each > 1:
            self._strandedness += (before + devices) % each - before % each
            if self._common_waiting:
                self._strand(now)

    def _strand(self, now: float) -> None:
        value = self._strandedness if self._common_waiting else 0
        if value != self.stranded.value:
            self.stranded.change(now, value - self.stranded.value)

    def advance(self, now: float) -> None:
        """The end: count what has passed everywhere."""
        for area in (self.capacity, self.busy, self.queue, self.wanted, self.stranded, self.contended):
            area.advance(now)
