"""Feature store: how consistent what was served is with history, per feature and day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "feature_consistency",
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("view", sa.String(128), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("feature", sa.String(128), primary_key=True),
        sa.Column("samples", sa.Integer, nullable=False),
        sa.Column("mismatch_ratio", sa.Double, nullable=False),
        sa.Column("missing_ratio", sa.Double, nullable=False),
        sa.Column("stale_ratio", sa.Double, nullable=False),
        sa.Column("outcomes", sa.JSON, nullable=False),
        sa.Column("causes", sa.JSON, nullable=False),
        sa.Column("oldest_s", sa.Double),
        sa.Column("computed_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("feature_consistency")
