"""Readings as DLC's clients ask for them: eight types, a step of their own, a value for each pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.client.schemas import MetricsAnswer, MetricSeries
from trainyard.lib.errors import InvalidError
from trainyard.lib.units import parse_duration
from trainyard.server.api.dlc.views import pod_id
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import RoleSpec, role_of

# What each type is among ours. Shares of what a pod asked for, or a device has, come as percent, rates as bytes by the second.
TYPES: Mapping[str, str] = {
    "GpuCoreUsage": "gpu", "GpuMemoryUsage": "gpu_memory", "CpuCoreUsage": "cpu", "MemoryUsage": "memory",
    "NetworkInputRate": "in", "NetworkOutputRate": "out", "DiskReadRate": "read", "DiskWriteRate": "write",
}  # fmt: skip
STEP_SECONDS = 300
SPAN_SECONDS = 3600.0


def metric_of(name: str) -> str:
    """Our metric; InvalidError where there is none of that type."""
    try:
        return TYPES[name]
    except KeyError:
        raise InvalidError(
            f"MetricType {name!r} is unknown.", hint=f"Choose one of {', '.join(TYPES)}."
        ) from None


def step_of(text: str) -> int:
    """The seconds of a TimeStep such as 5m."""
    if not text:
        return STEP_SECONDS
    try:
        seconds = round(parse_duration(text).total_seconds())
    except ValueError as error:
        raise InvalidError(f"TimeStep {text!r} is no length of time.", hint="Write it like 5m.") from error
    if seconds < 1:
        raise InvalidError(f"TimeStep {text!r} is too short.", hint="Write it like 5m.")
    return seconds


def pod_metrics(record: WorkloadRecord, found: MetricsAnswer, step: int) -> list[dict[str, Any]]:
    """The readings of each pod of the last attempt, as means over the caller's step."""
    by_task: dict[str, list[MetricSeries]] = {}
    for one in found.series:
        if one.attempt == record.attempt:
            by_task.setdefault(one.task, []).append(one)
    return [
        {"PodId": pod_id(record.id, task), "Metrics": _points(record, task, series, step)}
        for task, series in by_task.items()
    ]


def _points(
    record: WorkloadRecord, task: str, several: Sequence[MetricSeries], step: int
) -> list[dict[str, float]]:
    buckets: dict[int, list[float]] = {}
    for series in several:  # of several devices, their mean
        for time, value in series.points:
            buckets.setdefault(int(time) // step * step, []).append(_shown(record, task, series, value))
    return [
        {"Time": time * 1000, "Value": round(sum(values) / len(values), 2)}
        for time, values in sorted(buckets.items())
    ]


def _shown(record: WorkloadRecord, task: str, series: MetricSeries, value: float) -> float:
    whole = series.most or _whole(role_of(record.spec, task.rpartition("-")[0]), series.metric)
    return 100 * value / whole if whole else value


def _whole(role: RoleSpec, metric: str) -> float:
    """What 100 percent are; 0: the reading is shown as it is."""
    return {"cpu": role.cpu, "memory": float(role.memory_mib)}.get(metric, 0.0)
