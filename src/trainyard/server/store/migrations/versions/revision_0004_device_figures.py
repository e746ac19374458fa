"""What the drivers of tasks' devices said last.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the new table."""
    op.create_table(
        "device_figures",
        sa.Column("subject", sa.String(length=120), nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_device_figures")),
    )


def downgrade() -> None:
    """There is no way back: restore a backup."""
    raise NotImplementedError
