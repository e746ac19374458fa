"""What a job has used and what that costs, by day; and what a machine of a pool cost. Pure, however often it is worked out.

Counted is what was held, not what was done with it; how much of it lay idle is told beside it. Of a job, prices are those that
an administrator set; of a machine, the provider's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from trainyard.server.records.costs import MachineDay, UseRecord
from trainyard.server.records.pools import MachineRecord
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import State, role_of

DAY = 86400
HOUR = 3600.0
GIB_IN_MIB = 1024.0

CLEARED_SECONDS = 600.0  # after them, nothing of a job that was kept for a look is left

# States in which places may be kept after the program's end, or were.
_KEEPING = frozenset({State.RETAINED, State.FINISHING, State.SUCCEEDED, State.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of an hour."""

    currency: str = "CNY"
    devices: Mapping[str, float] = field(default_factory=dict)  # by type; "": of any other
    cpu: float = 0.0  # of a core
    memory: float = 0.0  # of a GiB


def uses_of(
    record: WorkloadRecord,
    tasks: Iterable[TaskRecord],
    *,
    now: float,
    prices: Prices,
    device_of: Callable[[str], str] = lambda _node: "",
    idle: Mapping[int, float] | None = None,
) -> list[UseRecord]:
    """The days of a job; processors and memory stand with the first type of device. `device_of` is the type of a node's devices; `idle`, seconds of idle devices by day."""
    found: dict[tuple[int, str], list[float]] = {}
    for task in tasks:
        stretch = held_by(record, task, now)
        if stretch is None:
            continue
        role = role_of(record.spec, task.role)
        kind = (role.device or device_of(task.node)) if task.devices else ""
        for day, seconds in _days(*stretch):
            row = found.setdefault((day, kind), [0.0, 0.0, 0.0])
            row[0] += len(task.devices) * seconds
            row[1] += role.cpu * seconds
            row[2] += role.memory_mib * seconds
    made = []
    told: set[int] = set()
    for (day, kind), (devices, cpu, memory) in sorted(
        found.items(), key=lambda one: (one[0][0], not one[0][1])
    ):
        lying = 0.0
        if kind and day not in told:
            told.add(day)
            lying = min((idle or {}).get(day, 0.0), devices)
        made.append(
            UseRecord(
                workload_id=record.id,
                workspace_id=record.workspace_id,
                user_id=record.user_id,
                day=day,
                device_type=kind,
                device_seconds=round(devices, 3),
                idle_device_seconds=round(lying, 3),
                cpu_seconds=round(cpu, 3),
                memory_mib_seconds=round(memory, 3),
                cost=round(cost_of(prices, kind, devices, cpu, memory), 6),
            )
        )
    return made


def cost_of(
    prices: Prices, kind: str, device_seconds: float, cpu_seconds: float, memory_mib_seconds: float
) -> float:
    """In the currency of the prices."""
    device = prices.devices.get(kind, prices.devices.get("", 0.0))
    return (
        device_seconds * device + cpu_seconds * prices.cpu + memory_mib_seconds / GIB_IN_MIB * prices.memory
    ) / HOUR


def held_by(record: WorkloadRecord, task: TaskRecord, now: float) -> tuple[float, float] | None:
    """From when to when a task has held its places; None: it has not started."""
    if task.started_at is None:
        return None
    return task.started_at, _until(record, task, task.started_at, now)


def machine_days(
    row: MachineRecord, held: Iterable[tuple[float, float]], *, now: float, first_day: int = 0
) -> list[MachineDay]:
    """The days of a machine since `first_day`. `held`: from when to when tasks had places there, in any order."""
    busy = _merged(held)
    joined = float("inf") if row.joined_at is None else row.joined_at
    found: dict[int, list[float]] = {}
    for begin, end, price in row.stretches(now):
        begin = max(begin, first_day * float(DAY))  # noqa: PLW2901  # what is older is in the books
        for start, stop in _pieces(begin, end):
            used = sum(max(0.0, min(stop, b) - max(start, a)) for a, b in busy)
            before = sum(max(0.0, min(stop, b, joined) - max(start, a)) for a, b in busy)
            starting = max(0.0, min(stop, joined) - start) - before
            sums = found.setdefault(int(start // DAY), [0.0, 0.0, 0.0, 0.0])
            parts = (used, stop - start - used - starting, starting)
            sums[0] += stop - start
            for place, seconds in enumerate(parts, start=1):
                sums[place] += seconds * price / HOUR
    return [
        MachineDay(
            machine=row.name,
            day=day,
            pool=row.pool,
            currency=row.currency,
            seconds=round(seconds, 3),
            used_cost=round(used, 6),
            idle_cost=round(max(0.0, idle), 6),
            starting_cost=round(starting, 6),
        )
        for day, (seconds, used, idle, starting) in sorted(found.items())
    ]


def _merged(stretches: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time, without overlaps."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(stretches):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _until(record: WorkloadRecord, task: TaskRecord, begin: float, now: float) -> float:
    """Until when a task has held its places: to its end, or as long as they are kept for a look."""
    is_last = task.attempt == record.attempt
    if is_last and record.spec.retain_seconds and task.ended_at is not None and record.state in _KEEPING:
        # NB: never longer than was asked for, whatever the clock was set to meanwhile.
        kept_until = (
            max(task.ended_at, record.stopped_at or 0.0) + record.spec.retain_seconds + CLEARED_SECONDS
        )
        return min(record.ended_at if record.ended_at is not None else now, kept_until)
    if task.ended_at is not None:
        return task.ended_at
    if not is_last:  # its end was never heard of, and nobody knows when it was: the benefit of the doubt
        return begin
    return now if record.ended_at is None else record.ended_at


def _days(begin: float, end: float) -> Iterable[tuple[int, float]]:
    """(day, seconds) of a stretch of time."""
    for start, stop in _pieces(begin, end):
        yield int(start // DAY), stop - start


def _pieces(begin: float, end: float) -> Iterable[tuple[float, float]]:
    """A stretch of time, cut where days begin."""
    while begin < end:
        stop = min(end, (int(begin // DAY) + 1) * float(DAY))
        yield begin, stop
        begin = stop


def month_of(time: float) -> int:
    """yyyymm, in UTC."""
    at = datetime.fromtimestamp(time, UTC)
    return at.year * 100 + at.month


def days_of(month: int) -> range:
    """The days of a month, as numbers since 1970. ValueError for a month there is not."""
    year, number = divmod(month, 100)
    first = date(year, number, 1)
    after = date(year + number // 12, number % 12 + 1, 1)
    epoch = date(1970, 1, 1)
    return range((first - epoch).days, (after - epoch).days)
