"""The findings of `headrace features consistency` as gauges of a door: per feature, the newest day computed."""

from __future__ import annotations

import asyncio

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from core_engine.metrics import Metrics
from featurestore.consistency.findings import FeatureDay
from featurestore.consistency.results import load_days

log = structlog.get_logger(__name__)


class ConsistencyGauges:
    """Reads the table of findings now and then; a lost database leaves the gauges as they are."""

    def __init__(self, database: Engine, metrics: Metrics) -> None:
        self._database = database
        self._ratio = metrics.feature_consistency
        self._samples = metrics.feature_consistency_samples

    async def refresh(self) -> None:
        """Never raises."""
        try:
            days = await asyncio.to_thread(self._load)
        except SQLAlchemyError as error:
            log.warning("consistency_not_read", error=str(error))
            return
        self._ratio.clear()  # a feature that was not served on the newest day has no ratio
        self._samples.clear()
        for day in days:
            labels = (day.view, str(day.version), day.feature)
            self._samples.labels(*labels).set(day.samples)
            self._ratio.labels(*labels, "mismatch").set(day.mismatch_ratio)
            self._ratio.labels(*labels, "missing").set(day.missing_ratio)
            self._ratio.labels(*labels, "stale").set(day.stale_ratio)

    def _load(self) -> list[FeatureDay]:
        with Session(self._database) as session:
            return load_days(session, newest_only=True)
