"""Draws against transformers' warpers and against sorting everything, at every quantile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from core_engine.contracts import SamplingParams
from core_engine.llm.draws import draw, uniform

VOCAB = 50

dials = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 2),
    top_k=st.integers(0, VOCAB + 5),
    top_p=st.floats(0.05, 1) | st.just(1.0),
    min_p=st.just(0.0) | st.floats(0, 1),
)
quantiles = st.floats(0, 1, exclude_max=True)


def logits_of(seed: int, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3


def kept_by_transformers(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Probabilities [vocab] after transformers' own warpers in their own order."""
    scores, ids = logits.unsqueeze(0).double(), torch.zeros(1, 1, dtype=torch.long)
    scores = TemperatureLogitsWarper(sampling.temperature)(ids, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(ids, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(ids, scores)
    if sampling.min_p:
        scores = MinPLogitsWarper(sampling.min_p)(ids, scores)
    return torch.softmax(scores, dim=-1)[0]


def pick(logits: torch.Tensor, sampling: SamplingParams, quantile: float) -> int:
    return draw(logits.numpy(), sampling, quantile)


def filtered(logits: torch.Tensor, sampling: SamplingParams, top_p: float) -> torch.Tensor:
    """Probabilities [vocab] after the filters, by sorting everything in float64; of equal tokens the lower id first."""
    order = torch.sort(logits, descending=True, stable=True).indices
    probs = torch.softmax(logits[order].double() / sampling.temperature, dim=-1)
    if 0 < sampling.top_k < len(logits):
        probs[logits[order] < logits[order][sampling.top_k - 1]] = 0
    before = probs.cumsum(-1) - probs
    if sampling.top_p < 1:
        probs[1:][(before >= top_p * probs.sum())[1:]] = 0
    probs[probs < sampling.min_p * probs[0]] = 0
    by_id = torch.zeros_like(probs)
    by_id[order] = probs
    return by_id / by_id.sum()


def is_at(probs: torch.Tensor, token: int, quantile: float) -> bool:
    cumulative = probs.cumsum(-1)
    low = float(cumulative[token - 1]) if token else 0.0
    return float(probs[token]) > 0 and low - 1e-5 <= quantile <= float(cumulative[token]) + 1e-5


@given(seed=st.integers(0, 10_000), sampling=dials, quantile=quantiles)
def test_only_tokens_that_transformers_keeps_are_drawn(seed: int, sampling: SamplingParams, quantile: float) -> None:
    logits = logits_of(seed)
    assert kept_by_transformers(logits, sampling)[pick(logits, sampling, quantile)] > 0


@given(seed=st.integers(0, 10_000), sampling=dials, quantile=quantiles)
def test_ties_go_to_the_lower_id_as_they_would_by_sorting_everything(
    seed: int, sampling: SamplingParams, quantile: float
) -> None:
    logits = logits_of(seed).round()  # many tokens are equally likely
    token = pick(logits, sampling, quantile)
    # where top-p falls between two equal tokens, rounding decides
    edges = [filtered(logits, sampling, sampling.top_p * (1 + shift)) for shift in (-1e-6, 0, 1e-6)]
    assert any(is_at(probs, token, quantile) for probs in edges)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_k=7),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.0, top_k=20, top_p=0.6),
        SamplingParams(temperature=1.5, min_p=0.1),
        SamplingParams(temperature=1.5, top_k=30, top_p=0.9, min_p=0.05),
    ],
)
@pytest.mark.parametrize("vocab", [VOCAB, 700])
def test_every_token_is_drawn_as_often_as_its_probability_says(sampling: SamplingParams, vocab: int) -> None:
    logits, num_draws = logits_of(3, vocab), 4000
    # quantiles instead of random numbers: exact up to one draw per token
    tokens = [pick(logits, sampling, (i + 0.5) / num_draws) for i in range(num_draws)]
    counts = torch.bincount(torch.tensor(tokens), minlength=vocab).double()
    expected = kept_by_transformers(logits, sampling)
    assert (counts / num_draws - expected).abs().max() <= 1.5 / num_draws


@pytest.mark.parametrize("vocab", [256, 257, 1000])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 50.0])  # one bucket of likelihoods holds all, many hold a few
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=2.0, top_p=0.99),
        SamplingParams(temperature=1.0, top_k=200),
        SamplingParams(temperature=1.0, top_k=255, top_p=0.5),
    ],
)
def test_as_many_tokens_stay_as_transformers_keeps(vocab: int, scale: float, sampling: SamplingParams) -> None:
    logits = logits_of(1, vocab) * scale
    expected = kept_by_transformers(logits, sampling)
    found = {pick(logits, sampling, i / 3000) for i in range(3000)}
    if scale:
        assert found <= set(expected.nonzero()[:, 0].tolist())
        assert {int(i) for i in (expected > 1 / 3000).nonzero()[:, 0]} <= found
    else:  # all alike: the first ids by our rule, as many as transformers keeps by its own, up to its rounding
        assert found == set(range(len(found)))
        assert abs(len(found) - int((expected > 0).sum())) <= 1


@given(
    sampling=dials,
    quantile=quantiles,
    allowed=st.sets(st.integers(0, VOCAB - 1), min_size=1),
    temperature=st.sampled_from([1e-300, 1e-9, 0.01, 1.0, 2.0]),
)
def test_a_masked_token_is_never_drawn_at_any_temperature(
    sampling: SamplingParams, quantile: float, allowed: set[int], temperature: float
) -> None:
    logits = torch.full((VOCAB,), -torch.inf)
    logits[sorted(allowed)] = logits_of(7)[sorted(allowed)] * 1e30
    assert pick(logits, replace(sampling, temperature=temperature), quantile) in allowed


def test_the_coldest_temperature_is_the_argmax() -> None:
    for seed in range(10):
        logits = logits_of(seed)
        assert pick(logits, SamplingParams(temperature=1e-12), 0.99) == logits.argmax()


@given(seed=st.integers(0, 1000), sampling=dials, zeros=st.sets(st.integers(0, 699), max_size=690))
def test_the_ends_of_the_distribution_are_tokens_of_it(seed: int, sampling: SamplingParams, zeros: set[int]) -> None:
    logits = logits_of(seed, 700)
    logits[sorted(zeros)] = -torch.inf
    expected = kept_by_transformers(logits, replace(sampling, top_k=min(sampling.top_k, 10)))
    for quantile in (0.0, 2.0**-53, 1 - 2.0**-53):
        assert expected[pick(logits, replace(sampling, top_k=min(sampling.top_k, 10)), quantile)] > 0


def test_uniform_numbers_are_uniform_and_different_by_seed_and_position() -> None:
    numbers = [uniform(f"{seed}".encode(), position) for seed in range(40) for position in range(50)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    tenths = torch.histc(torch.tensor(numbers), bins=10, min=0, max=1)
    assert (tenths - 200).abs().max() < 60  # 4 standard deviations
    assert uniform(b"a", 3) == uniform(b"a", 3)
