"""The limit grows while latency stays near its least, shrinks when it does not, and keeps its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core_engine.gradient_limit import GradientLimit

FAST_S, SLOW_S = 0.0001, 0.1


def fed(limit: GradientLimit, latency_s: float, in_flight: int, windows: int = 1) -> GradientLimit:
    for _ in range(32 * windows):
        limit.add(latency_s, in_flight)
    return limit


def test_it_grows_while_the_latency_is_its_least() -> None:
    limit = GradientLimit(initial=16, largest=64)
    values = [fed(limit, FAST_S, 64).value for _ in range(100)]
    assert values == sorted(values)
    assert values[-1] == 64


def test_it_shrinks_while_the_latency_is_far_above_its_least() -> None:
    limit = fed(GradientLimit(initial=64, smallest=4), FAST_S, 64)
    values = [fed(limit, SLOW_S, 64).value for _ in range(200)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 4  # 0.5 * 4 + sqrt(4) is 4 again


def test_it_grows_again_when_the_congestion_is_over() -> None:
    limit = fed(fed(GradientLimit(initial=64), FAST_S, 64), SLOW_S, 64, windows=40)
    low = limit.value
    assert fed(limit, FAST_S, 64, windows=40).value > 4 * low


def test_a_limit_that_holds_nobody_back_is_left_as_it_is() -> None:
    limit = fed(GradientLimit(initial=64), FAST_S, 3)
    assert fed(limit, SLOW_S, 31, windows=10).value == 64
    assert fed(limit, FAST_S, 31, windows=10).value == 64


def test_some_slow_samples_among_many_do_not_shrink_it() -> None:
    limit = fed(GradientLimit(initial=64), FAST_S, 64)
    before = limit.value
    for i in range(64):
        limit.add(SLOW_S if i % 3 == 0 else FAST_S, 64)  # a collection, a neighbour on the machine
    assert limit.value >= before


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1000)), max_size=300))
def test_it_stays_in_its_bounds(samples: list[tuple[float, int]]) -> None:
    limit = GradientLimit(initial=8, smallest=2, largest=100, window=4)
    for latency_s, in_flight in samples:
        limit.add(latency_s, in_flight)
        assert 2 <= limit.value <= 100
