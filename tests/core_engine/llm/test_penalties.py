"""Bias, penalties and min_tokens against transformers' processors, and in their order."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from core_engine.contracts import SamplingParams
from core_engine.llm.penalties import Penalties, TokenCounts
from core_engine.llm.sequence import Sequence
from tests.core_engine.llm.tiny import request

VOCAB, EOS = 40, 2
token_lists = st.lists(st.integers(0, VOCAB - 1), max_size=120)


def sequence_of(prompt: list[int], completion: list[int], sampling: SamplingParams) -> Sequence:
    sequence = Sequence(request(prompt, sampling=sampling), 0.0)
    sequence.token_ids += completion
    return sequence


def changed(logits: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    row = logits.clone()
    Penalties(sequence, frozenset({EOS})).apply(row.numpy(), sequence)  # the same memory
    return row


def random_row(seed: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=80),
    completion=token_lists,
    penalty=st.floats(0.1, 3),
    bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), min_size=1, max_size=8),
    min_tokens=st.integers(0, 10),
    seed=st.integers(0, 1000),
)
def test_bias_repetition_and_min_tokens_are_those_of_transformers_in_its_order(
    prompt: list[int], completion: list[int], penalty: float, bias: dict[int, float], min_tokens: int, seed: int
) -> None:
    sampling = SamplingParams(
        repetition_penalty=penalty, logit_bias=tuple(bias.items()), min_tokens=min_tokens, stop_token_ids=(5,)
    )
    ours = changed(random_row(seed), sequence_of(prompt, completion, sampling))
    processors = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()]),
            RepetitionPenaltyLogitsProcessor(penalty),
            MinNewTokensLengthLogitsProcessor(len(prompt), min_tokens, [EOS, 5], device="cpu"),
        ]
    )
    theirs = processors(torch.tensor([prompt + completion]), random_row(seed).unsqueeze(0))[0]
    torch.testing.assert_close(ours, theirs)


@given(completion=token_lists, presence=st.floats(-2, 2), frequency=st.floats(-2, 2))
def test_presence_and_frequency_count_the_completion_alone(
    completion: list[int], presence: float, frequency: float
) -> None:
    sampling = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    ours = changed(random_row(1), sequence_of([1, 1, 3], completion, sampling))
    counts = Counter(completion)
    expected = random_row(1)
    for token in counts:
        expected[token] -= counts[token] * frequency + presence
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(("ignore_eos", "masked"), [(False, {EOS, 7}), (True, {7})])
def test_only_what_would_end_it_is_masked_and_only_until_min_tokens(ignore_eos: bool, masked: set[int]) -> None:
    sampling = SamplingParams(min_tokens=2, stop_token_ids=(7,), ignore_eos=ignore_eos)
    for num_tokens in (0, 1, 2):
        row = changed(random_row(2), sequence_of([1], [9] * num_tokens, sampling))
        found = set(row.isinf().nonzero()[:, 0].tolist())
        assert found == (masked if num_tokens < 2 else set())


@given(tokens=st.lists(st.integers(0, 500), max_size=400), data=st.data())
def test_counts_that_catch_up_in_pieces_are_those_of_the_whole(tokens: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(tokens)))
    counts, known = TokenCounts(start), 0
    while known < len(tokens):
        known = min(len(tokens), known + data.draw(st.integers(1, 100)))
        counts.update(tokens[:known])
    found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))
    assert found == Counter(tokens[start:])


def test_dials_at_their_defaults_need_no_work_and_each_one_that_is_moved_does() -> None:
    assert not Penalties.needed(SamplingParams(temperature=1, top_k=5, seed=3, stop_token_ids=(1,), logprobs=2))
    for moved in (
        SamplingParams(logit_bias=((1, 2.0),)),
        SamplingParams(min_tokens=1),
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=0.1),
        SamplingParams(frequency_penalty=-0.1),
    ):
        assert Penalties.needed(moved)
