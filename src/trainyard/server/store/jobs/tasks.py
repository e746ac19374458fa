"""Tasks: the replicas of one attempt of a workload, each on its node. Written by loops only, so they have no version."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from trainyard.server.records.tasks import TaskRecord
from trainyard.server.store.tables import tasks as table
from trainyard.server.store.tables import workloads
from trainyard.server.store.versioned_rows import chunks
from trainyard.spec.workload import HOLDING, State, TaskState

_NAMES = tuple(one.name for one in fields(TaskRecord))
_CHANGING = (
    "state",
    "exit_code",
    "reason",
    "message",
    "address",
    "started_at",
    "ended_at",
    "log_bytes",
    "was_told",
    "is_cleared",
)
_UPDATE = (
    update(table)
    .where(
        table.c.workload_id == bindparam("of_workload"),
        table.c.attempt == bindparam("of_attempt"),
        table.c.name == bindparam("of_name"),
    )
    .values({name: bindparam("new_" + name) for name in _CHANGING})
)


def insert_tasks(connection: Connection, records: Sequence[TaskRecord]) -> None:
    """Write the tasks of attempts that begin."""
    if records:
        connection.execute(insert(table), [_values(record) for record in records])


def save_tasks(connection: Connection, records: Sequence[TaskRecord]) -> None:
    """Write what can change of each task: not its node and devices."""
    rows = [
        {
            "of_workload": record.workload_id,
            "of_attempt": record.attempt,
            "of_name": record.name,
            **{"new_" + name: getattr(record, name) for name in _CHANGING},
            "new_state": record.state.value,
        }
        for record in records
    ]
    for part in chunks(rows):
        connection.execute(_UPDATE, part)


def tasks(connection: Connection, workload_id: str, attempt: int | None = None) -> list[TaskRecord]:
    """The tasks of one attempt in the order of their ranks; without `attempt`, of all attempts, oldest first."""
    query = select(table).where(table.c.workload_id == workload_id)
    if attempt is not None:
        query = query.where(table.c.attempt == attempt)
    return [_record(row) for row in connection.execute(query.order_by(table.c.attempt, table.c.rank))]


def tasks_of(connection: Connection, attempts: Iterable[tuple[str, int]]) -> dict[str, list[TaskRecord]]:
    """The tasks of many workloads, each of one attempt, by workload."""
    wanted = dict(attempts)
    found: dict[str, list[TaskRecord]] = {id: [] for id in wanted}  # noqa: A001  # the column's name
    for part in chunks(wanted):
        query = select(table).where(table.c.workload_id.in_(part)).order_by(table.c.workload_id, table.c.rank)
        for row in connection.execute(query):
            if row.attempt == wanted[row.workload_id]:
                found[row.workload_id].append(_record(row))
    return found


def tasks_of_all_attempts(connection: Connection, ids: Iterable[str]) -> dict[str, list[TaskRecord]]:
    """The tasks of many workloads, of all their attempts, oldest first, by workload."""
    found: dict[str, list[TaskRecord]] = {}
    for part in chunks(ids):
        query = select(table).where(table.c.workload_id.in_(part))
        for row in connection.execute(query.order_by(table.c.workload_id, table.c.attempt, table.c.rank)):
            found.setdefault(row.workload_id, []).append(_record(row))
    return found


def tasks_holding(connection: Connection, states: Collection[State] = HOLDING) -> dict[str, list[TaskRecord]]:
    """The tasks of the present attempt of every workload in these states, by workload."""
    query = (
        select(table)
        .join(workloads, (workloads.c.id == table.c.workload_id) & (workloads.c.attempt == table.c.attempt))
        .where(workloads.c.state.in_([state.value for state in states]))
        .order_by(table.c.workload_id, table.c.rank)
    )
    found: dict[str, list[TaskRecord]] = {}
    for row in connection.execute(query):
        found.setdefault(row.workload_id, []).append(_record(row))
    return found


def tasks_on(connection: Connection, node: str) -> list[TaskRecord]:
    """Tasks on a node of which something may be left: all that are not cleared."""
    query = select(table).where(table.c.node == node, table.c.is_cleared.is_(False))
    return [_record(row) for row in connection.execute(query.order_by(table.c.workload_id, table.c.rank))]


def tasks_held_on(connection: Connection, node: str, since: float) -> list[TaskRecord]:
    """Tasks that were started on a node and may have had a place there after a moment."""
    is_late = (
        table.c.ended_at.is_(None)
        | (table.c.ended_at >= since)
        | workloads.c.ended_at.is_(None)
        | (workloads.c.ended_at >= since)
    )
    query = select(table).join(workloads, workloads.c.id == table.c.workload_id)
    query = query.where(table.c.node == node, table.c.started_at.is_not(None), is_late)
    return [_record(row) for row in connection.execute(query)]


def _values(record: TaskRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in _NAMES}
    values["devices"] = list(record.devices)
    values["state"] = record.state.value
    return values


def _record(row: Row[Any]) -> TaskRecord:
    values = dict(row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
    values["devices"] = tuple(values["devices"])
    values["state"] = TaskState(values["state"])
    return TaskRecord(**values)
