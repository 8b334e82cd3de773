"""What is learnt of a step's time: the share of a row, though the machine drifts and single steps are held up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.speculation.step_cost import StepCost
from core_engine.llm.step_time import StepTime

CALIBRATION = StepTime(a=0.003, b=0.0004, c=0.0005, d=1e-6, e=1e-8)


def shares(cost: StepCost, num_rows: int, num_drafts: int, context: int = 0) -> float:
    """What so many drafts add, as a share of the step without."""
    return cost.drafts_s(num_rows, num_drafts)[num_drafts] / cost.plain_s(num_rows, context)


def taught(seconds: Callable[[int], float], rows: tuple[int, ...], num_steps: int = 200) -> StepCost:
    """Rounds through `rows`, each step as long as `seconds` says of its rows."""
    cost = StepCost(CALIBRATION)
    for number in range(num_steps):
        num_rows = rows[number % len(rows)]
        cost.observe(num_rows, 0, seconds(num_rows))
    return cost


def test_before_anything_is_seen_a_draft_takes_what_the_calibration_says_of_a_decode_row() -> None:
    cost = StepCost(CALIBRATION)
    assert cost.plain_s(4, 1000) == pytest.approx(CALIBRATION.a + 4 * CALIBRATION.c + 1000 * CALIBRATION.d)
    assert cost.drafts_s(4, 300) == pytest.approx([number * CALIBRATION.c for number in range(301)])


def test_without_a_calibration_of_anything_but_rows_it_is_still_a_time() -> None:
    cost = StepCost(StepTime(a=0.0, b=0.0, c=0.001, d=0.0, e=0.0))
    cost.observe(3, 10, 0.004)
    assert cost.plain_s(3, 10) == pytest.approx(0.004, rel=0.1)


@pytest.mark.parametrize("slower", [0.5, 3.0])
def test_a_device_that_is_faster_or_slower_in_all_its_parts_is_known_within_thirty_steps(slower: float) -> None:
    cost = taught(lambda rows: slower * (CALIBRATION.a + rows * CALIBRATION.c), (4,), num_steps=30)
    assert cost.plain_s(4, 0) == pytest.approx(slower * 0.005, rel=0.1)
    assert shares(cost, 4, 4) == pytest.approx(shares(StepCost(CALIBRATION), 4, 4), rel=0.25)


@pytest.mark.parametrize("row_s", [0.00005, 0.0002, 0.001])
def test_the_share_of_a_row_comes_from_neighbouring_steps_whatever_the_machines_drift(row_s: float) -> None:
    """It slows down by half and recovers, over and over; between neighbours hardly anything changes."""
    rng, drift = random.Random(0), iter([1 + 0.5 * math.sin(number / 40) ** 2 for number in range(400)])
    held_up = [0.005 * (rng.random() < 0.05) for _ in range(400)]
    late = iter(held_up)
    cost = taught(
        lambda rows: (0.004 + row_s * rows) * next(drift) * (1 + rng.gauss(0, 0.02)) + next(late), (4, 4, 8), 400
    )
    assert shares(cost, 4, 4) == pytest.approx(4 * row_s / (0.004 + 4 * row_s), abs=0.06)


def test_rows_that_are_free_up_to_a_number_are_told_from_those_after_it() -> None:
    cost = taught(lambda rows: 0.005 + 0.001 * max(0, rows - 8), (2, 4, 8, 12, 16), 400)
    added = cost.drafts_s(2, 14)
    assert added[6] < 0.0006
    assert added[14] - added[6] == pytest.approx(0.008, rel=0.15)


def test_one_step_that_was_held_up_says_little() -> None:
    cost = taught(lambda rows: 0.004 + 0.0005 * rows, (4, 8))
    before = cost.plain_s(4, 0), shares(cost, 4, 4)
    cost.observe(8, 0, 0.5)
    assert cost.plain_s(4, 0) == pytest.approx(before[0], rel=0.15)
    assert shares(cost, 4, 4) == pytest.approx(before[1], rel=0.25)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_step_that_no_clock_could_measure_teaches_nothing(seconds: float) -> None:
    cost = StepCost(CALIBRATION)
    cost.observe(4, 100, seconds)
    assert cost.plain_s(4, 100) == StepCost(CALIBRATION).plain_s(4, 100)


steps = st.tuples(st.integers(1, 5000), st.integers(0, 100_000), st.floats(1e-9, 1e3))


@given(seen=st.lists(steps, max_size=60), repeats=st.integers(1, 20))
def test_whatever_is_seen_times_stay_positive_and_more_rows_never_take_less(
    seen: list[tuple[int, int, float]], repeats: int
) -> None:
    cost = StepCost(CALIBRATION)
    for each in seen * repeats:
        cost.observe(*each)
    assert 0 < cost.plain_s(1, 0) <= cost.plain_s(5000, 100_000) < math.inf
    added = cost.drafts_s(3, 700)
    assert added[0] == 0.0
    assert added == sorted(added)


def test_what_is_never_seen_stays_as_unknown_as_at_the_start_and_can_still_be_learnt() -> None:
    cost = taught(lambda rows: 0.005, (1,), 20_000)
    assert np.diag(cost._covariance).max() < 2 * np.diag(StepCost(CALIBRATION)._covariance).max()
    for _ in range(100):
        for num_rows in (32, 64):
            cost.observe(num_rows, 0, 0.005 + 0.0002 * num_rows)
    assert cost.drafts_s(32, 32)[32] == pytest.approx(0.0064, rel=0.2)
