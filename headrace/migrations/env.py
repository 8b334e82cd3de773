"""Alembic's entry: runs the revisions over the connection that `headrace.migrations` opened."""

from __future__ import annotations

from alembic import context

from batch.tables import Base as Batch
from core_engine.costs.tables import Base as Ledger
from core_engine.predictors.tables import Base as Predictors
from core_engine.tenants.tables import Base as Tenants
from featurestore.registry import metadata as feature_views

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=[Predictors.metadata, feature_views, Ledger.metadata, Batch.metadata, Tenants.metadata],
    render_as_batch=True,  # SQLite alters a table by copying it
    compare_type=True,
)
context.run_migrations()
