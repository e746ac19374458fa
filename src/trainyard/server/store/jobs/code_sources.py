"""Repositories that jobs of a workspace check out, with the sealed token of a private one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from trainyard.lib.errors import StaleError
from trainyard.server.records.code_sources import CodeSourceRecord
from trainyard.server.store.tables import code_sources


def insert_source(connection: Connection, record: CodeSourceRecord) -> None:
    """Write a new one."""
    connection.execute(insert(code_sources), _values(record))


def save_source(connection: Connection, record: CodeSourceRecord) -> CodeSourceRecord:
    """Write what changed, if the stored version is still this one's; else StaleError."""
    values = {**_values(record), "version": record.version + 1}
    query = update(code_sources).where(
        code_sources.c.id == record.id, code_sources.c.version == record.version
    )
    if connection.execute(query.values(values)).rowcount != 1:
        raise StaleError(f"The code source {record.id} has changed meanwhile.", hint="Load it again.")
    return CodeSourceRecord(**values)


def remove_source(connection: Connection, source_id: str) -> None:
    """Forget one."""
    connection.execute(delete(code_sources).where(code_sources.c.id == source_id))


def list_sources(
    connection: Connection, workspace_ids: Collection[str] | None = None
) -> list[CodeSourceRecord]:
    """Those of these workspaces (None: all), by name."""
    query = select(code_sources).order_by(code_sources.c.name, code_sources.c.id)
    if workspace_ids is not None:
        query = query.where(code_sources.c.workspace_id.in_(list(workspace_ids)))
    return [_record(row) for row in connection.execute(query)]


def load_sources(connection: Connection, ids: Collection[str]) -> list[CodeSourceRecord]:
    """Those of these ids that there are."""
    query = select(code_sources).where(code_sources.c.id.in_(list(ids)))
    return [_record(row) for row in connection.execute(query)]


def find_source(connection: Connection, text: str, workspace_id: str) -> CodeSourceRecord | None:
    """The one with this id or name, of a workspace."""
    query = select(code_sources).where(
        code_sources.c.workspace_id == workspace_id,
        (code_sources.c.id == text) | (code_sources.c.name == text),
    )
    row = connection.execute(query.order_by(code_sources.c.id)).first()
    return None if row is None else _record(row)


def _values(record: CodeSourceRecord) -> dict[str, Any]:
    return {column.name: getattr(record, column.name) for column in code_sources.c}


def _record(row: Any) -> CodeSourceRecord:
    return CodeSourceRecord(**row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
