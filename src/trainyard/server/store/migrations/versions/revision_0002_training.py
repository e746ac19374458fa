"""The tables of templates, schedules, storages, samples, usage, budgets and pools.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the new tables, and the new columns."""
    _budgets()
    _pool_machines()
    _pools()
    _samples()
    _usage()
    _code_sources()
    _registries()
    _schedules()
    _storages()
    _templates()
    _dependencies()
    _columns()


def downgrade() -> None:
    """There is no way back: restore a backup."""
    raise NotImplementedError


def _budgets() -> None:
    op.create_table(
        "budgets",
        sa.Column("subject", sa.String(length=16), nullable=False),
        sa.Column("subject_id", sa.String(length=32), nullable=False),
        sa.Column("amount", sa.Float(), nullable=False),
        sa.Column("warn_at", sa.JSON(), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("month", sa.Integer(), nullable=False),
        sa.Column("warned", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "subject_id", name=op.f("pk_budgets")),
    )


def _pool_machines() -> None:
    op.create_table(
        "pool_machines",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("pool", sa.String(length=63), nullable=False),
        sa.Column("backend", sa.String(length=16), nullable=False),
        sa.Column("machine_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("machine_type", sa.String(length=63), nullable=False),
        sa.Column("zone", sa.String(length=63), nullable=False),
        sa.Column("is_spot", sa.Boolean(), nullable=False),
        sa.Column("is_whole", sa.Boolean(), nullable=False),
        sa.Column("price", sa.Float(), nullable=False),
        sa.Column("cost", sa.Float(), nullable=False),
        sa.Column("costed_at", sa.Float(), nullable=True),
        sa.Column("idle_since", sa.Float(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("for_jobs", sa.JSON(), nullable=False),
        sa.Column("wanted_at", sa.Float(), nullable=False),
        sa.Column("worked_at", sa.Float(), nullable=True),
        sa.Column("released_at", sa.Float(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pool_machines")),
    )
    op.create_index(op.f("ix_pool_machines_pool"), "pool_machines", ["pool"], unique=False)
    op.create_index(op.f("ix_pool_machines_state"), "pool_machines", ["state"], unique=False)


def _pools() -> None:
    op.create_table(
        "pools",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("backend", sa.String(length=16), nullable=False),
        sa.Column("types", sa.JSON(), nullable=False),
        sa.Column("zones", sa.JSON(), nullable=False),
        sa.Column("is_spot", sa.Boolean(), nullable=False),
        sa.Column("price_limit", sa.Float(), nullable=True),
        sa.Column("most", sa.Integer(), nullable=False),
        sa.Column("least", sa.Integer(), nullable=False),
        sa.Column("idle_seconds", sa.Integer(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("taints", sa.JSON(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("shapes", sa.JSON(), nullable=False),
        sa.Column("currency", sa.String(length=8), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.Float(), nullable=True),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pools")),
    )


def _samples() -> None:
    op.create_table(
        "samples",
        sa.Column("subject", sa.String(length=120), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("time", sa.Integer(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("readings", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "step", "time", name=op.f("pk_samples")),
    )
    op.create_index("ix_samples_step_time", "samples", ["step", "time"], unique=False)


def _usage() -> None:
    op.create_table(
        "usage",
        sa.Column("workload_id", sa.String(length=32), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("device_type", sa.String(length=63), nullable=False),
        sa.Column("workspace_id", sa.String(length=32), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("device_seconds", sa.Float(), nullable=False),
        sa.Column("idle_device_seconds", sa.Float(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.Column("memory_mib_seconds", sa.Float(), nullable=False),
        sa.Column("cost", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("workload_id", "day", "device_type", name=op.f("pk_usage")),
    )
    op.create_index("ix_usage_day", "usage", ["day"], unique=False)
    op.create_index("ix_usage_workspace_id_day", "usage", ["workspace_id", "day"], unique=False)


def _code_sources() -> None:
    op.create_table(
        "code_sources",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("workspace_id", sa.String(length=32), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("commit", sa.String(length=64), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_code_sources_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_code_sources")),
    )
    op.create_index(op.f("ix_code_sources_workspace_id"), "code_sources", ["workspace_id"], unique=False)


def _registries() -> None:
    op.create_table(
        "registries",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("workspace_id", sa.String(length=32), nullable=True),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_registries_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registries")),
    )
    op.create_index(op.f("ix_registries_workspace_id"), "registries", ["workspace_id"], unique=False)


def _schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("workspace_id", sa.String(length=32), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("cron", sa.String(length=120), nullable=False),
        sa.Column("timezone", sa.String(length=64), nullable=False),
        sa.Column("overlap", sa.String(length=16), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("next_at", sa.Float(), nullable=True),
        sa.Column("last_at", sa.Float(), nullable=True),
        sa.Column("last_job", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_schedules_user_id")),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_schedules_workspace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(op.f("ix_schedules_next_at"), "schedules", ["next_at"], unique=False)
    op.create_index(op.f("ix_schedules_workspace_id"), "schedules", ["workspace_id"], unique=False)


def _storages() -> None:
    op.create_table(
        "storages",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("workspace_id", sa.String(length=32), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("read_only", sa.Boolean(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_storages_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_storages")),
    )
    op.create_index(op.f("ix_storages_workspace_id"), "storages", ["workspace_id"], unique=False)


def _templates() -> None:
    op.create_table(
        "templates",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("user_id", sa.String(length=32), nullable=False),
        sa.Column("workspace_id", sa.String(length=32), nullable=True),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_templates_user_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_templates_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_templates")),
    )
    op.create_index(op.f("ix_templates_user_id"), "templates", ["user_id"], unique=False)
    op.create_index(op.f("ix_templates_workspace_id"), "templates", ["workspace_id"], unique=False)


def _dependencies() -> None:
    op.create_table(
        "dependencies",
        sa.Column("workload_id", sa.String(length=32), nullable=False),
        sa.Column("needs_id", sa.String(length=32), nullable=False),
        sa.Column("condition", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(
            ["workload_id"], ["workloads.id"], name=op.f("fk_dependencies_workload_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workload_id", "needs_id", name=op.f("pk_dependencies")),
    )
    op.create_index(op.f("ix_dependencies_needs_id"), "dependencies", ["needs_id"], unique=False)


def _columns() -> None:
    op.add_column("nodes", sa.Column("options", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("workloads", sa.Column("origin", sa.String(length=64), nullable=False, server_default=""))
    op.create_index("ix_workloads_origin_id", "workloads", ["origin", "id"], unique=False)
    op.create_index("ix_workloads_ended_at", "workloads", ["ended_at"], unique=False)
