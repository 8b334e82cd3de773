"""Heads against transformers with the very same weights: alone, in chunks, and among neighbours of every kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from core_engine.contracts import GenerateRequest, Head, HeadKind, Normalise, Pooling, SamplingParams
from core_engine.llm.head_plan import HeadPlan
from core_engine.llm.heads import Heads
from core_engine.llm.linear_head import LinearHead, save_linear_head
from tests.core_engine.llm import test_decoder
from tests.core_engine.llm.by_hand import BLOCK_SIZE, ByHand, head_request
from tests.core_engine.llm.label_sets import Labels, label_sets, probabilities
from tests.core_engine.llm.test_decoder import PROMPT
from tests.core_engine.llm.tiny import CONFIG, request

llama = test_decoder.reference  # its fixture, under a name of this file
close = partial(pytest.approx, abs=1e-5, rel=1e-4)
CHUNKS = [*range(1, BLOCK_SIZE + 2), 1000]
LABELS: Labels = ((40, 7, 3), (40, 7, 5), (40, 9), (11,), (7, 3, 90), (7, 60))
MEAN, LAST = (Head(HeadKind.EMBED, pooling=pooling) for pooling in (Pooling.MEAN, Pooling.LAST))


def score(labels: Labels, normalise: Normalise) -> Head:
    return Head(HeadKind.SCORE, labels=labels, normalise=normalise)


def expected_scores(
    model: LlamaForCausalLM, prompt: Sequence[int], labels: Labels, normalise: Normalise
) -> list[float]:
    def next_logprobs(prefix: tuple[int, ...]) -> list[float]:
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *prefix]])).logits[0, -1]
        values: list[float] = logits.double().log_softmax(dim=-1).tolist()
        return values

    return probabilities(labels, normalise, next_logprobs)


def expected_states(model: LlamaForCausalLM, prompt: Sequence[int]) -> torch.Tensor:
    """Final hidden states [num_tokens, hidden], float64."""
    with torch.inference_mode():
        states: torch.Tensor = model.model(torch.tensor([list(prompt)])).last_hidden_state[0].double()
    return states


@pytest.mark.parametrize("normalise", Normalise)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_scores_are_transformers_in_chunks_of_any_size(
    llama: LlamaForCausalLM,
    chunk: int,
    normalise: Normalise,
) -> None:
    found = ByHand().run([head_request(PROMPT, score(LABELS, normalise))], chunk)["head"]
    assert found == close(expected_scores(llama, PROMPT, LABELS, normalise))


@given(
    st.sampled_from(Normalise).flatmap(lambda n: st.tuples(st.just(n), label_sets(n))),
    st.lists(st.integers(0, CONFIG.vocab_size - 1), min_size=1, max_size=9),
    st.sampled_from(CHUNKS),
)
def test_scores_of_any_labels_are_transformers(
    llama: LlamaForCausalLM,
    case: tuple[Normalise, Labels],
    prompt: list[int],
    chunk: int,
) -> None:
    normalise, labels = case
    found = ByHand().run([head_request(prompt, score(labels, normalise))], chunk)["head"]
    assert found == close(expected_scores(llama, prompt, labels, normalise))


def test_a_nested_label_has_its_true_probability_over_the_vocabulary(llama: LlamaForCausalLM) -> None:
    labels: Labels = ((40, 7), (40,))
    found = ByHand().run([head_request(PROMPT, score(labels, Normalise.VOCAB))])["head"]
    assert found == close(expected_scores(llama, PROMPT, labels, Normalise.VOCAB))
    assert found[0] < found[1] < 1


@pytest.mark.parametrize("chunk", CHUNKS)
def test_embeddings_are_transformers_states_at_unit_length(
    llama: LlamaForCausalLM,
    chunk: int,
) -> None:
    states = expected_states(llama, PROMPT)
    for head, pooled in ((LAST, states[-1]), (MEAN, states.mean(dim=0))):
        found = ByHand().run([head_request(PROMPT, head)], chunk)["head"]
        assert found == close(F.normalize(pooled, dim=0).tolist())
        assert math.hypot(*found) == pytest.approx(1)


@pytest.fixture
def linear(tmp_path: Path) -> tuple[LinearHead, Path, str]:
    generator = torch.Generator().manual_seed(3)
    head = LinearHead(torch.randn((5, CONFIG.hidden_size), generator=generator), torch.randn((5,), generator=generator))
    artifact = save_linear_head(tmp_path / "head.safetensors", head)
    return head, Path(artifact.path), artifact.sha256


@pytest.mark.parametrize("chunk", CHUNKS)
def test_classes_are_the_linear_head_on_transformers_last_state(
    llama: LlamaForCausalLM,
    linear: tuple[LinearHead, Path, str],
    chunk: int,
) -> None:
    weights, path, digest = linear
    by_hand = ByHand()
    by_hand.runner.heads.load("topic:1", path, digest)
    found = by_hand.run([head_request(PROMPT, Head(HeadKind.CLASSIFY, name="topic:1"))], chunk)["head"]
    logits = weights.weight.double() @ expected_states(llama, PROMPT)[-1] + weights.bias.double()
    assert found == close(logits.softmax(dim=0).tolist())
    assert sum(found) == pytest.approx(1)


def all_heads(prompt: Sequence[int]) -> list[GenerateRequest]:
    heads = [
        MEAN,
        score(LABELS, Normalise.LABELS),
        LAST,
        Head(HeadKind.CLASSIFY, name="topic:1"),
        score(LABELS, Normalise.VOCAB),
    ]
    return [head_request(prompt, head, f"{index}-{prompt[0]}") for index, head in enumerate(heads)]


@pytest.mark.parametrize("chunk", [1, 3, BLOCK_SIZE + 1, 1000])
def test_heads_beside_each_other_and_beside_decode_rows_give_what_they_give_alone(
    linear: tuple[LinearHead, Path, str], chunk: int
) -> None:
    requests = [r for prompt in (PROMPT, PROMPT[3:8], PROMPT[::-1]) for r in all_heads(prompt)]
    together = ByHand(num_blocks=400)
    together.runner.heads.load("topic:1", *linear[1:])
    writers = [together.sequence(request([9, i], 40)) for i in range(3)]
    together.step(writers, 2)
    assert all(writer.is_decoding for writer in writers)
    found = together.run(requests, chunk, writers)
    for each in requests:
        alone = ByHand()
        alone.runner.heads.load("topic:1", *linear[1:])
        assert found[each.attempt_id] == close(alone.run([each])[each.attempt_id])
    alone_writer = ByHand()
    writer = alone_writer.sequence(request([9, 0], 40))
    while writer.num_tokens < writers[0].num_tokens:
        alone_writer.step([writer], 2)
    assert writer.token_ids == writers[0].token_ids


def test_scoring_computes_only_the_labels_rows_of_the_output_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand, asked = ByHand(), []
    logits = by_hand.runner.decoder.logits

    def noted(hidden: torch.Tensor, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        asked.append(token_ids)
        return logits(hidden, token_ids)

    monkeypatch.setattr(by_hand.runner.decoder, "logits", noted)
    by_hand.run([head_request(PROMPT, score(((5,), (3,), (90,)), Normalise.LABELS))])
    assert [ids.tolist() for ids in asked if ids is not None] == [[5, 3, 90]]
    assert len(asked) == 1


@pytest.mark.parametrize("head", [MEAN, score(LABELS, Normalise.VOCAB)])
def test_a_head_that_begins_again_gives_the_same(head: Head) -> None:
    """After a pre-emption in the middle of the rows that it gathers."""
    by_hand = ByHand()
    asked = head_request(PROMPT, head)
    expected = by_hand.run([asked])["head"]
    part = by_hand.sequence(asked if head is MEAN else HeadPlan(asked).requests[0])
    for _ in range(3):
        by_hand.step([part], len(PROMPT) // 3 + 1 if head is not MEAN else 3)
    by_hand.runner.forget(part.id)
    assert nothing_is_kept(by_hand.runner.heads)
    assert by_hand.run([asked], 2)["head"] == close(expected)


def nothing_is_kept(heads: Heads) -> bool:
    return not heads._sums and not heads._logprobs


def test_nothing_is_kept_of_heads_that_are_complete() -> None:
    by_hand = ByHand(num_blocks=400)
    heads = [r for r in all_heads(PROMPT) if r.head is not None and r.head.kind is not HeadKind.CLASSIFY]
    by_hand.run(heads, 3)
    assert nothing_is_kept(by_hand.runner.heads)


def test_a_head_samples_nothing() -> None:
    by_hand = ByHand()
    sequence = by_hand.sequence(head_request(PROMPT, LAST))
    by_hand.step([sequence, by_hand.sequence(request([1, 2], sampling=SamplingParams(max_tokens=4)))], 1000)
    assert sequence.num_completion_tokens == 0
