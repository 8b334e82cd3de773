"""The feature store's tables: what is declared, how far each view is online, the run that is bringing it further,
and how consistent what was served is with history.

`registry`, `lifecycle` and `consistency` read and write them; their migrations are in `headrace/migrations`. Instants
are aware UTC on every database.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Date, Double, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core_engine.sql_types import UtcDateTime


class Base(DeclarativeBase):
    """Metadata of the feature store."""


class VersionRecord(Base):
    """One version as it was declared. A deleted one stays, so that its number never comes to mean something else."""

    __abstract__ = True

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    fingerprint: Mapped[str] = mapped_column(String(64))
    declaration: Mapped[dict[str, Any]] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(16))  # `registry.Status`
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class FeatureViewRecord(VersionRecord):
    __tablename__ = "feature_views"


class OnDemandViewRecord(VersionRecord):
    __tablename__ = "feature_on_demand_views"


class EntityRecord(Base):
    """An entity as it was last declared."""

    __tablename__ = "feature_entities"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    declaration: Mapped[dict[str, Any]] = mapped_column(JSON)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class WatermarkRecord(Base):
    """How far a view version is online, and who may write it now.

    All rows known at `watermark` are online; `digest` is that of those rows in the source. The lease is `holder`'s
    until `leased_until`; every new one has a higher `fence`.
    """

    __tablename__ = "feature_watermarks"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    watermark: Mapped[datetime | None] = mapped_column(UtcDateTime)
    digest: Mapped[str | None] = mapped_column(String(64))
    fence: Mapped[int] = mapped_column(BigInteger)
    holder: Mapped[str | None] = mapped_column(Text)
    leased_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class RunRecord(Base):
    """The run of a view version that is not finished: what it writes, from which rows (`digest`), in which shards."""

    __tablename__ = "feature_runs"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    token: Mapped[str] = mapped_column(String(32))
    kind: Mapped[str] = mapped_column(String(16))
    as_of: Mapped[datetime] = mapped_column(UtcDateTime)
    since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    num_shards: Mapped[int]
    digest: Mapped[str] = mapped_column(String(64))


class ShardRecord(Base):
    """How far one shard of the unfinished run is: its last row written, by when it was known and where it stands."""

    __tablename__ = "feature_run_shards"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    shard: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    known_us: Mapped[int] = mapped_column(BigInteger)
    position: Mapped[int] = mapped_column(BigInteger)


class ConsistencyRecord(Base):
    """One feature on one UTC day, as last computed: ratios of `samples`, and counts by class and by cause."""

    __tablename__ = "feature_consistency"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    view: Mapped[str] = mapped_column(String(128), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    feature: Mapped[str] = mapped_column(String(128), primary_key=True)
    samples: Mapped[int]
    mismatch_ratio: Mapped[float] = mapped_column(Double)
    missing_ratio: Mapped[float] = mapped_column(Double)
    stale_ratio: Mapped[float] = mapped_column(Double)
    outcomes: Mapped[dict[str, int]] = mapped_column(JSON)
    causes: Mapped[dict[str, int]] = mapped_column(JSON)
    oldest_s: Mapped[float | None] = mapped_column(Double)
    computed_at: Mapped[datetime] = mapped_column(UtcDateTime)
