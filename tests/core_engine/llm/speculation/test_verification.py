"""The sampler with drafts against the sampler without, on the logits of a made-up model: the same tokens, always."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core_engine.contracts import SamplingParams, TokenLogprob
from core_engine.llm.grammar import Grammars
from core_engine.llm.sampler import Sampler
from core_engine.llm.sequence import Sequence
from tests.core_engine.llm.test_sampler import any_dials
from tests.core_engine.llm.tiny import EOS, request, tiny_tokenizer

VOCAB = 97
ENDS = frozenset({EOS})
SCHEMA = json.dumps({"type": "array", "items": {"enum": [True, False, 17]}, "maxItems": 4})


def logits_after(token_ids: list[int]) -> torch.Tensor:
    """[1, vocab]: what this model thinks follows these tokens; a few tokens are likely each time."""
    generator = torch.Generator().manual_seed(hash(tuple(token_ids[-3:])) % 2**31)
    return torch.randn(1, VOCAB, generator=generator) * 3


def written(sampler: Sampler, sequence: Sequence) -> tuple[list[int], list[TokenLogprob]]:
    """Its completion without drafts, and the log-probabilities."""
    logprobs: list[TokenLogprob] = []
    while sequence.finish_reason is None:
        found = sampler.sample(logits_after(sequence.token_ids), [sequence])
        logprobs += found.logprobs.get(sequence.id, ())
        sequence.finish_reason = sequence.append(found.tokens[sequence.id], ENDS)
    return sequence.token_ids[sequence.num_prompt_tokens :], logprobs


def verified(
    sampler: Sampler, sequence: Sequence, draft: list[int], beside: Sequence | None = None
) -> tuple[list[int], list[TokenLogprob]]:
    """One step with a draft, perhaps beside another sequence without; the new tokens and their log-probabilities."""
    rows = [logits_after(sequence.token_ids + draft[:depth]) for depth in range(len(draft) + 1)]
    others = [] if beside is None else [beside]
    rows = [logits_after(each.token_ids) for each in others] + rows
    found = sampler.sample(torch.cat(rows), [*others, sequence], [[] for _ in others] + [draft])
    taken = [*found.accepted.get(sequence.id, []), found.tokens[sequence.id]]
    return taken, list(found.logprobs.get(sequence.id, ()))


def write_by_drafts(
    sampler: Sampler, sequence: Sequence, expected: list[int], rng: random.Random
) -> tuple[list[int], list[TokenLogprob], int]:
    """Its completion by drafts that are right for a while and may go on past its end, and how many steps it took."""
    logprobs: list[TokenLogprob] = []
    steps = 0
    while sequence.finish_reason is None:
        done = sequence.num_completion_tokens
        after_the_end = [rng.randrange(3, VOCAB) for _ in range(3)]
        most = min(rng.randint(0, 5), sequence.max_completion_tokens - done - 1)
        draft = [*expected, *after_the_end][done : done + most]
        if draft and rng.random() < 0.5:
            draft[rng.randrange(len(draft))] = rng.randrange(3, VOCAB)
        taken, entries = verified(sampler, sequence, draft, Sequence(request((4, steps)), 0.0))
        for token in taken:
            assert sequence.finish_reason is None, "a token came after the last one"
            sequence.finish_reason = sequence.append(token, ENDS)
        logprobs += entries
        steps += 1
    return sequence.token_ids[sequence.num_prompt_tokens :], logprobs, steps


@given(dials=any_dials, ends=st.booleans(), seed=st.integers(0, 99))
def test_tokens_and_logprobs_are_those_that_come_without_drafts(dials: SamplingParams, ends: bool, seed: int) -> None:
    asked = request((7, 8, 9, 7), sampling=replace(dials, max_tokens=24, ignore_eos=not ends))
    expected, logprobs = written(Sampler(ENDS), Sequence(asked, 0.0))
    found = write_by_drafts(Sampler(ENDS), Sequence(asked, 0.0), expected, random.Random(seed))
    assert found[0] == expected
    for own, other in zip(found[1], logprobs, strict=True):
        assert (own.token_id, own.rank, own.top) == (other.token_id, other.rank, other.top)
        assert own.logprob == pytest.approx(other.logprob)
    if len(expected) > 8:
        assert found[2] < len(expected), "no draft was ever right: this shows nothing"


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(tiny_tokenizer, VOCAB, ENDS)
    grammars.state(SCHEMA)  # compiled: no test has to wait for it
    yield grammars
    grammars.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_json_is_written_the_same_by_drafts_and_ends_where_it_is_complete(
    grammars: Grammars, temperature: float, seed: int
) -> None:
    dials = SamplingParams(max_tokens=60, temperature=temperature, seed=seed, json_schema=SCHEMA)
    asked = request((7, 8, seed), sampling=dials)
    expected, _ = written(Sampler(ENDS, grammars), Sequence(asked, 0.0))
    sampler, rng = Sampler(ENDS, grammars), random.Random(seed)
    assert write_by_drafts(sampler, Sequence(asked, 0.0), expected, rng)[0] == expected
    assert isinstance(json.loads(tiny_tokenizer().decode(expected)), list)


def test_the_grammar_takes_of_a_draft_what_it_allows_and_has_not_moved(grammars: Grammars) -> None:
    tokenizer, sampler = tiny_tokenizer(), Sampler(ENDS, grammars)
    sequence = Sequence(request((7, 8), sampling=SamplingParams(json_schema=SCHEMA, max_tokens=60)), 0.0)
    free = Sequence(request((7, 8)), 0.0)
    draft = tokenizer.encode("[true,")  # it wants a blank after a comma, not before it
    assert sampler.num_allowed(sequence, [1, 2, 3]) == 3, "nothing is known of it yet"
    verified(sampler, sequence, [])
    assert [sampler.num_allowed(each, draft) for each in (sequence, free, sequence)] == [6, 6, 6]
    assert sampler.num_allowed(sequence, tokenizer.encode("[tru17")) == 4
    assert sampler.num_allowed(sequence, tokenizer.encode("17]")) == 0


def test_a_broken_row_ends_what_is_taken_and_fails_only_when_it_comes_first() -> None:
    sampler, sequence = Sampler(ENDS), Sequence(request((7, 8)), 0.0)
    first = int(logits_after(sequence.token_ids).argmax())
    rows = torch.cat([logits_after(sequence.token_ids), torch.full((2, VOCAB), torch.nan)])
    found = sampler.sample(rows, [sequence], [[first, 5]])
    assert (found.tokens, found.accepted, found.failures) == ({sequence.id: first}, {sequence.id: []}, {})
    sequence.token_ids.append(first)
    assert sequence.id in sampler.sample(torch.full((1, VOCAB), torch.nan), [sequence]).failures


NUM_DRAWS = 6000
FILTERS = {"max_tokens": 4, "temperature": 0.7, "top_k": 6, "top_p": 0.95, "min_p": 0.02, "presence_penalty": 0.4}


def firsts(row: torch.Tensor, draft: list[int], first_seed: int) -> Counter[int]:
    """The next tokens of so many requests that differ in their seed alone, each with the same row and draft."""
    seeds = range(first_seed, first_seed + NUM_DRAWS)
    dials = [SamplingParams(seed=seed, **FILTERS) for seed in seeds]  # type: ignore[arg-type]
    sequences = [Sequence(request((1, 2, 3), sampling=each), 0.0) for each in dials]
    found = Sampler(ENDS).sample(row.repeat(NUM_DRAWS * (1 + len(draft)), 1), sequences, [draft] * NUM_DRAWS)
    return Counter([*found.accepted.get(s.id, []), found.tokens[s.id]][0] for s in sequences)


@pytest.mark.parametrize("drafted", range(4))
def test_the_distribution_after_all_filters_is_the_targets_whatever_is_drafted(drafted: int) -> None:
    """Chi-square against as many draws without a draft, by other numbers."""
    logits = logits_after([1, 2, 3])
    logits[0, 12:] = -1e9
    ranked = logits[0].argsort(descending=True).tolist()
    counts, plain = firsts(logits, [ranked[drafted]], 0), firsts(logits, [], NUM_DRAWS)
    assert set(counts) == set(plain) < set(ranked[:6])
    observed = np.array([[counts[token], plain[token]] for token in counts], dtype=float)
    expected = observed.sum(axis=1, keepdims=True) / 2
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < 18.5, "p < 0.001 with four degrees of freedom"
