"""What protects a door, as its metrics show it.

A process that is alone is asked for its figures when somebody reads them, so that no request pays for it. Of several
workers, the one that is asked cannot ask the others: each writes its own down now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import Gauge

from core_engine.breaker import Breaker
from core_engine.metrics import Metrics
from core_engine.predictors.places import Places
from core_engine.predictors.predict import PredictFlow


@dataclass(frozen=True, slots=True)
class Figure:
    gauge: Gauge
    read: Callable[[], float]


def protection(metrics: Metrics, flow: PredictFlow, places: Places, store_breaker: Breaker) -> Sequence[Figure]:
    """The limit, who stands before it, and the breakers."""
    return (
        Figure(metrics.predict_limit, lambda: places.limit.value),
        Figure(metrics.predict_places.labels("held"), lambda: places.in_flight),
        Figure(metrics.predict_places.labels("waiting"), lambda: places.num_waiting),
        Figure(metrics.breaker_state.labels("store"), lambda: store_breaker.state),
        Figure(metrics.breaker_state.labels("engine"), lambda: flow.engine_breaker),
    )


def show(figures: Sequence[Figure]) -> None:
    """Have each read whenever it is asked for; once, by a process that is alone."""
    for figure in figures:
        figure.gauge.set_function(figure.read)


def write_down(figures: Sequence[Figure]) -> None:
    """Set each to what it is now; now and then, by one of several workers."""
    for figure in figures:
        figure.gauge.set(figure.read())
