"""Codes and values beside the sentences of jobs, tasks and pools, so that programs need not read sentences.

Revision ID: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rows that are there have no codes: their sentences are shown as they are."""
    op.add_column("workloads", sa.Column("facts", sa.JSON(), nullable=True))
    op.add_column("tasks", sa.Column("reason", sa.String(length=32), nullable=False, server_default=""))
    op.add_column("pools", sa.Column("reason", sa.String(length=48), nullable=False, server_default=""))
    op.add_column("pools", sa.Column("facts", sa.JSON(), nullable=True))


def downgrade() -> None:
    """There is no way back: restore a backup."""
    raise NotImplementedError
