"""What feature reads cost beside Redis's own work: round trips, and rows that a process's cache answered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("ledger_attempts", sa.Column("read_round_trips", sa.Integer))
    op.add_column("ledger_attempts", sa.Column("read_cached", sa.Integer))


def downgrade() -> None:
    with op.batch_alter_table("ledger_attempts") as attempts:
        attempts.drop_column("read_cached")
        attempts.drop_column("read_round_trips")
