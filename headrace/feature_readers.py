"""How every composition root reads features: the online reader, around it what is computed on demand, around that the
sample for the served log. Each process has one `FeatureReaders`, and makes a reader of it whenever its views change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog
from redis.asyncio import Redis

from core_engine.errors import ConfigurationError
from core_engine.metrics import Metrics
from core_engine.readers import FeatureReader
from core_engine.settings import Settings
from featurestore.consistency.capture import Capture
from featurestore.consistency.log_files import Bounds, LogFiles
from featurestore.consistency.sampled_reader import SampledReader
from featurestore.consistency.served_log import ServedLog
from featurestore.definitions import FeatureView
from featurestore.on_demand.declaration import OnDemandView
from featurestore.on_demand.plan import OnDemandPlan
from featurestore.on_demand.reader import OnDemandReader
from featurestore.online.read_cache import read_cache
from featurestore.online.reader import OnlineFeatureReader
from featurestore.online.store import OnlineStore

log = structlog.get_logger(__name__)


class FeatureReaders:
    """Stacks readers over the views that are served now. `role` (door, stream, batch) names the served log's files."""

    def __init__(self, settings: Settings, redis: Redis, metrics: Metrics, role: str) -> None:
        self._features = settings.features
        self._redis = redis
        self._cache = read_cache(settings.features)
        self._metrics = metrics
        self._log = _served_log(settings, metrics, role) if settings.features.served_sample_rate else None

    def stacked(self, views: Sequence[FeatureView], on_demand_views: Sequence[OnDemandView] = ()) -> FeatureReader:
        """A reader of `views`: one version of each. On-demand views that cannot be computed cost no stored feature."""
        on_demand_views = _computable(on_demand_views)
        store = OnlineStore(self._redis, views, self._features.retention_s, cache=self._cache)
        reader = OnDemandReader(OnlineFeatureReader(store, views), on_demand_views)
        capture = Capture(views, on_demand_views)
        return SampledReader(reader, capture, self._metrics, self._log, self._features.served_sample_rate)

    def close(self) -> None:
        """Write what was sampled; blocks on the disk."""
        if self._log is not None:
            self._log.close()


def _served_log(settings: Settings, metrics: Metrics, role: str) -> ServedLog:
    features = settings.features
    bounds = Bounds(features.served_file_bytes, features.served_total_bytes, timedelta(days=features.served_days))
    return ServedLog(LogFiles(settings.served_dir, role, bounds), metrics)


def _computable(views: Sequence[OnDemandView]) -> list[OnDemandView]:
    """Those whose functions can be loaded here; any other is named in the log and left out."""
    return [view for view in views if _is_computable(view)]


def _is_computable(view: OnDemandView) -> bool:
    try:
        OnDemandPlan([view])
    except ConfigurationError as error:
        log.error("on_demand_view_not_served", view=view.name, error=str(error))
        return False
    return True
