"""The batch door: jobs, their runs, and a checkpoint per unit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batch_jobs",
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("predictor", sa.String(128), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("input", sa.Text, nullable=False),
        sa.Column("output", sa.Text, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("detail", sa.Text, nullable=True),
        sa.Column("publish_fence", sa.BigInteger, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.String(128), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "batch_runs",
        sa.Column("fence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job_id", sa.String(100), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "batch_units",
        sa.Column("job_id", sa.String(100), primary_key=True),
        sa.Column("unit", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("entity", sa.Text, nullable=True),
        sa.Column("value", sa.LargeBinary, nullable=True),
        sa.Column("rung", sa.String(16), nullable=True),
        sa.Column("reason", sa.String(32), nullable=True),
        sa.Column("finish_reason", sa.String(16), nullable=True),
        sa.Column("fault", sa.Text, nullable=True),
        sa.Column("latency_ms", sa.Double, nullable=False),
        sa.Column("batch_size", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("batch_units")
    op.drop_table("batch_runs")
    op.drop_table("batch_jobs")
