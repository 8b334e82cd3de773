"""Estimates of acceptance: a prior, then what is seen, of a sequence before its kind."""

from __future__ import annotations

import random

import pytest

from core_engine.llm.speculation.acceptance import PRIOR, Acceptance


def seen(acceptance: Acceptance, sequence_id: str, kind: int, probability: float, drafts: int, length: int = 4) -> None:
    rng = random.Random(1)
    for _ in range(drafts):
        right = next((n for n in range(length) if rng.random() >= probability), length)
        acceptance.observe(sequence_id, kind, length, right)


def test_before_anything_is_seen_it_is_the_prior() -> None:
    assert Acceptance().estimate("new", 3) == PRIOR


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("length", [1, 4, 8])
def test_it_comes_near_the_probability_of_one_token_whatever_the_lengths_of_drafts(
    probability: float, length: int
) -> None:
    acceptance = Acceptance()
    seen(acceptance, "own", 2, probability, drafts=400, length=length)
    assert acceptance.estimate("own", 2) == pytest.approx(probability, abs=0.12)
    assert acceptance.estimate("another", 2) == pytest.approx(probability, abs=0.1)


def test_kinds_are_learnt_apart_and_a_sequences_own_past_goes_before_its_kind() -> None:
    acceptance = Acceptance()
    seen(acceptance, "good", 2, 0.9, drafts=50)
    assert acceptance.estimate("new", 4) == PRIOR
    seen(acceptance, "bad", 2, 0.1, drafts=50)
    assert acceptance.estimate("good", 2) > acceptance.estimate("new", 2) > acceptance.estimate("bad", 2)


def test_a_change_is_noticed_within_thirty_drafts() -> None:
    acceptance = Acceptance()
    seen(acceptance, "own", 2, 0.95, drafts=100)
    seen(acceptance, "own", 2, 0.05, drafts=30)
    assert acceptance.estimate("own", 2) < 0.65


def test_nothing_is_kept_of_a_sequence_that_has_ended() -> None:
    acceptance = Acceptance()
    seen(acceptance, "own", 2, 0.5, drafts=3)
    acceptance.forget("own")
    acceptance.forget("never seen")
    assert acceptance.num_sequences == 0
