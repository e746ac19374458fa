"""The means of readings over one step of time, and how two of them become one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STEPS = (10, 60, 3600)
KEPT_SECONDS: Mapping[int, float] = {10: 2 * 3600.0, 60: 3 * 86400.0, 3600: 400 * 86400.0}
NODE = "node:"
OWN_NETWORK = (
    "own_network"  # 1 where "in" and "out" are the task's; else they are all that its node received and sent
)
Values = Mapping[str, Any]  # name → mean; "devices": {index: {name: mean}}


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """Means of one subject over one step."""

    subject: str
    step: int
    time: int
    count: int
    values: Values


def task_subject(attempt_id: str, task: str) -> str:
    """What a task's rows are kept under."""
    return f"{attempt_id}/{task}"


def node_subject(node: str) -> str:
    """What a node's rows are kept under."""
    return f"{NODE}{node}"


def merged(one: SampleRecord, other: SampleRecord) -> SampleRecord:
    """The means of both together."""
    total = one.count + other.count
    values = _merged(one.values, other.values, one.count / total, other.count / total)
    return SampleRecord(one.subject, one.step, one.time, total, values)


def _merged(one: Values, other: Values, share: float, rest: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in {**one, **other}:
        left, right = one.get(name), other.get(name)
        if left is None or right is None:  # a driver that was silent says nothing of the mean
            found[name] = right if left is None else left
        elif isinstance(left, Mapping):
            found[name] = _merged(left, right, share, rest)
        else:
            found[name] = round(left * share + right * rest, 3)
    return found
