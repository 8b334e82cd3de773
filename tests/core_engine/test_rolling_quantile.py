"""The quantile is that of the values in the window, known once enough have come."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from core_engine.rolling_quantile import RollingQuantile


@given(
    values=st.lists(st.floats(0, 10), min_size=1, max_size=120),
    share=st.floats(0, 1),
    window=st.integers(1, 40),
    every=st.integers(1, 10),
)
def test_it_is_the_nearest_rank_of_the_last_values_as_of_the_last_look(
    values: list[float], share: float, window: int, every: int
) -> None:
    quantile = RollingQuantile(share, window, every)
    for value in values:
        quantile.add(value)
    seen = values[: len(values) // every * every][-window:]
    if not seen:
        assert quantile.value is None
        return
    assert quantile.value in seen
    rank = max(1, math.ceil(share * len(seen)))
    assert sum(value < quantile.value for value in seen) < rank <= sum(value <= quantile.value for value in seen)


def test_old_values_are_forgotten() -> None:
    quantile = RollingQuantile(0.95, window=8, every=8)
    for value in [5.0] * 8 + [1.0] * 8:
        quantile.add(value)
    assert quantile.value == 1.0
