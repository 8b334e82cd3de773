"""The margin on a forecast: where it settles, what it never does, and that it fades."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.forecast_margin import FADES_S, LATE_SHARE, STEP_S, ForecastMargin


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@given(st.lists(st.tuples(st.floats(-1.0, 1.0), st.floats(0.0, 10.0)), max_size=60))
def test_it_is_never_negative_nor_more_than_a_step_above_the_latest_answer(seen: list[tuple[float, float]]) -> None:
    clock = Clock()
    margin = ForecastMargin(clock)
    for late_s, passed_s in seen:
        clock.now_s += passed_s
        margin.observe(late_s)
        assert 0 <= margin.value_s <= max(0.0, *(late for late, _ in seen)) + STEP_S


def test_answers_that_keep_to_their_forecast_need_none() -> None:
    margin = ForecastMargin(Clock())
    for _ in range(100):
        margin.observe(-0.001)
    assert margin.value_s == 0


def test_it_settles_where_few_come_later() -> None:
    late_s = np.random.default_rng(0).uniform(0.0, 0.030, size=20_000)
    margin = ForecastMargin(Clock())
    above = 0
    for index, each in enumerate(late_s):
        above += index >= 10_000 and each > margin.value_s
        margin.observe(float(each))
    assert above / 10_000 == pytest.approx(LATE_SHARE, rel=0.25)


def test_it_rises_fast_and_fades_when_nobody_is_admitted_any_more() -> None:
    clock = Clock()
    margin = ForecastMargin(clock)
    for _ in range(10):
        margin.observe(1.0)
    assert margin.value_s == pytest.approx(10 * STEP_S * (1 - LATE_SHARE))
    clock.now_s += FADES_S
    assert margin.value_s == pytest.approx(10 * STEP_S * (1 - LATE_SHARE) / math.e)
