"""Canaries with a share, every move of an alias, and what shadow versions said beside live ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("predictor_aliases", sa.Column("percent", sa.Double))
    op.create_table(
        "predictor_alias_moves",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("predictor", sa.String(128), nullable=False),
        sa.Column("alias", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer),
        sa.Column("percent", sa.Double),
        sa.Column("cause", sa.String(16), nullable=False),
        sa.Column("moved_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_predictor_alias_moves_predictor", "predictor_alias_moves", ["predictor"])
    op.execute(  # what an alias points at now is the first line of its history
        "INSERT INTO predictor_alias_moves (predictor, alias, version, cause, moved_at) "
        "SELECT predictor, alias, version, 'set', updated_at FROM predictor_aliases ORDER BY updated_at"
    )
    op.create_table(
        "ledger_comparisons",
        sa.Column("attempt_id", sa.String, primary_key=True),
        sa.Column("predictor", sa.String, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("shadow_version", sa.Integer, nullable=False),
        sa.Column("difference", sa.Double, nullable=False),
        sa.Column("disagrees", sa.Boolean),
        sa.Column("compared_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_ledger_comparisons_predictor", "ledger_comparisons", ["predictor", "compared_at"])


def downgrade() -> None:
    op.drop_table("ledger_comparisons")
    op.drop_table("predictor_alias_moves")
    with op.batch_alter_table("predictor_aliases") as aliases:
        aliases.drop_column("percent")
