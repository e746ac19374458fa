"""How long jobs took from one state to the next, as a histogram counted by the database. Which names it gets is prometheus_text.py's."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import ColumnElement, Connection, case, func, select

from trainyard.server.records.latencies import BOUNDS, FINISHED, RUNNING, Histogram
from trainyard.server.store.tables import workloads


def state_changes(connection: Connection) -> Mapping[str, Histogram]:
    """By the state that was reached: from the submission to the first start, and from there to the end."""
    columns = workloads.c
    return {
        RUNNING: _measured(connection, columns.first_started_at, columns.submitted_at),
        FINISHED: _measured(connection, columns.ended_at, columns.first_started_at),
    }


def _measured(connection: Connection, until: ColumnElement[float], since: ColumnElement[float]) -> Histogram:
    # A clock that was set back between the two must not make a time below none.
    taken = case((until > since, until - since), else_=0.0)
    below = [func.count(case((taken <= bound, 1))) for bound in BOUNDS]
    query = select(func.count(), func.coalesce(func.sum(taken), 0.0), *below)
    row = connection.execute(query.where(until.is_not(None), since.is_not(None))).one()
    return Histogram(tuple(row[2:]), row[0], row[1])
