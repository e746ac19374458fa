"""Alembic's entry: runs the revisions over the connection that upgrade.py hands in."""

from __future__ import annotations

from alembic import context

from trainyard.server.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",  # SQLite changes columns by copying the table
)
with context.begin_transaction():
    context.run_migrations()
