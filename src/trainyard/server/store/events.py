"""Events: appended, never changed. Numbers go up, and a reader who goes on from one misses none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, insert, or_, select, text

from trainyard.server.store.tables import events
from trainyard.spec.events import Event

# PostgreSQL gives out numbers before the commit, so that 12 may be seen before 11. Writers share this lock until they
# commit; a reader takes it alone for a moment, so that nobody is between a number and its commit, and notes the newest:
# up to that one nothing can come any more.
_LOCK = 7_230_114

_COLUMNS = [column for column in events.c if column.name != "seq"]
# Made once: putting a statement together takes longer than its execution.
_INSERT = insert(events)
_CHANGES: Select[Any] = (
    select(events.c.seq, events.c.subject, events.c.subject_id, events.c.actor)
    .where(events.c.seq > bindparam("after_seq"))
    .order_by(events.c.seq)
    .limit(bindparam("most"))
)


def append(connection: Connection, event: Event) -> None:
    """Write one event. `event.seq` is not looked at."""
    append_many(connection, [event])


def append_many(connection: Connection, several: Sequence[Event]) -> None:
    """Write events in their order."""
    if not several:
        return
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": _LOCK})
    connection.execute(_INSERT, [_values(event) for event in several])


def page(
    connection: Connection,
    *,
    subject: str | None = None,
    subject_id: str | None = None,
    workspace_ids: Collection[str] | None = None,
    shared_subjects: Collection[str] = (),
    after_seq: int = 0,
    limit: int = 100,
    newest_first: bool = False,
) -> list[Event]:
    """Events after a number, or the newest ones.

    `workspace_ids` None: of all; else of those workspaces, and those of `shared_subjects` that belong to none.
    """
    query = _until(select(events), _settled(connection))
    if subject is not None:
        query = query.where(events.c.subject == str(subject))
    if subject_id is not None:
        query = query.where(events.c.subject_id == subject_id)
    if workspace_ids is not None:
        query = _visible(query, workspace_ids, shared_subjects)
    if after_seq:
        query = query.where(events.c.seq > after_seq)
    query = query.order_by(events.c.seq.desc() if newest_first else events.c.seq).limit(limit)
    return [_event(row) for row in connection.execute(query)]


def wishes_since(
    connection: Connection, after_seq: int, *, limit: int = 10_000
) -> tuple[list[tuple[str, str]], int]:
    """What people changed after a number: (subject, id) of each thing once, in order, and the number to go on from.

    Exact on PostgreSQL too: whoever has a number by now is waited for.
    """
    query = _until(_CHANGES, _settled(connection))
    last, found = after_seq, dict[tuple[str, str], None]()
    for seq, subject, subject_id, actor in connection.execute(query, {"after_seq": after_seq, "most": limit}):
        last = seq
        if actor:
            found[subject, subject_id] = None
    return list(found), last


def last_seq(connection: Connection) -> int:
    """The number of the newest event; 0: there is none."""
    newest = _settled(connection)
    if newest is not None:
        return newest
    return connection.execute(select(func.max(events.c.seq))).scalar() or 0


def delete_before(connection: Connection, time: float, *, limit: int = 10_000) -> int:
    """Forget old events, at most `limit` of them; returns how many."""
    oldest = select(events.c.seq).where(events.c.time < time).order_by(events.c.seq).limit(limit)
    return connection.execute(delete(events).where(events.c.seq.in_(oldest.scalar_subquery()))).rowcount


def _settled(connection: Connection) -> int | None:
    """The newest number up to which all events can be seen by now; None: all that there are (SQLite)."""
    if connection.dialect.name != "postgresql":
        return None
    nested = connection.begin_nested()
    # NB: two statements: the second sees what was committed while the first waited. Rolling back gives up the lock.
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    newest = connection.execute(select(func.max(events.c.seq))).scalar()
    nested.rollback()
    return newest or 0


def _until(query: Select[Any], newest: int | None) -> Select[Any]:
    return query if newest is None else query.where(events.c.seq <= newest)


def _visible(
    query: Select[Any], workspace_ids: Collection[str], shared_subjects: Collection[str]
) -> Select[Any]:
    own = events.c.workspace_id.in_(list(workspace_ids))
    if not shared_subjects:
        return query.where(own)
    shared = events.c.workspace_id.is_(None) & events.c.subject.in_([str(one) for one in shared_subjects])
    return query.where(or_(own, shared))


def _values(event: Event) -> dict[str, Any]:
    values: dict[str, Any] = {column.name: getattr(event, column.name) for column in _COLUMNS}
    values["subject"] = str(event.subject)
    values["state"] = str(event.state)
    values["data"] = None if event.data is None else dict(event.data)
    return values


def _event(row: Row[Any]) -> Event:
    return Event(**row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
