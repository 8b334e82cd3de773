"""What protects a door, as its metrics show it: read when somebody asks, so that no request pays for it."""

from __future__ import annotations

from core_engine.breaker import Breaker
from core_engine.metrics import Metrics
from core_engine.predictors.places import Places
from core_engine.predictors.predict import PredictFlow


def show_protection(metrics: Metrics, flow: PredictFlow, places: Places, store_breaker: Breaker) -> None:
    """Connect the gauges of the limit and of the breakers; once per process."""
    metrics.predict_limit.set_function(lambda: places.limit.value)
    metrics.predict_places.labels("held").set_function(lambda: places.in_flight)
    metrics.predict_places.labels("waiting").set_function(lambda: places.num_waiting)
    metrics.breaker_state.labels("store").set_function(lambda: store_breaker.state)
    metrics.breaker_state.labels("engine").set_function(lambda: flow.engine_breaker)
