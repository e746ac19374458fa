"""What the drivers of tasks' devices said last: one row for each task, written over. Means over time are samples.py's."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from trainyard.server.records.device_figures import Figures
from trainyard.server.store.tables import device_figures
from trainyard.server.store.versioned_rows import chunks

KEPT_SECONDS = 3600.0


_REPLACE = (
    update(device_figures)
    .where(device_figures.c.subject == bindparam("old_subject"))
    .values(
        {
            "time": bindparam("new_time"),
            "figures": bindparam("new_figures", type_=device_figures.c.figures.type),
        }
    )
)


def put(connection: Connection, told: Mapping[str, tuple[float, Figures]]) -> None:
    """Write subject → (time, figures) over what is there."""
    c = device_figures.c
    there: set[str] = set()
    for part in chunks(told):
        there |= set(connection.scalars(select(c.subject).where(c.subject.in_(part))))
    old = [
        {"old_subject": subject, "new_time": time, "new_figures": dict(figures)}
        for subject, (time, figures) in told.items()
        if subject in there
    ]
    new = [
        {"subject": subject, "time": time, "figures": dict(figures)}
        for subject, (time, figures) in told.items()
        if subject not in there
    ]
    if old:
        connection.execute(_REPLACE, old)
    if new:
        connection.execute(insert(device_figures), new)


def since(connection: Connection, time: float) -> dict[str, Figures]:
    """What was told since then, by subject."""
    c = device_figures.c
    rows = connection.execute(select(c.subject, c.figures).where(c.time >= time))
    return {row.subject: row.figures for row in rows}


def delete_before(connection: Connection, now: float) -> None:
    """Remove what nobody shows any more."""
    connection.execute(delete(device_figures).where(device_figures.c.time < now - KEPT_SECONDS))
