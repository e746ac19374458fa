"""Readings of tasks and nodes, rolled up to steps of 10 seconds, a minute and an hour.

A row holds means and how many readings they are of, so that one more reading, or a repeated roll-up, needs no other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, insert, select, update

from trainyard.server.records.samples import KEPT_SECONDS, STEPS, SampleRecord, Values, merged, node_subject
from trainyard.server.store.tables import samples
from trainyard.server.store.versioned_rows import chunks

LAST_TIME = 2**31 - 1.0  # the column's: 2038

Key = tuple[str, int, int]  # subject, step, time

_REPLACE = (
    update(samples)
    .where(
        samples.c.subject == bindparam("old_subject"),
        samples.c.step == bindparam("old_step"),
        samples.c.time == bindparam("old_time"),
    )
    .values(
        {
            "count": bindparam("new_count"),
            "readings": bindparam("new_readings", type_=samples.c.readings.type),
        }
    )
)


def add(connection: Connection, readings: Iterable[tuple[str, float, Values]]) -> None:
    """Add (subject, time, values) to the rows of all steps."""
    new: dict[Key, SampleRecord] = {}
    for subject, time, values in readings:
        for step in STEPS:
            key = (subject, step, int(time) // step * step)
            known = new.get(key)
            one = SampleRecord(*key, 1, values)
            new[key] = one if known is None else merged(known, one)
    there = _find(connection, new)
    fresh, known_rows = [], []
    for key, record in new.items():
        if key in there:
            both = merged(there[key], record)
            known_rows.append({**_key(key), "new_count": both.count, "new_readings": dict(both.values)})
        else:
            fresh.append(_row(record))
    if known_rows:
        connection.execute(_REPLACE, known_rows)
    if fresh:
        connection.execute(insert(samples), fresh)


def _find(connection: Connection, keys: Iterable[Key]) -> dict[Key, SampleRecord]:
    c, found = samples.c, dict[Key, SampleRecord]()
    subjects: dict[tuple[int, int], list[str]] = {}  # all that came together share a few steps
    for subject, step, time in keys:
        subjects.setdefault((step, time), []).append(subject)
    for (step, time), several in subjects.items():
        for part in chunks(several):
            query = select(samples).where(c.step == step, c.time == time, c.subject.in_(part))
            found |= {(row.subject, step, time): _record(row) for row in connection.execute(query)}
    return found


def _key(key: Key) -> dict[str, str | int]:
    return {"old_subject": key[0], "old_step": key[1], "old_time": key[2]}


def of_job(
    connection: Connection, workload_id: str, *, step: int, since: float, until: float
) -> list[SampleRecord]:
    """Of all tasks of all attempts of a job, the oldest first."""
    # All that begins with "<id>.": the letter after the full stop is the slash.
    c = samples.c
    which = (c.subject >= f"{workload_id}.", c.subject < f"{workload_id}/")
    return _between(connection, which, step, since, until)


def of_node(
    connection: Connection, node: str, *, step: int, since: float, until: float
) -> list[SampleRecord]:
    """Of a node, the oldest first."""
    return _between(connection, (samples.c.subject == node_subject(node),), step, since, until)


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
    connection: Connection, which: Sequence[ColumnElement[bool]], step: int, since: float, until: float
) -> list[SampleRecord]:
    c = samples.c
    # Any time may be asked for; those of rows are from 0 to the last that the column takes.
    begin, end = (int(min(max(0.0, time), LAST_TIME)) for time in (since, until))
    query = (
        select(samples)
        .where(*which, c.step == step, c.time > begin - step, c.time <= end)
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
