"""A number for each user, whom the user's tasks run as on nodes of root's.

Revision ID: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, and give a number to everybody who is there."""
    op.create_table(
        "user_numbers",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_user_numbers")),
        sa.UniqueConstraint("user_id", name=op.f("uq_user_numbers_user_id")),
        sqlite_autoincrement=True,
    )
    op.execute("INSERT INTO user_numbers (user_id) SELECT id FROM users ORDER BY created_at, id")


def downgrade() -> None:
    """There is no way back: restore a backup."""
    raise NotImplementedError
