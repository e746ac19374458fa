"""The audit log: who changed what, from where, and who was not let. Appended, never changed; no secrets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from trainyard.server.records.audit import AuditRecord
from trainyard.server.store.tables import audit

_NAMES = tuple(one.name for one in fields(AuditRecord) if one.name != "seq")
_INSERT = insert(audit)


def append(connection: Connection, record: AuditRecord) -> None:
    """Write one entry."""
    append_many(connection, [record])


def append_many(connection: Connection, records: Sequence[AuditRecord]) -> None:
    """Write entries in their order."""
    if records:
        connection.execute(_INSERT, [_values(record) for record in records])


def page(
    connection: Connection,
    *,
    before_seq: int | None = None,
    limit: int = 100,
    actor: str = "",
    action: str = "",
    subject: str = "",
    workspace_id: str = "",
    since: float | None = None,
    until: float | None = None,
) -> list[AuditRecord]:
    """Newest first, before a number."""
    query = select(audit).order_by(audit.c.seq.desc()).limit(limit)
    for column, wanted in (
        (audit.c.actor, actor),
        (audit.c.action, action),
        (audit.c.subject, subject),
        (audit.c.workspace_id, workspace_id),
    ):
        if wanted:
            query = query.where(column == wanted)
    if before_seq is not None:
        query = query.where(audit.c.seq < before_seq)
    if since is not None:
        query = query.where(audit.c.time >= since)
    if until is not None:
        query = query.where(audit.c.time < until)
    return [
        AuditRecord(**row._mapping)  # noqa: SLF001  # SQLAlchemy's documented way to a row's names
        for row in connection.execute(query)
    ]


def delete_before(connection: Connection, time: float, *, limit: int = 10_000) -> int:
    """Forget old entries, at most `limit` of them; returns how many."""
    oldest = select(audit.c.seq).where(audit.c.time < time).order_by(audit.c.seq).limit(limit)
    return connection.execute(delete(audit).where(audit.c.seq.in_(oldest.scalar_subquery()))).rowcount


def _values(record: AuditRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in _NAMES}
    values["subject"] = record.subject[:128]
    values["address"] = record.address[:64]
    values["data"] = None if record.data is None else dict(record.data)
    return values
