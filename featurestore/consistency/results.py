"""Findings in the registry's database: each feature and UTC day as it was last computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from featurestore.consistency.findings import FeatureDay
from featurestore.tables import ConsistencyRecord


def store_days(session: Session, days: Iterable[FeatureDay], computed_at: datetime) -> None:
    """Put `days` in the place of all that was computed of these days before; the caller commits."""
    days = list(days)
    session.execute(delete(ConsistencyRecord).where(ConsistencyRecord.day.in_({each.day for each in days})))
    session.add_all(_record(day, computed_at) for day in days)


def load_days(session: Session, *, newest_only: bool = False) -> list[FeatureDay]:
    """What was computed, by day, view, version and feature; with `newest_only` of the newest day alone."""
    record = ConsistencyRecord
    query = select(record).order_by(record.day, record.view, record.version, record.feature)
    if newest_only:
        query = query.where(record.day == select(func.max(record.day)).scalar_subquery())
    return [msgspec.convert(found, FeatureDay, from_attributes=True) for found in session.scalars(query)]


def _record(day: FeatureDay, computed_at: datetime) -> ConsistencyRecord:
    return ConsistencyRecord(
        day=day.day,
        view=day.view,
        version=day.version,
        feature=day.feature,
        samples=day.samples,
        mismatch_ratio=day.mismatch_ratio,
        missing_ratio=day.missing_ratio,
        stale_ratio=day.stale_ratio,
        outcomes=_plain(day.outcomes),
        causes=_plain(day.causes),
        oldest_s=day.oldest_s,
        computed_at=computed_at,
    )


def _plain(counts: Mapping[Any, int]) -> dict[str, int]:
    """Words as JSON has them."""
    return {str(word): count for word, count in counts.items()}
