"""Jobs that are submitted by the clock: when, what, whose, and what became of the last time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from trainyard.lib.errors import StaleError
from trainyard.server.records.schedules import ScheduleRecord
from trainyard.server.store.jobs import specs
from trainyard.server.store.tables import schedules


def insert_schedule(connection: Connection, record: ScheduleRecord) -> None:
    """Write a new one."""
    connection.execute(insert(schedules), _values(record))


def save_schedule(connection: Connection, record: ScheduleRecord) -> ScheduleRecord:
    """Write what changed, if the stored version is still this one's; else StaleError."""
    values = {**_values(record), "version": record.version + 1}
    query = update(schedules).where(schedules.c.id == record.id, schedules.c.version == record.version)
    if connection.execute(query.values(values)).rowcount != 1:
        raise StaleError(f"The schedule {record.id} has changed meanwhile.", hint="Load it again.")
    return _record({**values, "spec": values["spec"]})


def remove_schedule(connection: Connection, schedule_id: str) -> None:
    """Forget one."""
    connection.execute(delete(schedules).where(schedules.c.id == schedule_id))


def list_schedules(
    connection: Connection, workspace_ids: Collection[str] | None = None
) -> list[ScheduleRecord]:
    """Those of these workspaces (None: all), by name."""
    query = select(schedules).order_by(schedules.c.name, schedules.c.id)
    if workspace_ids is not None:
        query = query.where(schedules.c.workspace_id.in_(list(workspace_ids)))
    return [_record(row._mapping) for row in connection.execute(query)]  # noqa: SLF001  # SQLAlchemy's documented way


def find_schedule(connection: Connection, schedule_id: str, *, lock: bool = False) -> ScheduleRecord | None:
    """One by its id. `lock`: nobody writes it before we do."""
    query = select(schedules).where(schedules.c.id == schedule_id)
    row = connection.execute(query.with_for_update() if lock else query).first()
    return None if row is None else _record(row._mapping)  # noqa: SLF001  # as above


def due_schedules(connection: Connection, now: float, *, limit: int = 100) -> list[str]:
    """Ids of those whose time has come, the longest due first."""
    query = select(schedules.c.id).where(schedules.c.is_active.is_(True), schedules.c.next_at <= now)
    return list(connection.execute(query.order_by(schedules.c.next_at).limit(limit)).scalars())


def planned(connection: Connection) -> list[tuple[str, str, str, float, float | None]]:
    """Id, times, time zone, next and last moment of those that wait for a moment."""
    columns = (
        schedules.c.id,
        schedules.c.cron,
        schedules.c.timezone,
        schedules.c.next_at,
        schedules.c.last_at,
    )
    query = select(*columns).where(schedules.c.is_active.is_(True), schedules.c.next_at.is_not(None))
    return [(row[0], row[1], row[2], row[3], row[4]) for row in connection.execute(query)]


def _values(record: ScheduleRecord) -> dict[str, Any]:
    values = {column.name: getattr(record, column.name) for column in schedules.c if column.name != "spec"}
    return {**values, "spec": specs.encode(record.spec)}


def _record(row: Mapping[Any, Any]) -> ScheduleRecord:
    return ScheduleRecord(**{**row, "spec": specs.spec_of(row["spec"])})
