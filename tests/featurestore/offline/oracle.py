"""What was known at an instant, by looking at every row: the specification that the stores are held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
from hypothesis import strategies as st

from core_engine.contracts import FeatureState
from tests.featurestore.rows import HOUR, NOW

KEYS = ("N1", "N2", "Zürich-東京")


@dataclass(frozen=True)
class Known:
    """One row of a history. Its place in the list settles rows equal in both clocks: the later one wins."""

    key: str
    event: datetime
    created: datetime
    value: int | None


def hours(low: int, high: int) -> st.SearchStrategy[datetime]:
    """Few instants, so that ties and crossings of the clocks are the rule."""
    return st.integers(low, high).map(lambda hour: NOW + hour * HOUR)


HISTORIES = st.lists(
    st.builds(Known, st.sampled_from(KEYS), hours(-6, 6), hours(-6, 6), st.none() | st.integers(0, 99)), max_size=25
)
SPINES = st.lists(st.tuples(st.sampled_from([*KEYS, "unknown", None]), hours(-8, 8)), max_size=15)


def newest_known(history: Sequence[Known], key: str | None, at: datetime) -> Known | None:
    visible = [(row.event, row.created, i) for i, row in enumerate(history) if row.key == key and row.event <= at]
    visible = [place for place in visible if place[1] <= at]
    return history[max(visible)[2]] if visible else None


def served(known: Known | None, at: datetime, ttl: timedelta) -> tuple[int | None, FeatureState]:
    if known is None:
        return None, FeatureState.MISSING
    if at - known.event > ttl:
        return known.value, FeatureState.STALE
    return known.value, FeatureState.NULL if known.value is None else FeatureState.PRESENT


def columns(history: Sequence[Known]) -> dict[str, pa.Array]:
    """`history` as the columns of a source with one feature, `delay`."""
    instant = pa.timestamp("us", tz="UTC")
    return {
        "entity_key": pa.array([row.key for row in history], pa.string()),
        "event_time": pa.array([row.event for row in history], instant),
        "created_time": pa.array([row.created for row in history], instant),
        "delay": pa.array([row.value for row in history], pa.int64()),
    }
