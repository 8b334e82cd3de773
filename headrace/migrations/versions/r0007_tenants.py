"""Tenants: API keys, by prefix and digest, and quotas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("prefix", sa.String(12), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "tenant_quotas",
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("requests_per_s", sa.Double),
        sa.Column("tokens_per_minute", sa.Integer),
        sa.Column("streams", sa.Integer),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("tenant_quotas")
    op.drop_table("api_keys")
