"""The forecast against what happens: the peak is never below a step-by-step count, and not far above it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.kv_forecast import WINDOW, Holding, LengthHistory, peak_blocks

SIZE = 4


def counted(rows: list[tuple[int, int]]) -> int:
    """Blocks at the worst step, one token per sequence and step; each is gone once its last token is stored."""
    longest = max(remaining for _, remaining in rows)
    return max(
        sum(-(-(tokens + t) // SIZE) for tokens, remaining in rows if t <= remaining) for t in range(longest + 1)
    )


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=12))
def test_the_peak_is_an_upper_bound_and_at_most_a_block_per_sequence_too_high(rows: list[tuple[int, int]]) -> None:
    holdings = [Holding(tokens, remaining, -(-tokens // SIZE)) for tokens, remaining in rows]
    forecast = peak_blocks(holdings, sum(h.num_blocks for h in holdings), SIZE)
    assert counted(rows) <= forecast <= counted(rows) + len(rows)


def test_one_that_ends_early_makes_room_for_one_that_grows() -> None:
    together = [Holding(40, 4, 10), Holding(4, 36, 1)]
    assert peak_blocks(together, 11, SIZE) < 10 + 1 + 9  # both at their longest would be 21


def test_shared_blocks_count_once_and_stay_when_one_holder_leaves() -> None:
    # ten blocks of prompt that two hold together, each with one of its own
    rows = [Holding(44, 0, 11, num_shared=10), Holding(44, 8, 11, num_shared=10)]
    assert 12 <= peak_blocks(rows, 12, SIZE) <= 12 + 2 + 2


def test_before_anything_has_ended_a_completion_is_expected_to_use_all_it_may() -> None:
    assert LengthHistory().remaining(10, 100) == 90


def test_the_expectation_is_of_those_that_got_further_than_this_one() -> None:
    history = LengthHistory()
    for _ in range(31):
        history.ended(10, 100)
    for _ in range(9):
        history.ended(80, 100)
    assert history.remaining(0, 100) == 10
    assert history.remaining(10, 100) == 70
    assert history.remaining(90, 100) == 10


def test_a_head_has_nothing_to_come() -> None:
    assert LengthHistory().remaining(0, 0) == 0


def test_only_the_last_ones_are_remembered() -> None:
    history = LengthHistory()
    for _ in range(WINDOW):
        history.ended(100, 100)
    for _ in range(WINDOW):
        history.ended(1, 100)
    assert history.remaining(0, 100) == 1


@given(
    ended=st.lists(st.tuples(st.integers(1, 50), st.integers(50, 80)), max_size=40),
    completion=st.integers(0, 49),
    maximum=st.integers(50, 90),
)
def test_at_least_one_token_and_never_more_than_allowed(
    ended: list[tuple[int, int]], completion: int, maximum: int
) -> None:
    history = LengthHistory()
    for tokens, limit in ended:
        history.ended(tokens, limit)
    assert 1 <= history.remaining(completion, maximum) <= maximum - completion


@pytest.mark.parametrize("num_held", [0, 7])
def test_nobody_holds_nothing(num_held: int) -> None:
    assert peak_blocks([], num_held, SIZE) == num_held
