"""Readings of tasks and nodes, rolled up to steps of 10 seconds, a minute and an hour.

A row holds means and how many readings they are of, so that one more reading, or a repeated roll-up, needs no other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, or_, select, update

from trainyard.server.tables import samples

STEPS = (10, 60, 3600)
KEPT_SECONDS: Mapping[int, float] = {10: 2 * 3600.0, 60: 3 * 86400.0, 3600: 400 * 86400.0}
NODE = "node:"
BATCH = 200  # keys in one question

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


def add(connection: Connection, readings: Iterable[tuple[str, float, Values]]) -> None:
    """Add (subject, time, values) to the rows of all steps."""
    new: dict[tuple[str, int, int], SampleRecord] = {}
    for subject, time, values in readings:
        for step in STEPS:
            key = (subject, step, int(time) // step * step)
            known = new.get(key)
            one = SampleRecord(*key, 1, values)
            new[key] = one if known is None else merged(known, one)
    keys = list(new)
    there: dict[tuple[str, int, int], SampleRecord] = {}
    for begin in range(0, len(keys), BATCH):
        there |= _find(connection, keys[begin : begin + BATCH])
    fresh = []
    for key, record in new.items():
        if key in there:
            _replace(connection, merged(there[key], record))
        else:
            fresh.append(_row(record))
    if fresh:
        connection.execute(insert(samples), fresh)


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


def _find(
    connection: Connection, keys: Sequence[tuple[str, int, int]]
) -> dict[tuple[str, int, int], SampleRecord]:
    c = samples.c
    wanted = or_(*(and_(c.subject == one, c.step == step, c.time == time) for one, step, time in keys))
    return {
        (row.subject, row.step, row.time): _record(row)
        for row in connection.execute(select(samples).where(wanted))
    }


def _replace(connection: Connection, record: SampleRecord) -> None:
    c = samples.c
    connection.execute(
        update(samples)
        .where(c.subject == record.subject, c.step == record.step, c.time == record.time)
        .values(count=record.count, readings=dict(record.values))
    )


def of_job(
    connection: Connection, workload_id: str, *, step: int, since: float, until: float
) -> list[SampleRecord]:
    """Of all tasks of all attempts of a job, the oldest first."""
    # All that begins with "<id>.": the letter after the full stop is the slash.
    return _between(connection, f"{workload_id}.", f"{workload_id}/", step, since, until)


def of_node(
    connection: Connection, node: str, *, step: int, since: float, until: float
) -> list[SampleRecord]:
    """Of a node, the oldest first."""
    subject = node_subject(node)
    return _between(connection, subject, subject + "\0", step, since, until)


def idle_seconds(connection: Connection, workload_id: str, every: float) -> dict[int, float]:
    """For how long devices of a job did nothing, by day: one for two hours counts as two for one. `every`: between readings."""
    c, found = samples.c, dict[int, float]()
    query = select(c.time, c["count"].label("number"), c.readings).where(
        c.subject >= f"{workload_id}.", c.subject < f"{workload_id}/", c.step == STEPS[-1]
    )
    for row in connection.execute(query):
        idle = row.readings.get("idle") or 0.0
        found[row.time // 86400] = found.get(row.time // 86400, 0.0) + idle * row.number * every
    return found


def latest(connection: Connection, since: float) -> list[SampleRecord]:
    """The newest short step of every subject that was heard of since then."""
    c = samples.c
    rows = connection.execute(
        select(samples).where(c.step == STEPS[0], c.time >= int(since)).order_by(c.time)
    )
    return list({row.subject: _record(row) for row in rows}.values())


def delete_before(connection: Connection, now: float) -> None:
    """Remove what is older than its step is kept."""
    c = samples.c
    for step, kept in KEPT_SECONDS.items():
        connection.execute(delete(samples).where(c.step == step, c.time < int(now - kept)))


def _between(
    connection: Connection, first: str, end: str, step: int, since: float, until: float
) -> list[SampleRecord]:
    c = samples.c
    query = (
        select(samples)
        .where(
            c.subject >= first,
            c.subject < end,
            c.step == step,
            c.time > int(since) - step,
            c.time <= int(until),
        )
        .order_by(c.time, c.subject)
    )
    return [_record(row) for row in connection.execute(query)]


def _record(row: Any) -> SampleRecord:
    return SampleRecord(row.subject, row.step, row.time, row.count, row.readings)


def _row(record: SampleRecord) -> dict[str, Any]:
    return {
        "subject": record.subject,
        "step": record.step,
        "time": record.time,
        "count": record.count,
        "readings": dict(record.values),
    }
