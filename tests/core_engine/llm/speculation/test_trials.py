"""When lengths other than the best are tried: never much is lost by it, and what is nearly as good is tried often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.speculation.draft_lengths import Candidate, Choice, Costs, best, plain
from core_engine.llm.speculation.trials import FIRST_STEPS, LEAST_LOSS, LEAST_ROWS, MOST_LOSS, SHARE, Trials

NUM_STEPS = 2000


def costs_of(row_s: float) -> Costs:
    return Costs(1.0, [row_s * count for count in range(200)])


def tried(chosen: Choice, costs: Costs, candidates: list[Candidate]) -> list[list[int]]:
    """What is tried in so many steps with the same choice."""
    trials = Trials()
    lengths = [trials.lengths(chosen, costs, len(candidates), candidates) for _ in range(NUM_STEPS)]
    return [each for each in lengths if each != chosen.lengths]


def rate(lengths: list[int], costs: Costs, candidates: list[Candidate]) -> float:
    tokens = sum(1 + each.expected(length) for each, length in zip(candidates, lengths, strict=True))
    return tokens / costs.seconds(lengths)


@given(row_s=st.floats(0, 2), acceptance=st.floats(0, 1), batch=st.integers(1, 20))
def test_what_all_trials_lose_is_a_small_share_of_the_time(row_s: float, acceptance: float, batch: int) -> None:
    costs, candidates = costs_of(row_s), [Candidate(8, acceptance)] * batch
    chosen = max(plain(costs, batch, candidates), best(costs, batch, candidates), key=lambda choice: choice.rate)
    lost = [
        costs.seconds(each) * (1 - rate(each, costs, candidates) / chosen.rate)
        for each in tried(chosen, costs, candidates)
    ]
    worst = max([0.0, *lost])
    # one that is thought to lose more than a step is still made, or it could never be seen that it does not
    assert sum(lost) <= (FIRST_STEPS + SHARE * NUM_STEPS) * max(1.0, worst / MOST_LOSS) * (1 + 1e-9)
    assert len(lost) <= (FIRST_STEPS + SHARE * NUM_STEPS) / LEAST_LOSS


def test_where_none_pay_short_drafts_are_tried_seldom_and_by_everybody() -> None:
    costs, candidates = costs_of(0.5), [Candidate(8, 0.05)] * 2
    found = tried(plain(costs, 2, candidates), costs, candidates)
    assert found[0] == [LEAST_ROWS // 2] * 2
    assert 0 < len(found) < 0.01 * NUM_STEPS


def test_one_who_is_alone_tries_no_more_than_is_offered() -> None:
    costs, candidates = costs_of(0.5), [Candidate(1, 0.05)]
    assert tried(plain(costs, 1, candidates), costs, candidates)[0] == [1]


def test_where_drafts_pay_longer_ones_and_none_are_tried_in_turn() -> None:
    costs, candidates = costs_of(0.1), [Candidate(8, 0.6)] * 2
    chosen = best(costs, 2, candidates)
    found = tried(chosen, costs, candidates)
    assert sum(found[0]) > sum(chosen.lengths) > 0
    assert found[1] == [0, 0]
    assert found[2:4] == found[:2]


def test_what_is_nearly_as_good_is_tried_more_often_than_what_is_bad() -> None:
    candidates = [Candidate(4, 0.3)] * 4
    near, far = (tried(plain(costs_of(row_s), 4, candidates), costs_of(row_s), candidates) for row_s in (0.08, 0.2))
    assert len(near) > 2 * len(far) > 0


@pytest.mark.parametrize("budget", [0.0, 5.0])
def test_a_step_that_takes_no_time_is_left_as_it_is(budget: float) -> None:
    trials, candidates = Trials(), [Candidate(4, 0.5)]
    trials._budget_steps = budget
    costs = Costs(0.0, [0.0] * 9)
    assert trials.lengths(plain(costs, 1, candidates), costs, 1, candidates) == [0]
