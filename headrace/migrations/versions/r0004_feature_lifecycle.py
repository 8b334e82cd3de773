"""Feature store: the status of a version, entities, on-demand views; watermarks, leases and unfinished runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("feature_views", sa.Column("status", sa.String(16), nullable=False, server_default="registered"))
    op.create_table(
        "feature_on_demand_views",
        *_version(),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("declaration", sa.JSON, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "feature_entities",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("declaration", sa.JSON, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "feature_watermarks",
        *_version(),
        sa.Column("watermark", sa.DateTime(timezone=True), nullable=True),
        sa.Column("digest", sa.String(64), nullable=True),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "feature_runs",
        *_version(),
        sa.Column("token", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("as_of", sa.DateTime(timezone=True), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("num_shards", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
    )
    op.create_table(
        "feature_run_shards",
        *_version(),
        sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("known_us", sa.BigInteger, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    for table in ("run_shards", "runs", "watermarks", "entities", "on_demand_views"):
        op.drop_table(f"feature_{table}")
    with op.batch_alter_table("feature_views") as views:
        views.drop_column("status")


def _version() -> tuple[sa.Column[str], sa.Column[int]]:
    return (
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    )
