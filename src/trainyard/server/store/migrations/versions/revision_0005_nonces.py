"""Nonces of signed requests that were taken.

Revision ID: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the new table."""
    op.create_table(
        "nonces",
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_nonces")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_nonces_expires_at"), "nonces", ["expires_at"])


def downgrade() -> None:
    """There is no way back: restore a backup."""
    raise NotImplementedError
