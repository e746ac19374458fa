"""What jobs still wait for: one row for each job that has to end first. A need that is met has no row any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select

from trainyard.server.records.dependencies import EndedNeed, NeedRecord
from trainyard.server.store.tables import dependencies, workloads
from trainyard.server.store.versioned_rows import chunks
from trainyard.spec.workload import FINAL, Condition, State


def insert_needs(connection: Connection, needs: Collection[NeedRecord]) -> None:
    """Write what new jobs wait for."""
    if needs:
        connection.execute(
            insert(dependencies),
            [
                {"workload_id": one.workload_id, "needs_id": one.needs_id, "condition": one.condition.value}
                for one in needs
            ],
        )


def needs_of(connection: Connection, workload_id: str) -> list[NeedRecord]:
    """What a job still waits for."""
    query = select(dependencies).where(dependencies.c.workload_id == workload_id)
    return [NeedRecord(row[0], row[1], Condition(row[2])) for row in connection.execute(query)]


def counts(connection: Connection, workload_ids: Iterable[str]) -> dict[str, int]:
    """How many jobs each of these still waits for."""
    found: dict[str, int] = {}
    for part in chunks(set(workload_ids)):
        query = select(dependencies.c.workload_id, func.count()).where(dependencies.c.workload_id.in_(part))
        found.update(
            {row[0]: row[1] for row in connection.execute(query.group_by(dependencies.c.workload_id))}
        )
    return found


def are_any(connection: Connection) -> bool:
    """Whether any job waits for another."""
    return connection.execute(select(dependencies.c.needs_id).limit(1)).first() is not None


def ended_needs(connection: Connection, *, limit: int = 10_000) -> list[EndedNeed]:
    """Needs whose jobs have ended, or are gone without a trace."""
    query = (
        select(
            dependencies.c.workload_id, dependencies.c.needs_id, dependencies.c.condition, workloads.c.state
        )
        .select_from(dependencies.outerjoin(workloads, workloads.c.id == dependencies.c.needs_id))
        .where(or_(workloads.c.id.is_(None), workloads.c.state.in_([state.value for state in FINAL])))
        .order_by(dependencies.c.workload_id)
        .limit(limit)
    )
    return [
        EndedNeed(NeedRecord(row[0], row[1], Condition(row[2])), None if row[3] is None else State(row[3]))
        for row in connection.execute(query)
    ]


def delete_needs(connection: Connection, pairs: Iterable[tuple[str, str]]) -> None:
    """Forget needs: they are met, or the job that had them is over."""
    rows = [{"old_workload": workload, "old_needed": needed} for workload, needed in pairs]
    if rows:
        connection.execute(_DELETE, rows)


_DELETE = delete(dependencies).where(
    dependencies.c.workload_id == bindparam("old_workload"),
    dependencies.c.needs_id == bindparam("old_needed"),
)


__all__ = [
    "are_any",
    "counts",
    "delete_needs",
    "ended_needs",
    "insert_needs",
    "needs_of",
]
