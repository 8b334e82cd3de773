"""Every kind of aggregate in one view, and what each comes to over a list of events, by the words of its definition."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from featurestore.definitions import Aggregate, AggregateKind, FeatureType, FeatureView, Field
from tests.featurestore.windows.oracle import Departure, window_view

K = AggregateKind
AGGREGATES = (
    Aggregate(feature="flights", kind=K.COUNT),
    Aggregate(feature="total", kind=K.SUM, of="delay"),
    Aggregate(feature="mean_delay", kind=K.MEAN, of="delay"),
    Aggregate(feature="late_share", kind=K.MEAN, of="delay", at_least=15),
    Aggregate(feature="least", kind=K.MIN, of="delay"),
    Aggregate(feature="most", kind=K.MAX, of="delay"),
    Aggregate(feature="spread", kind=K.STDDEV, of="delay"),
    Aggregate(feature="newest", kind=K.LAST, of="delay", size=3),
    Aggregate(feature="newest_late", kind=K.LAST, of="delay", at_least=15, size=2),
    Aggregate(feature="planes", kind=K.DISTINCT, of="plane"),
    Aggregate(feature="median", kind=K.QUANTILE, of="delay", quantile=0.5),
    Aggregate(feature="tenth", kind=K.QUANTILE, of="delay", quantile=0.9),
)
EXACT = tuple(a for a in AGGREGATES if a.kind not in {K.DISTINCT, K.QUANTILE})
WHOLE = {K.COUNT, K.DISTINCT}

# whole and split seconds around ticks; every delay is a whole number of quarters, so that floats add up exactly
DEPARTURES = st.builds(
    Departure,
    seconds=st.integers(0, 240).map(lambda n: n / 2),
    delay=st.integers(-120, 1200).map(lambda n: n / 4),
    offset=st.integers(0, 40),
    source=st.sampled_from(["departures/0", "departures/1", "départs/0"]),
    origin=st.sampled_from(["JFK", "L-G"]),
)


def kinds_view(aggregates: Sequence[Aggregate] = AGGREGATES, tiles_path: str = "none", **window: Any) -> FeatureView:
    """Three tiles of ten seconds with these aggregates; `window` has other dials."""
    base = window_view(tiles_path)
    assert base.window is not None
    changed = msgspec.structs.replace(base.window, aggregates=tuple(aggregates), **window)
    return msgspec.structs.replace(base, schema=schema_of(aggregates), window=changed)


def schema_of(aggregates: Sequence[Aggregate]) -> tuple[Field, ...]:
    return tuple(
        Field(
            name=aggregate.feature,
            type=FeatureType.INT64 if aggregate.kind in WHOLE else FeatureType.FLOAT64,
            is_list=aggregate.kind is K.LAST,
        )
        for aggregate in aggregates
    )


def brute(events: Sequence[Departure], aggregates: Sequence[Aggregate] = AGGREGATES) -> list[Any]:
    """The values over these events; a standard deviation to twelve digits, all others exact. Up to 200 events: beyond
    that sketches estimate."""
    ordered = sorted(events, key=lambda event: (event.seconds, event.source.encode(), event.offset), reverse=True)
    return [_value(aggregate, ordered) for aggregate in aggregates]


def _value(aggregate: Aggregate, newest_first: Sequence[Departure]) -> Any:
    if aggregate.kind is K.DISTINCT:
        return len({event.plane for event in newest_first})
    bar = aggregate.at_least
    numbers = [event.delay if bar is None else float(event.delay >= bar) for event in newest_first]
    match aggregate.kind:
        case K.COUNT:
            return len(numbers)
        case K.SUM:
            return float(sum(map(Fraction, numbers)))
        case K.LAST:
            return [float(number) for number in numbers[: aggregate.size]]
    return _statistic(aggregate, numbers) if numbers else None


def _statistic(aggregate: Aggregate, numbers: Sequence[float]) -> Any:
    match aggregate.kind:
        case K.MEAN:
            return float(sum(map(Fraction, numbers))) / len(numbers)
        case K.STDDEV:
            return pytest.approx(statistics.pstdev(map(Fraction, numbers)), rel=1e-12)
        case K.QUANTILE:
            assert aggregate.quantile is not None
            return float(sorted(numbers)[max(0, math.ceil(aggregate.quantile * len(numbers)) - 1)])
    return float({K.MIN: min, K.MAX: max}[aggregate.kind](numbers))


def once_each(events: Sequence[Departure]) -> list[Departure]:
    """One event per coordinates, as a log has it; repetitions of the same stay."""
    log: dict[tuple[str, int], Departure] = {}
    return [log.setdefault(event.coordinates, event) for event in events]
