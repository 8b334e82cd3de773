"""The chosen lengths against trying out all of them."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.speculation.draft_lengths import LEAST, Candidate, Costs, best, plain

probabilities = st.floats(0, 1) | st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0])
candidates = st.lists(st.builds(Candidate, st.integers(1, 4), probabilities), min_size=1, max_size=3)
step_s, row_s = st.floats(0.1, 100), st.floats(0, 20) | st.just(0.0)
turn_s = st.just(0.0) | st.floats(0.001, 20)


MOST = 100


def rows_of(*seconds: float) -> list[float]:
    """The first draft token takes so long, the second so long, ...; further ones as long as the last of these."""
    return list(accumulate([*seconds, *[seconds[-1]] * MOST], initial=0.0))


costs = st.builds(Costs, step_s, st.lists(row_s, min_size=1, max_size=9).map(lambda each: rows_of(*each)), turn_s)


def rate(lengths: tuple[int, ...], own: Costs, num_rows: int, among: list[Candidate]) -> float:
    tokens = num_rows + sum(p**n for (_, p), length in zip(among, lengths, strict=True) for n in range(1, length + 1))
    return tokens / (own.step_s + own.drafts_s[sum(lengths)] + own.turn_s * max(lengths))


@given(own=costs, among=candidates, others=st.integers(0, 5))
def test_no_other_lengths_make_more_tokens_per_second(own: Costs, among: list[Candidate], others: int) -> None:
    num_rows = len(among) + others
    chosen = best(own, num_rows, among)
    assert all(0 <= length <= candidate.most for length, candidate in zip(chosen.lengths, among, strict=True))
    assert chosen.rate == pytest.approx(rate(tuple(chosen.lengths), own, num_rows, among))
    every = product(*(range(candidate.most + 1) for candidate in among))
    # tokens that are hardly ever right are never drafted, if they cost nothing
    assert chosen.rate >= max(rate(lengths, own, num_rows, among) for lengths in every) * (1 - 2 * LEAST)


def test_nothing_is_drafted_where_a_row_costs_more_than_it_can_bring() -> None:
    chosen = best(Costs(2.0, rows_of(1.0)), 2, [Candidate(4, 0.9), Candidate(4, 0.1)])
    assert chosen.lengths == [0, 0]
    assert chosen.rate == plain(Costs(2.0, rows_of(1.0)), 2, chosen.lengths).rate == 1.0  # type: ignore[arg-type]


def test_likely_drafts_are_long_beside_unlikely_ones_that_are_short() -> None:
    likely, unlikely = best(Costs(10.0, rows_of(1.0)), 2, [Candidate(9, 0.9), Candidate(9, 0.35)]).lengths
    assert likely > 3 > unlikely


def test_a_draft_models_turns_are_shared_by_all_who_take_part() -> None:
    own = Costs(10.0, rows_of(0.1), turn_s=3.0)
    assert best(own, 8, [Candidate(4, 0.5)]).lengths == [0]
    assert best(own, 8, [Candidate(4, 0.5)] * 8).lengths == [1] * 8


def test_rows_that_cost_nothing_up_to_a_number_are_filled_up_to_it() -> None:
    own = Costs(10.0, rows_of(0.0, 0.0, 0.0, 8.0))
    assert best(own, 2, [Candidate(4, 0.9), Candidate(4, 0.8)]).lengths == [2, 1]
