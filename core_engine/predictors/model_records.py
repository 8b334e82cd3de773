"""How each predictor's model has answered of late: how long it takes as a rule, and whether it answers at all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from core_engine.breaker import Breaker
from core_engine.contracts import Monotonic
from core_engine.predictors.declaration import Predictor
from core_engine.rolling_quantile import RollingQuantile

LATE = 0.95
FAIR_SHARE = 0.5  # of the declared budget: a model that had less was given no fair chance
SILENCE_S = 0.5  # without one answer, and with failures all along
MAX_VERSIONS = 256


class ModelRecord:
    """Of one version. A late answer counts against it only where it had `fair_s` or more."""

    def __init__(self, fair_s: float, clock: Monotonic) -> None:
        self.times = RollingQuantile(LATE)
        self.breaker = Breaker(span_s=SILENCE_S, clock=clock)
        self._fair_s = fair_s

    def answered(self, elapsed_s: float) -> None:
        self.times.add(elapsed_s)
        self.breaker.succeeded()

    def was_late(self, elapsed_s: float) -> None:
        self.times.add(elapsed_s)
        if elapsed_s >= self._fair_s:
            self.breaker.failed()


class ModelRecords:
    """By version, at most `MAX_VERSIONS`, the oldest out first."""

    def __init__(self, clock: Monotonic) -> None:
        self._clock = clock
        self._records: dict[str, ModelRecord] = {}

    def of(self, predictor: Predictor) -> ModelRecord:
        record = self._records.get(predictor.id)
        if record is None:
            record = self._records[predictor.id] = ModelRecord(FAIR_SHARE * predictor.budget_ms / 1e3, self._clock)
            while len(self._records) > MAX_VERSIONS:
                del self._records[next(iter(self._records))]
        return record

    @property
    def by_version(self) -> Mapping[str, ModelRecord]:
        return MappingProxyType(self._records)
