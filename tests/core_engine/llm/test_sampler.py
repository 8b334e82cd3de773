"""The sampler over many steps: neighbours, place, pre-emption and broken rows change nobody else's tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import SamplingParams
from core_engine.llm.sampler import Sampler
from core_engine.llm.sequence import Sequence
from tests.core_engine.llm.tiny import request

VOCAB = 50
NO_EOS = frozenset[int]()

any_dials = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.5]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.7]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 9),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5]),
    min_tokens=st.sampled_from([0, 3]),
    logit_bias=st.sampled_from([(), ((3, 5.0), (4, -100.0))]),
    logprobs=st.sampled_from([None, 0, 4]),
)


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def new(sampling: SamplingParams, name: str | None = None) -> Sequence:
    return Sequence(request((7, 8, 9, 7), sampling=sampling, attempt_id=name), 0.0)


def take(sampler: Sampler, logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    """One step: sample, and append each token to its sequence."""
    tokens = sampler.sample(logits.clone(), sequences).tokens
    for sequence in sequences:
        sequence.token_ids.append(tokens[sequence.id])
    return [tokens[sequence.id] for sequence in sequences]


def test_temperature_zero_is_the_argmax() -> None:
    logits = logits_of(5, rows=4)
    assert take(Sampler(NO_EOS), logits, [new(SamplingParams()) for _ in range(4)]) == logits.argmax(-1).tolist()


@given(own=any_dials, others=st.lists(any_dials, max_size=4), place=st.integers(0, 4))
def test_what_a_request_gets_does_not_depend_on_neighbours_or_its_place(
    own: SamplingParams, others: list[SamplingParams], place: int
) -> None:
    place = min(place, len(others))
    alone, crowded, mine, twin = Sampler(NO_EOS), Sampler(NO_EOS), new(own), new(own)
    neighbours = [new(other) for other in others]
    for step in range(8):
        logits = logits_of(step, rows=len(others) + 1)
        crowd = [*neighbours[:place], twin, *neighbours[place:]]
        found = crowded.sample(logits.clone(), crowd)
        expected = alone.sample(logits[place : place + 1].clone(), [mine])
        assert found.tokens[twin.id] == expected.tokens[mine.id]
        assert found.logprobs.get(twin.id) == expected.logprobs.get(mine.id)
        for sequence in (mine, *crowd):
            sequence.token_ids.append((found.tokens | expected.tokens)[sequence.id])


@given(dials=any_dials, forgotten=st.sets(st.integers(0, 9)))
def test_a_sequence_that_was_forgotten_and_comes_again_goes_on_as_if_nothing_had_happened(
    dials: SamplingParams, forgotten: set[int]
) -> None:
    steady, shaken, one, two = Sampler(NO_EOS), Sampler(NO_EOS), new(dials), new(dials)
    for step in range(10):
        if step in forgotten:
            shaken.forget(two.id)
        assert take(steady, logits_of(step), [one]) == take(shaken, logits_of(step), [two])


def test_unseeded_draws_survive_being_forgotten_too_but_differ_by_request_and_engine() -> None:
    unseeded, flat = SamplingParams(temperature=1.0), torch.zeros(1, 100_000)
    sampler, sequence = Sampler(NO_EOS), new(unseeded, "one")
    first = sampler.sample(flat.clone(), [sequence]).tokens["one"]
    sampler.forget("one")
    sampler.forget("never seen")
    assert sampler.sample(flat.clone(), [sequence]).tokens["one"] == first
    again = Sequence(sequence.request, 1.0)  # the same id, sent a second time
    others = [sampler.sample(flat.clone(), [new(unseeded)]).tokens for _ in range(3)]
    elsewhere = Sampler(NO_EOS).sample(flat.clone(), [sequence]).tokens["one"]
    sampler.forget("one")
    ids = [first, elsewhere, sampler.sample(flat.clone(), [again]).tokens["one"]]
    assert len({*ids, *(token for each in others for token in each.values())}) == 6


def test_a_given_seed_is_the_same_in_every_engine_and_under_every_id() -> None:
    flat, seeded = torch.zeros(1, 100_000), SamplingParams(temperature=1.0, seed=4)
    tokens = {Sampler(NO_EOS).sample(flat.clone(), [new(seeded)]).tokens.popitem()[1] for _ in range(3)}
    assert len(tokens) == 1
    other = SamplingParams(temperature=1.0, seed=5)
    assert Sampler(NO_EOS).sample(flat.clone(), [new(other)]).tokens.popitem()[1] not in tokens


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_finite_logits_fails_alone(broken: float, temperature: float) -> None:
    dials = SamplingParams(temperature=temperature, seed=1, logprobs=1)
    logits = logits_of(9, rows=3)
    expected = Sampler(NO_EOS).sample(logits[::2].clone(), sequences := [new(dials), new(dials)])
    logits[1] = broken
    bad = new(dials)
    found = Sampler(NO_EOS).sample(logits, [sequences[0], bad, sequences[1]])
    assert list(found.failures) == [bad.id]
    assert "no finite logit" in str(found.failures[bad.id])
    assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


def test_min_tokens_keeps_every_end_away_until_it_is_reached() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [2, 3]] = torch.tensor([9.0, 8.0])  # eos, then a stop id
    sequence = new(SamplingParams(min_tokens=3, stop_token_ids=(3,)))
    sampler = Sampler(frozenset({2}))
    tokens = [take(sampler, logits, [sequence])[0] for _ in range(4)]
    assert not {2, 3} & set(tokens[:3])
    assert tokens[3] == 2


def test_nothing_is_kept_of_a_sequence_that_has_ended() -> None:
    sampler = Sampler(NO_EOS)
    sequences = [new(SamplingParams(temperature=1, presence_penalty=1)), new(SamplingParams())]
    take(sampler, logits_of(1, rows=2), sequences)
    assert sampler.num_sequences == 2
    for sequence in sequences:
        sampler.forget(sequence.id)
    assert sampler.num_sequences == 0
