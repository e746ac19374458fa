"""What machines of pools cost by day, and prices that change after the purchase.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the new table, and the new columns."""
    op.create_table(
        "machine_days",
        sa.Column("machine", sa.String(length=63), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("pool", sa.String(length=63), nullable=False),
        sa.Column("currency", sa.String(length=8), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("used_cost", sa.Float(), nullable=False),
        sa.Column("idle_cost", sa.Float(), nullable=False),
        sa.Column("starting_cost", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("machine", "day", name=op.f("pk_machine_days")),
    )
    op.create_index(op.f("ix_machine_days_day"), "machine_days", ["day"], unique=False)
    op.add_column("pool_machines", sa.Column("rates", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column(
        "pool_machines", sa.Column("currency", sa.String(length=8), nullable=False, server_default="")
    )
    op.add_column("pool_machines", sa.Column("joined_at", sa.Float(), nullable=True))
    # Until now it was noted when machines were joined only by what came of it.
    op.execute("UPDATE pool_machines SET joined_at = coalesce(worked_at, idle_since)")


def downgrade() -> None:
    """There is no way back: restore a backup."""
    raise NotImplementedError
