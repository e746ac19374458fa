"""Workloads: what was asked for and where it stands. Their tasks are in tasks.py, and reachable from here.

Services write what people want of them. Their state is written by workload_steps.py alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    bindparam,
    cast,
    delete,
    func,
    literal,
    select,
)
from sqlalchemy import insert as insert_into

from trainyard.lib.errors import NotFoundError
from trainyard.messages.catalogue import failure
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store.jobs import specs
from trainyard.server.store.jobs.tasks import (
    insert_tasks,
    save_tasks,
    tasks,
    tasks_held_on,
    tasks_holding,
    tasks_of,
    tasks_on,
)
from trainyard.server.store.tables import workloads
from trainyard.server.store.versioned_rows import chunks, versioned_update, write_one
from trainyard.spec.workload import FINAL, Desired, State

_FIXED = frozenset({"id", "name", "kind", "workspace_id", "user_id", "spec", "submitted_at", "dlc", "origin"})
_NAMES = tuple(one.name for one in fields(WorkloadRecord))
CHANGING = tuple(name for name in _NAMES if name not in _FIXED and name != "version")
UPDATE = versioned_update(workloads, "id", CHANGING)
# The state is the leader's to write: workload_steps.py.
_WISHED = tuple(name for name in CHANGING if name != "state")
_UPDATE_WISHED = versioned_update(workloads, "id", _WISHED)
# The spec comes as text, so that it is decoded once for all rows that have the same.
_SELECT: Select[Any] = select(
    *(cast(workloads.c.spec, Text) if name == "spec" else workloads.c[name] for name in _NAMES)
)
_BY_ID = _SELECT.where(workloads.c.id == bindparam("wanted_id"), workloads.c.deleted_at.is_(None))
_LOCKED_BY_ID = _BY_ID.with_for_update()
_BY_IDS = _SELECT.where(workloads.c.id.in_(bindparam("wanted_ids", expanding=True))).order_by(workloads.c.id)
_INSERT = insert_into(workloads)
_STATES = {state.value: state for state in State}
_WISHES = {desired.value: desired for desired in Desired}


# -- reading


def find(connection: Connection, id: str, *, lock: bool = False) -> WorkloadRecord | None:  # noqa: A002  # the column's name
    """The workload with this id; None where there is none, or it was deleted. `lock`: nobody writes it before we do."""
    row = connection.execute(_LOCKED_BY_ID if lock else _BY_ID, {"wanted_id": id}).first()
    return None if row is None else _record(row)


def load(connection: Connection, id: str) -> WorkloadRecord:  # noqa: A002  # same
    """The workload with this id, or NotFoundError."""
    record = find(connection, id)
    if record is None:
        raise failure(NotFoundError, "no_job", job=id)
    return record


def load_many(connection: Connection, ids: Iterable[str]) -> dict[str, WorkloadRecord]:
    """Those of these workloads that there are, by id, oldest first."""
    found: dict[str, WorkloadRecord] = {}
    for part in chunks(sorted(set(ids))):
        rows = connection.execute(_BY_IDS, {"wanted_ids": part})
        found.update({row[0]: _record(row) for row in rows})
    return found


def in_states(
    connection: Connection, states: Collection[State], *, due: float | None = None
) -> list[WorkloadRecord]:
    """All workloads in these states, oldest first; with `due`, without those that are not to be looked at before."""
    query = _SELECT.where(workloads.c.state.in_([state.value for state in states])).order_by(workloads.c.id)
    if due is not None:
        query = query.where((workloads.c.due_at.is_(None)) | (workloads.c.due_at <= due))
    return [_record(row) for row in connection.execute(query)]


def wanted(
    connection: Connection, states: Collection[State], *, workspace_id: str = "", user_id: str = ""
) -> list[WorkloadRecord]:
    """Workloads in these states that are to run, of a workspace or of a user, oldest first."""
    query = _SELECT.where(
        workloads.c.state.in_([state.value for state in states]), workloads.c.desired == Desired.RUN.value
    )
    if workspace_id:
        query = query.where(workloads.c.workspace_id == workspace_id)
    if user_id:
        query = query.where(workloads.c.user_id == user_id)
    return [_record(row) for row in connection.execute(query.order_by(workloads.c.id))]


def list_page(
    connection: Connection,
    *,
    after_id: str = "",
    limit: int = 50,
    offset: int = 0,
    newest_first: bool = True,
    **criteria: Any,
) -> list[WorkloadRecord]:
    """One page by id, which is by time of submission. The criteria are those of `count`.

    Several workspaces, or several states of all workspaces, are looked through one by one: each has an index in the
    order of ids, and all of them together have none, so that everything would have to be sorted for one page.
    """
    order = workloads.c.id.desc() if newest_first else workloads.c.id
    beyond = (workloads.c.id < after_id) if newest_first else (workloads.c.id > after_id)

    def query(select_from: Select[Any], **narrowed: Any) -> Select[Any]:
        found = _matching(select_from, **{**criteria, **narrowed})
        return (found.where(beyond) if after_id else found).order_by(order)

    parts = _parts(criteria)
    if len(parts) <= 1:
        page = query(_SELECT).limit(limit).offset(offset)
        return [_record(row) for row in connection.execute(page)]
    ids: list[str] = []
    for part in parts:
        ids += connection.execute(query(select(workloads.c.id), **part).limit(limit + offset)).scalars()
    ids.sort(reverse=newest_first)
    found = load_many(connection, ids[offset : offset + limit])
    return sorted(found.values(), key=lambda record: record.id, reverse=newest_first)


def _parts(criteria: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Narrower criteria that together are the same."""
    places = criteria.get("workspace_ids")
    if places is not None and not criteria.get("user_id"):
        return [{"workspace_ids": [place]} for place in places]
    if places is None and not criteria.get("user_id"):
        return [{"states": [state]} for state in criteria.get("states", ())]
    return []


def count(connection: Connection, **criteria: Any) -> int:
    """How many workloads match.

    Criteria: workspace_ids (None: all), user_id, states, kind, name_part (any case), id_part, since and until
    (of submission), tags, origin.
    """
    found: int = connection.execute(_matching(select(func.count(workloads.c.id)), **criteria)).scalar_one()
    return found


def counts_by_state(connection: Connection, workspace_id: str | None = None) -> dict[State, int]:
    """How many workloads are in each state, of one workspace or of all."""
    query = select(workloads.c.state, func.count()).where(workloads.c.deleted_at.is_(None))
    if workspace_id is not None:
        query = query.where(workloads.c.workspace_id == workspace_id)
    return {State(state): number for state, number in connection.execute(query.group_by(workloads.c.state))}


def of_origin(connection: Connection, origin: str) -> list[WorkloadRecord]:
    """All workloads that one thing submitted, oldest first."""
    query = _SELECT.where(workloads.c.origin == origin, workloads.c.deleted_at.is_(None))
    return [_record(row) for row in connection.execute(query.order_by(workloads.c.id))]


def origins(
    connection: Connection,
    prefix: str,
    workspace_ids: Collection[str] | None,
    *,
    user_id: str = "",
    limit: int = 100,
) -> list[str]:
    """What begins with `prefix` and submitted workloads of these workspaces (None: all), newest first."""
    newest = func.max(workloads.c.id)
    query = select(workloads.c.origin).where(
        workloads.c.origin.startswith(prefix, autoescape=True), workloads.c.deleted_at.is_(None)
    )
    if workspace_ids is not None:
        query = query.where(workloads.c.workspace_id.in_(list(workspace_ids)))
    if user_id:
        query = query.where(workloads.c.user_id == user_id)
    query = query.group_by(workloads.c.origin).order_by(newest.desc()).limit(limit)
    return list(connection.execute(query).scalars())


def ended_before(connection: Connection, time: float, *, limit: int = 1000) -> list[WorkloadRecord]:
    """Workloads that reached their final state before a time, in no order; those that were deleted come too."""
    query = _SELECT.where(workloads.c.state.in_([state.value for state in FINAL]))
    query = query.where(workloads.c.ended_at < time).limit(limit)
    return [_record(row) for row in connection.execute(query)]


def started_ids(connection: Connection, states: Collection[State]) -> list[str]:
    """Ids of jobs in these states that were started at least once."""
    query = select(workloads.c.id).where(workloads.c.state.in_(list(states)), workloads.c.attempt > 0)
    return [row.id for row in connection.execute(query.order_by(workloads.c.id))]


def ended_since(connection: Connection, time: float) -> list[str]:
    """Ids of jobs that ended then or later."""
    query = select(workloads.c.id).where(workloads.c.ended_at >= time).order_by(workloads.c.ended_at)
    return [row.id for row in connection.execute(query)]


def deleted_before(connection: Connection, time: float, *, limit: int = 1000) -> list[str]:
    """Ids of workloads that people deleted before a time."""
    query = select(workloads.c.id).where(workloads.c.deleted_at < time).limit(limit)
    return list(connection.execute(query).scalars())


# -- writing


def insert(connection: Connection, record: WorkloadRecord) -> None:
    """Write a new workload. Its event is the caller's to append."""
    insert_many(connection, [record])


def insert_many(connection: Connection, records: Sequence[WorkloadRecord]) -> None:
    """Write new workloads at the price of one statement."""
    if records:
        connection.execute(_INSERT, [row_values(record, _NAMES) for record in records])


def save(connection: Connection, record: WorkloadRecord) -> WorkloadRecord:
    """Write what can change but for its state, if the stored version is still `record.version`; else StaleError."""
    row = (record.id, record.version, row_values(record, _WISHED))
    write_one(connection, _UPDATE_WISHED, row, table=workloads, key="id", what="job")
    return replace(record, version=record.version + 1)


def purge(connection: Connection, ids: Collection[str]) -> None:
    """Remove workloads and their tasks for good. Their events stay until events are forgotten."""
    for part in chunks(ids):
        connection.execute(delete(workloads).where(workloads.c.id.in_(part)))


# -- inside


def _matching(
    query: Select[Any],
    *,
    workspace_ids: Collection[str] | None = None,
    user_id: str = "",
    states: Collection[State] = (),
    kind: str = "",
    name_part: str = "",
    id_part: str = "",
    since: float | None = None,
    until: float | None = None,
    tags: Mapping[str, str] | None = None,
    origin: str = "",
) -> Select[Any]:
    wanted: list[ColumnElement[bool]] = [workloads.c.deleted_at.is_(None)]
    if workspace_ids is not None:
        wanted.append(workloads.c.workspace_id.in_(list(workspace_ids)))
    if user_id:
        wanted.append(workloads.c.user_id == user_id)
    if states:
        wanted.append(workloads.c.state.in_([state.value for state in states]))
    if kind:
        wanted.append(func.lower(workloads.c.kind) == kind.lower())
    if name_part:
        wanted.append(func.lower(workloads.c.name).contains(name_part.lower(), autoescape=True))
    if id_part:
        wanted.append(workloads.c.id.contains(id_part, autoescape=True))
    if since is not None:
        wanted.append(workloads.c.submitted_at >= since)
    if until is not None:
        wanted.append(workloads.c.submitted_at < until)
    if origin:
        wanted.append(workloads.c.origin == origin)
    wanted += [
        specs.tag_of(workloads.c.spec, literal(key, Text)) == literal(value, Text)
        for key, value in (tags or {}).items()
    ]
    return query.where(*wanted)


def row_values(record: WorkloadRecord, names: Iterable[str]) -> dict[str, Any]:
    """A record's columns of these names."""
    values = {name: getattr(record, name) for name in names}
    values["state"] = str(record.state)
    values["desired"] = str(record.desired)
    values["ending"] = str(record.ending)
    values["avoid"] = list(record.avoid)
    values["wait"] = None if record.wait is None else dict(record.wait)
    if "spec" in values:
        values["spec"] = specs.encode(record.spec)
        values["dlc"] = None if record.dlc is None else dict(record.dlc)
    return values


def _record(row: Row[Any]) -> WorkloadRecord:
    values: dict[str, Any] = dict(zip(_NAMES, row, strict=True))  # by place: twice as quick as by name
    values["spec"] = specs.decode(values["spec"])
    values["state"] = _STATES[values["state"]]
    values["desired"] = _WISHES[values["desired"]]
    values["avoid"] = tuple(values["avoid"])
    return WorkloadRecord(**values)


__all__ = [
    "count",
    "counts_by_state",
    "deleted_before",
    "ended_before",
    "find",
    "in_states",
    "insert",
    "insert_many",
    "insert_tasks",
    "list_page",
    "load",
    "load_many",
    "of_origin",
    "origins",
    "purge",
    "save",
    "save_tasks",
    "tasks",
    "tasks_held_on",
    "tasks_holding",
    "tasks_of",
    "tasks_on",
]
