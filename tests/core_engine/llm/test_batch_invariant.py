"""Determinism mode: the very same bits alone, among neighbours, in chunks, after a cache hit and after pre-emption."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core_engine.errors import ConfigurationError
from core_engine.llm.batch_invariant import BatchInvariantDecoder
from core_engine.llm.decoder import Decoder
from core_engine.llm.model_config import ModelConfig, RopeScaling
from core_engine.llm.sequence import Sequence
from tests.core_engine.llm.stepping import Stepper
from tests.core_engine.llm.tiny import CONFIG, tiny_weights

ODD = ModelConfig(
    num_layers=2,
    hidden_size=35,
    intermediate_size=57,
    num_heads=3,
    num_kv_heads=1,
    head_dim=10,
    vocab_size=101,
    max_positions=1024,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    tie_embeddings=False,
    qkv_bias=True,
    qk_norm=True,
)
SHAPES = {
    "tiny": CONFIG,
    "odd": ODD,
    "window": replace(ODD, sliding_window=11),
    "dynamic": replace(CONFIG, rope=RopeScaling("dynamic", 4.0, original_positions=16)),
}
DTYPES = [torch.float32, torch.bfloat16]
DRAWS = random.Random(3)
PROMPT = [DRAWS.randrange(CONFIG.vocab_size) for _ in range(45)]
ANSWER = [DRAWS.randrange(CONFIG.vocab_size) for _ in range(6)]  # given tokens: the bits are compared, not the choice


def stepper(kind: type[Decoder], shape: str, dtype: torch.dtype) -> Stepper:
    config = SHAPES[shape]
    weights = {name: tensor.to(dtype) for name, tensor in tiny_weights(config).items()}
    return Stepper(kind(config, weights), num_blocks=2500)


def alone(steps: Stepper, chunk: int = 1000) -> torch.Tensor:
    """Logits of every token of prompt and answer, [51, vocab]."""
    sequence = steps.sequence(PROMPT)
    prefill = [rows for _, rows in steps.chunks(sequence, chunk)]
    return torch.cat([*prefill, torch.stack([steps.decode(sequence, token) for token in ANSWER])])


def in_a_batch(num_neighbours: int, chunk: int = 13) -> Callable[[Stepper], torch.Tensor]:
    """Half of the neighbours decode throughout, half prefill; the sequence is the last of its kind in every step."""

    def run(steps: Stepper) -> torch.Tensor:
        draws = random.Random(num_neighbours)
        decoding = [steps.sequence([draws.randrange(97)] * draws.randint(1, 20)) for _ in range(num_neighbours // 2)]
        for each in decoding:
            steps.step((each, each.num_prompt_tokens))
        prefilling = [steps.sequence(PROMPT[::-1]) for _ in range(num_neighbours - len(decoding))]
        own, rows = steps.sequence(PROMPT), []
        waiting = list(ANSWER)
        while waiting or own.num_uncomputed_tokens:
            if not own.num_uncomputed_tokens:
                own.token_ids.append(waiting.pop(0))
            for each in decoding:
                each.token_ids.append(draws.randrange(97))
            size = min(chunk, own.num_uncomputed_tokens)
            chunks = [(each, min(2, each.num_uncomputed_tokens)) for each in prefilling if each.num_uncomputed_tokens]
            mine = [(own, size)]
            decode = [(each, 1) for each in decoding] + (mine if own.is_decoding else [])
            work = decode + chunks + ([] if own.is_decoding else mine)
            rows.append(steps.step(*work)[work.index((own, size))])
        return torch.cat(rows)

    return run


def after_a_cache_hit(steps: Stepper) -> torch.Tensor:
    """The first 32 tokens were computed by another sequence, in other chunks; its blocks are shared.

    That one is as long: blocks of dynamic RoPE are shared by prompts of one length only.
    """
    first = steps.sequence(PROMPT[:33] + PROMPT[:12])
    expected = [rows for _, rows in steps.chunks(first, 5)]
    own = steps.sequence(PROMPT)
    own.block_table[:8] = first.block_table[:8]
    own.num_computed_tokens = 32
    rows = steps.step((own, len(PROMPT) - 32))
    return torch.cat([torch.cat(expected)[:32], *rows, torch.stack([steps.decode(own, token) for token in ANSWER])])


def after_preemption(steps: Stepper) -> torch.Tensor:
    """Pre-empted in mid-answer; all is computed again, the answer so far as part of the prefill, in other blocks."""
    own = steps.sequence(PROMPT)
    steps.step((own, len(PROMPT)))
    for token in ANSWER[:4]:
        steps.decode(own, token)
    steps.release(own)
    again = steps.sequence(PROMPT)  # other blocks; the same prompt, so the same lengths for dynamic RoPE
    again.token_ids += ANSWER[:4]
    rows = [logits for _, logits in steps.chunks(again, 6)]
    return torch.cat([*rows, torch.stack([steps.decode(again, token) for token in ANSWER[4:]])])


CASES: dict[str, Callable[[Stepper], torch.Tensor]] = {
    "batch of 7": in_a_batch(6),
    "batch of 64": in_a_batch(63),
    "chunks of 1": lambda steps: alone(steps, 1),
    "chunks of 17": lambda steps: alone(steps, 17),
    "chunks of 256": lambda steps: alone(steps, 256),
    "cache hit": after_a_cache_hit,
    "pre-emption": after_preemption,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_same_bits(case: str, shape: str, dtype: torch.dtype) -> None:
    expected = alone(stepper(BatchInvariantDecoder, shape, dtype))
    actual = CASES[case](stepper(BatchInvariantDecoder, shape, dtype))
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_normal_mode_is_not_so_in_float32(shape: str) -> None:
    """Or the test above could not fail."""
    expected = alone(stepper(Decoder, shape, torch.float32))
    same = [torch.equal(run(stepper(Decoder, shape, torch.float32)), expected) for run in CASES.values()]
    assert not all(same)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_mode_computes_what_the_normal_mode_computes(shape: str, dtype: torch.dtype) -> None:
    ours, normal = (alone(stepper(kind, shape, dtype)).double() for kind in (BatchInvariantDecoder, Decoder))
    error = float((ours - normal).pow(2).mean().sqrt() / normal.pow(2).mean().sqrt())
    assert error < (1e-5 if dtype is torch.float32 else 3e-2)


@given(chunks=st.lists(st.integers(1, 40), min_size=1, max_size=12), beside=st.lists(st.integers(1, 25), max_size=5))
def test_any_chunks_beside_any_others_give_the_same_bits(chunks: list[int], beside: list[int]) -> None:
    steps = stepper(BatchInvariantDecoder, "odd", torch.float32)
    expected = steps.prefill(PROMPT)
    own, others = steps.sequence(PROMPT), [steps.sequence([7] * 60) for _ in beside]
    rows: list[torch.Tensor] = []
    while own.num_uncomputed_tokens:
        size = min(chunks[len(rows) % len(chunks)], own.num_uncomputed_tokens)
        work = [(each, n) for each, n in zip(others, beside, strict=True) if n <= each.num_uncomputed_tokens]
        rows.append(steps.step(*work[::2], (own, size), *work[1::2])[len(work[::2])])
    assert torch.equal(torch.cat(rows), expected)


def test_logits_of_a_choice_of_tokens_are_those_of_the_whole_vocabulary() -> None:
    decoder = stepper(BatchInvariantDecoder, "odd", torch.bfloat16).decoder
    hidden = torch.randn(3, ODD.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    chosen = torch.tensor([5, 99, 0])
    assert torch.equal(decoder.logits(hidden, chosen), decoder.logits(hidden)[:, chosen])
    assert torch.equal(decoder.logits(hidden[1:2]), decoder.logits(hidden)[1:2])
    assert decoder.logits(hidden[:0]).shape == (0, ODD.vocab_size)


class PlaceDependent(BatchInvariantDecoder):
    """A machine whose products depend on where a row is."""

    def activate(self, gate_up: torch.Tensor) -> torch.Tensor:
        out = super().activate(gate_up)
        out[5] += 1e-3
        return out


def test_a_machine_on_which_a_row_s_place_matters_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="HEADRACE_ENGINE__DETERMINISTIC"):
        PlaceDependent(CONFIG, tiny_weights())


class Untiled(BatchInvariantDecoder):
    """A fault: it finishes a layer with as many rows as the step happens to have."""

    def finish(self, layer: object, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        return Decoder.finish(self, layer, hidden, attended)  # type: ignore[arg-type]


def test_a_call_whose_shape_follows_the_batch_is_found_out() -> None:
    expected = alone(stepper(Untiled, "tiny", torch.float32))
    same = [torch.equal(run(stepper(Untiled, "tiny", torch.float32)), expected) for run in CASES.values()]
    assert not all(same)


def test_contexts_beyond_a_block_of_the_attention_kernel_are_the_same_bits_too() -> None:
    """Its blocks are 512 keys; a window of 11 masks the first of them wholly."""
    long = [DRAWS.randrange(97) for _ in range(600)]
    for shape in ("odd", "window"):
        steps = stepper(BatchInvariantDecoder, shape, torch.float32)
        expected = steps.prefill(long, 256)
        own, other = steps.sequence(long), steps.sequence(PROMPT)
        rows: list[torch.Tensor] = []
        while own.num_uncomputed_tokens:
            work: list[tuple[Sequence, int]] = [(other, 1)] if other.num_uncomputed_tokens else []
            rows.append(steps.step(*work, (own, min(77, own.num_uncomputed_tokens)))[-1])
        assert torch.equal(torch.cat(rows), expected)
        assert expected.isfinite().all()
