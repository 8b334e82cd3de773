"""The chosen lengths against trying out all of them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.speculation.draft_lengths import Candidate, Costs, best, plain

probabilities = st.floats(0, 1) | st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0])
candidates = st.lists(st.builds(Candidate, st.integers(1, 4), probabilities), min_size=1, max_size=3)
costs = st.builds(Costs, st.floats(0.1, 100), st.floats(0, 20) | st.just(0.0), st.just(0.0) | st.floats(0.001, 20))


def rate(lengths: tuple[int, ...], own: Costs, num_rows: int, among: list[Candidate]) -> float:
    tokens = num_rows + sum(p**n for (_, p), length in zip(among, lengths, strict=True) for n in range(1, length + 1))
    return tokens / (own.step_s + own.row_s * sum(lengths) + own.turn_s * max(lengths))


@given(own=costs, among=candidates, others=st.integers(0, 5))
def test_no_other_lengths_make_more_tokens_per_second(own: Costs, among: list[Candidate], others: int) -> None:
    num_rows = len(among) + others
    chosen = best(own, num_rows, among)
    assert all(0 <= length <= candidate.most for length, candidate in zip(chosen.lengths, among, strict=True))
    assert chosen.rate == pytest.approx(rate(tuple(chosen.lengths), own, num_rows, among))
    every = product(*(range(candidate.most + 1) for candidate in among))
    assert chosen.rate >= max(rate(lengths, own, num_rows, among) for lengths in every) * (1 - 1e-9)


def test_nothing_is_drafted_where_a_row_costs_more_than_it_can_bring() -> None:
    chosen = best(Costs(step_s=2.0, row_s=1.0), 2, [Candidate(4, 0.9), Candidate(4, 0.1)])
    assert chosen.lengths == [0, 0]
    assert chosen.rate == plain(Costs(2.0, 1.0), 2, chosen.lengths).rate == 1.0  # type: ignore[arg-type]


def test_likely_drafts_are_long_beside_unlikely_ones_that_are_short() -> None:
    likely, unlikely = best(Costs(step_s=10.0, row_s=1.0), 2, [Candidate(9, 0.9), Candidate(9, 0.35)]).lengths
    assert likely > 3 > unlikely


def test_a_draft_models_turns_are_shared_by_all_who_take_part() -> None:
    own = Costs(step_s=10.0, row_s=0.1, turn_s=3.0)
    assert best(own, 8, [Candidate(4, 0.5)]).lengths == [0]
    assert best(own, 8, [Candidate(4, 0.5)] * 8).lengths == [1] * 8
