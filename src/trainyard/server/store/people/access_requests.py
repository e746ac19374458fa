"""Requests: wishes for an account, a membership or more quota, that a person decides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Connection, Row, func, insert, or_, select

from trainyard.lib.errors import NotFoundError
from trainyard.server.records.access_requests import RequestKind, RequestRecord, RequestState
from trainyard.server.store.tables import requests
from trainyard.server.store.versioned_rows import versioned_update, write_one

_NAMES = tuple(one.name for one in fields(RequestRecord))
_CHANGING = ("state", "body", "user_id", "decided_by", "decided_at", "answer")
_UPDATE = versioned_update(requests, "id", _CHANGING)


def insert_request(connection: Connection, record: RequestRecord) -> None:
    """Write a new request."""
    connection.execute(insert(requests), _values(record, _NAMES))


def load(connection: Connection, id: str) -> RequestRecord:  # noqa: A002  # the column's name
    """The request with this id, or NotFoundError."""
    row = connection.execute(select(requests).where(requests.c.id == id)).first()
    if row is None:
        raise NotFoundError(f"There is no request {id!r}.")
    return _record(row)


def save(connection: Connection, record: RequestRecord) -> RequestRecord:
    """Write what can change, if the stored version is still `record.version`; else StaleError."""
    row = (record.id, record.version, _values(record, _CHANGING))
    write_one(connection, _UPDATE, row, table=requests, key="id", what="request")
    return replace(record, version=record.version + 1)


def list_page(
    connection: Connection,
    *,
    user_id: str | None = None,
    workspace_ids: Collection[str] = (),
    state: RequestState | None = None,
    kind: RequestKind | None = None,
    after_id: str = "",
    limit: int = 100,
) -> list[RequestRecord]:
    """Newest first. With `user_id`: that user's own, and those for `workspace_ids`; else all."""
    query = select(requests).order_by(requests.c.id.desc()).limit(limit)
    if user_id is not None:
        own = requests.c.user_id == user_id
        query = query.where(or_(own, requests.c.workspace_id.in_(list(workspace_ids))))
    if state is not None:
        query = query.where(requests.c.state == state.value)
    if kind is not None:
        query = query.where(requests.c.kind == kind.value)
    if after_id:
        query = query.where(requests.c.id < after_id)
    return [_record(row) for row in connection.execute(query)]


def count_open(
    connection: Connection, *, kind: RequestKind, user_id: str | None = None, name: str = ""
) -> int:
    """How many of a kind are still to be decided, of one user or for one name."""
    query = select(func.count()).select_from(requests)
    query = query.where(requests.c.kind == kind.value, requests.c.state == RequestState.OPEN.value)
    if user_id is not None:
        query = query.where(requests.c.user_id == user_id)
    if name:
        query = query.where(requests.c.name == name)
    return connection.execute(query).scalar_one()


def _values(record: RequestRecord, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in names}
    plain = {"kind": record.kind.value, "state": record.state.value, "body": dict(record.body)}
    return {**values, **{name: value for name, value in plain.items() if name in values}}


def _record(row: Row[Any]) -> RequestRecord:
    values = dict(row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
    values["kind"] = RequestKind(values["kind"])
    values["state"] = RequestState(values["state"])
    return RequestRecord(**values)
