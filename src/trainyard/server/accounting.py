"""What a job has used and what that costs, by day. Pure: from its tasks as they ran, however often it is worked out.

Counted is what was held, not what was done with it; how much of it lay idle is told beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from trainyard.server.store.usage import UseRecord
from trainyard.server.store.workloads import TaskRecord, WorkloadRecord
from trainyard.spec.workload import State, role_of

DAY = 86400
HOUR = 3600.0
GIB_IN_MIB = 1024.0

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
        if task.started_at is None:
            continue
        role = role_of(record.spec, task.role)
        kind = (role.device or device_of(task.node)) if task.devices else ""
        for day, seconds in _days(task.started_at, _until(record, task, task.started_at, now)):
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
    device = prices.devices.get(kind, prices.devices.get("", 0.0)) if kind else 0.0
    return (
        device_seconds * device + cpu_seconds * prices.cpu + memory_mib_seconds / GIB_IN_MIB * prices.memory
    ) / HOUR


def _until(record: WorkloadRecord, task: TaskRecord, begin: float, now: float) -> float:
    """Until when a task has held its places: to its end, or as long as they are kept for a look."""
    is_last = task.attempt == record.attempt
    if is_last and record.spec.retain_seconds and task.ended_at is not None and record.state in _KEEPING:
        return record.ended_at if record.ended_at is not None else now
    if task.ended_at is not None:
        return task.ended_at
    if not is_last:  # its end was never heard of, and nobody knows when it was: the benefit of the doubt
        return begin
    return now if record.ended_at is None else record.ended_at


def _days(begin: float, end: float) -> Iterable[tuple[int, float]]:
    """(day, seconds) of a stretch of time."""
    while begin < end:
        day = int(begin // DAY)
        stop = min(end, (day + 1) * float(DAY))
        yield day, stop - begin
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
