"""Templates of jobs: whose they are, who sees them, and the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from trainyard.lib.errors import StaleError
from trainyard.server.records.templates import TemplateRecord
from trainyard.server.store.jobs import specs
from trainyard.server.store.tables import templates


def insert_template(connection: Connection, record: TemplateRecord) -> None:
    """Write a new one."""
    connection.execute(insert(templates), _values(record))


def save_template(connection: Connection, record: TemplateRecord) -> TemplateRecord:
    """Write what changed, if the stored version is still this one's; else StaleError."""
    values = {**_values(record), "version": record.version + 1}
    query = update(templates).where(templates.c.id == record.id, templates.c.version == record.version)
    if connection.execute(query.values(values)).rowcount != 1:
        raise StaleError(f"The template {record.id} has changed meanwhile.", hint="Load it again.")
    return _record(values)


def remove_template(connection: Connection, template_id: str) -> None:
    """Forget one."""
    connection.execute(delete(templates).where(templates.c.id == template_id))


def list_templates(connection: Connection) -> list[TemplateRecord]:
    """All, by name."""
    query = select(templates).order_by(templates.c.name, templates.c.id)
    return [_record(row._mapping) for row in connection.execute(query)]  # noqa: SLF001  # SQLAlchemy's documented way


def _values(record: TemplateRecord) -> dict[str, Any]:
    values = {column.name: getattr(record, column.name) for column in templates.c if column.name != "body"}
    return {**values, "body": specs.encode(record.spec)}


def _record(row: Mapping[Any, Any]) -> TemplateRecord:
    values = dict(row)
    return TemplateRecord(spec=specs.spec_of(values.pop("body")), **values)
