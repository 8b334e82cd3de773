"""The sampler against transformers' filters, and against its neighbours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from core_engine.contracts import SamplingParams
from core_engine.llm.sampler import Sampler, draw

VOCAB = 50


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def kept_by_transformers(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Probabilities [vocab] after transformers' own warpers in their own order."""
    scores, ids = logits.unsqueeze(0).double(), torch.zeros(1, 1, dtype=torch.long)
    scores = TemperatureLogitsWarper(sampling.temperature)(ids, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(ids, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(ids, scores)
    return torch.softmax(scores, dim=-1)[0]


@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.1, 2),
    top_k=st.integers(0, VOCAB + 5),
    top_p=st.floats(0.05, 1),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_only_tokens_that_transformers_keeps_are_drawn(
    seed: int, temperature: float, top_k: int, top_p: float, uniform: float
) -> None:
    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    logits = logits_of(seed)[0]
    assert kept_by_transformers(logits, sampling)[draw(logits, sampling, uniform)] > 0


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_k=7),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.0, top_k=20, top_p=0.6),
    ],
)
def test_every_token_is_drawn_as_often_as_its_probability_says(sampling: SamplingParams) -> None:
    logits, num_draws = logits_of(3)[0], 2000
    # quantiles instead of random numbers: exact up to one draw per token
    counts = torch.zeros(VOCAB, dtype=torch.float64)
    for i in range(num_draws):
        counts[draw(logits, sampling, (i + 0.5) / num_draws)] += 1
    expected = kept_by_transformers(logits, sampling)
    assert (counts / num_draws - expected).abs().max() <= 1.5 / num_draws


def test_temperature_zero_is_the_argmax() -> None:
    logits = logits_of(5, rows=4)
    tokens = Sampler().sample(logits, ["a", "b", "c", "d"], [SamplingParams()] * 4)
    assert tokens == logits.argmax(-1).tolist()


def test_a_seeded_request_draws_the_same_whatever_runs_beside_it() -> None:
    own = SamplingParams(temperature=1.0, seed=11)
    alone, crowded = Sampler(), Sampler()
    for step in range(20):
        logits = logits_of(step, rows=3)
        mine = alone.sample(logits[1:2], ["me"], [own])
        others = SamplingParams(temperature=1.5, seed=step)
        among = crowded.sample(logits, ["x", "me", "y"], [others, own, SamplingParams(temperature=0.9)])
        assert among[1] == mine[0]


def test_two_unseeded_requests_differ_and_a_forgotten_one_starts_anew() -> None:
    sampler, flat = Sampler(), torch.zeros(1, 10_000)
    unseeded, seeded = SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, seed=4)
    first = [sampler.sample(flat, [name], [unseeded])[0] for name in ("a", "b", "a", "b", "a")]
    assert len(set(first)) > 1
    one = sampler.sample(flat, ["s"], [seeded])
    sampler.forget("s")
    sampler.forget("never seen")
    assert sampler.sample(flat, ["s"], [seeded]) == one
