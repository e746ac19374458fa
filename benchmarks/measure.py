"""What every benchmark uses: rows of the table, rounds that take turns, and how much of the machine was somebody else's.

A figure alone says little on a shared machine. So ours and the rival's are taken in turn, in the same run, and what
counts is the ratio of their medians.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from trainyard.lib.tables import cells

MARK = "BENCHMARK_OF_TRAINYARD"  # in the environment of everything that a benchmark starts; local machines keep it
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: our figure, theirs (a rival's or a limit), and how large the ratio may be."""

    case: str
    ours: float
    against: str
    theirs: float | None = None  # None: not measured here, and `note` says why
    unit: str = "s"
    bar: float | None = None  # ours / theirs at most; None: only for information
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours as a multiple of theirs."""
        return self.ours / self.theirs if self.theirs else None

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is met; None where there is none, or nothing was measured."""
        return None if self.bar is None or self.ratio is None else self.ratio <= self.bar

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {**asdict(self), "ratio": self.ratio, "met": self.is_met}


@dataclass(slots=True)
class Report:
    """The rows of one benchmark, and the share of the processors that was used by others meanwhile."""

    name: str
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    foreign: float = 0.0  # of all processors, 0 to 1


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def take_turns(works: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Each work once a round; who begins changes from round to round. The works time themselves."""
    names = list(works)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name].append(works[name]())
    return samples


def medians(samples: Mapping[str, list[float]]) -> dict[str, float]:
    """The middle of each."""
    return {name: statistics.median(values) for name, values in samples.items()}


def middle_of(work: Callable[[], float], times: int) -> float:
    """The median of some calls in a row: one sample of something very short."""
    return statistics.median(work() for _ in range(times))


@contextmanager
def watched(report: Report) -> Iterator[None]:
    """Note how long it took and how much processor time went to others."""
    start, busy, own = time.perf_counter(), _busy_seconds(), _own_seconds()
    try:
        yield
    finally:
        report.seconds = time.perf_counter() - start
        used = _busy_seconds() - busy - max(0.0, _own_seconds() - own)
        report.foreign = min(1.0, max(0.0, used / (report.seconds * (os.cpu_count() or 1))))


def _busy_seconds() -> float:
    """Processor time used by anybody since boot."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, interrupt, soft, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + interrupt + soft) / _TICK


def _own_seconds() -> float:
    """Processor time of this process, its descendants, and what carries the mark; with their ended children.

    NB: what ends as an orphan of a marked process is nobody's any more and counts as foreign: an upper limit.
    """
    parents, times = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()
        except OSError:  # gone meanwhile
            continue
        parents[int(name)] = int(words[1])
        times[int(name)] = sum(map(int, words[11:15])) / _TICK
    mine = {pid for pid in parents if pid == os.getpid() or _is_marked(pid)}
    return sum(seconds for pid, seconds in times.items() if _descends(pid, parents, mine))


def _descends(pid: int, parents: Mapping[int, int], mine: set[int]) -> bool:
    while pid:
        if pid in mine:
            return True
        pid = parents.get(pid, 0)
    return False


def _is_marked(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={os.getpid()}\0".encode() in file.read()
    except OSError:  # gone, or somebody else's
        return False


def render(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()
) -> str:
    """A table as text: columns as wide as their longest cell, those of `right` set to the right."""
    table = [list(map(str, row)) for row in (header, *rows)]
    widths = [max(cells(row[column]) for row in table) for column in range(len(header))]
    lines = []
    for row in table:
        gaps = [" " * (width - cells(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = [
            gap + cell if i in right else cell + gap
            for i, (cell, gap) in enumerate(zip(row, gaps, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
