"""The findings of `headrace features consistency` as gauges of a door: per feature, the newest day computed.

The database knows them, not this process, so each of several workers shows the same, and they are never added up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from featurestore.consistency.findings import FeatureDay
from featurestore.consistency.results import load_days

log = structlog.get_logger(__name__)

RATIO = (
    "headrace_feature_consistency_ratio",
    "Of the sampled values of the newest UTC day that was recomputed, by kind: mismatch, missing, stale.",
)
SAMPLES = ("headrace_feature_consistency_samples", "Sampled values of that day.")
LABELS = ("view", "version", "feature")


class ConsistencyGauges(Collector):
    """Reads the table of findings now and then; a lost database leaves the gauges as they are.

    Registered once with the page of a door's process.
    """

    def __init__(self, database: Engine) -> None:
        self._database = database
        self._days: Sequence[FeatureDay] = ()  # a feature that was not served on the newest day is not among them

    async def refresh(self) -> None:
        """Never raises."""
        try:
            self._days = await asyncio.to_thread(self._load)
        except SQLAlchemyError as error:
            log.warning("consistency_not_read", error=str(error))

    def collect(self) -> Iterable[Metric]:
        ratio, samples = GaugeMetricFamily(*RATIO, labels=(*LABELS, "kind")), GaugeMetricFamily(*SAMPLES, labels=LABELS)
        for day in self._days:
            labels = (day.view, str(day.version), day.feature)
            samples.add_metric(labels, day.samples)
            ratio.add_metric((*labels, "mismatch"), day.mismatch_ratio)
            ratio.add_metric((*labels, "missing"), day.missing_ratio)
            ratio.add_metric((*labels, "stale"), day.stale_ratio)
        return ratio, samples

    def _load(self) -> list[FeatureDay]:
        with Session(self._database) as session:
            return load_days(session, newest_only=True)
