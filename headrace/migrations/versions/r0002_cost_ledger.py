"""The cost ledger: attempts, charges, replica intervals, and how far each spool file is loaded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "ledger_attempts",
        sa.Column("attempt_id", sa.String, primary_key=True),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("path", sa.String, nullable=False),
        sa.Column("predictor", sa.String, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("delivery_key", sa.String),
        sa.Column("rung", sa.String),
        sa.Column("reason", sa.String),
        sa.Column("reads", sa.Integer),
        sa.Column("read_hits", sa.Integer),
        sa.Column("read_bytes", sa.BigInteger),
        sa.Column("caller_cpu_s", sa.Double),
        sa.Column("delivered_in_time", sa.Boolean),
        sa.Column("arrived_at", INSTANT),
        sa.Column("answered_at", INSTANT),
        sa.Column("pool", sa.String),
        sa.Column("replica", sa.String),
        sa.Column("outcome", sa.String),
        sa.Column("prompt_tokens", sa.Integer),
        sa.Column("cached_tokens", sa.Integer),
        sa.Column("computed_tokens", sa.Integer),
        sa.Column("completion_tokens", sa.Integer),
        sa.Column("wasted_tokens", sa.Integer),
        sa.Column("rows", sa.Integer),
        sa.Column("finished_at", INSTANT),
    )
    op.create_index("ix_ledger_attempts_answered_at", "ledger_attempts", ["answered_at"])
    op.create_index("ix_ledger_attempts_finished_at", "ledger_attempts", ["finished_at"])
    op.create_table(
        "ledger_charges",
        sa.Column("incarnation", sa.String, primary_key=True),
        sa.Column("interval", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt_id", sa.String, primary_key=True),
        sa.Column("device_s", sa.Double, nullable=False),
        sa.Column("kv_block_s", sa.Double, nullable=False),
    )
    op.create_table(
        "ledger_intervals",
        sa.Column("incarnation", sa.String, primary_key=True),
        sa.Column("interval", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("replica", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("from_at", INSTANT, nullable=False),
        sa.Column("to_at", INSTANT, nullable=False),
        sa.Column("is_last", sa.Boolean, nullable=False),
        sa.Column("wall_s", sa.Double, nullable=False),
        sa.Column("loading_s", sa.Double, nullable=False),
        sa.Column("busy_s", sa.Double, nullable=False),
        sa.Column("overhead_s", sa.Double, nullable=False),
        sa.Column("idle_s", sa.Double, nullable=False),
        sa.Column("charged_s", sa.Double, nullable=False),
        sa.Column("total_blocks", sa.Integer, nullable=False),
        sa.Column("free_block_s", sa.Double, nullable=False),
        sa.Column("interactive_seats", sa.Integer, nullable=False),
        sa.Column("bulk_seats", sa.Integer, nullable=False),
    )
    op.create_index("ix_ledger_intervals_time", "ledger_intervals", ["from_at", "to_at"])
    op.create_index("ix_ledger_intervals_replica", "ledger_intervals", ["replica", "from_at"])
    op.create_table(
        "ledger_spool_positions",
        sa.Column("file", sa.String, primary_key=True),
        sa.Column("offset", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "ledger_spool_faults",
        sa.Column("file", sa.String, primary_key=True),
        sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("fault", sa.String, nullable=False),
    )


def downgrade() -> None:
    for table in ("spool_faults", "spool_positions", "intervals", "charges", "attempts"):
        op.drop_table(f"ledger_{table}")
