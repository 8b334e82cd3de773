"""Rotary frequencies of every kind against transformers' own functions; dynamic lengths in the prefix cache's names."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from core_engine.llm.block_pool import BlockPool
from core_engine.llm.decoder import Decoder
from core_engine.llm.engine import Engine
from core_engine.llm.hf_config import read_hf_config
from core_engine.llm.model_config import ModelConfig, RopeScaling
from core_engine.llm.prefix_hash import PrefixHasher
from core_engine.llm.rope_scaling import dynamic_frequencies, scaled_frequencies
from core_engine.llm.runner import Runner
from core_engine.llm.scheduler import Scheduler
from core_engine.llm.sequence import Sequence
from core_engine.llm.step_input import rope_lengths
from core_engine.llm.step_plan import Scheduled
from core_engine.llm.step_rows import step_rows
from kernels.rope import inverse_frequencies
from tests.core_engine.llm.families import ROPE, SIZES, TRAINED
from tests.core_engine.llm.stepping import Stepper
from tests.core_engine.llm.tiny import CONFIG, STEP_TIME, limits, request, run_all, tiny_weights

DYNAMIC = replace(CONFIG, rope=RopeScaling("dynamic", 4.0, original_positions=16))


def read(folder: Path, head_dim: int, theta: float, kind: str) -> tuple[LlamaConfig, ModelConfig]:
    options = SIZES | {"head_dim": head_dim, "max_position_embeddings": 4 * TRAINED}
    theirs = LlamaConfig(**options, rope_parameters={"rope_theta": theta, **copy.deepcopy(ROPE[kind])})
    theirs.save_pretrained(folder)
    return theirs, read_hf_config(folder)


@pytest.mark.parametrize("kind", ROPE)
@pytest.mark.parametrize("head_dim", [8, 64, 128])
@pytest.mark.parametrize("theta", [500.0, 10_000.0, 1_000_000.0])
def test_frequencies_and_factor_are_those_of_transformers(
    tmp_path: Path, kind: str, head_dim: int, theta: float
) -> None:
    theirs, ours = read(tmp_path, head_dim, theta, kind)
    expected, factor = ROPE_INIT_FUNCTIONS[theirs.rope_parameters["rope_type"]](theirs, torch.device("cpu"))
    torch.testing.assert_close(scaled_frequencies(ours), expected, rtol=1e-6, atol=0)
    assert ours.rope.attention_factor == pytest.approx(factor)


@given(length=st.integers(1, 400))
def test_dynamic_frequencies_of_any_length_are_those_of_transformers(length: int) -> None:
    theirs = LlamaConfig(**SIZES, rope_parameters={"rope_theta": 10_000.0, "rope_type": "dynamic", "factor": 4.0})
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs, torch.device("cpu"), seq_len=torch.tensor(length))
    config = replace(CONFIG, rope=RopeScaling("dynamic", 4.0, original_positions=64))
    rows = dynamic_frequencies(config, torch.tensor([length, 3]))
    torch.testing.assert_close(rows[0], expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(rows[1], inverse_frequencies(8, 10_000.0), rtol=1e-6, atol=0)


def test_a_step_asks_for_lengths_only_when_somebody_is_beyond_the_trained_context() -> None:
    steps = Stepper(Decoder(DYNAMIC, tiny_weights(DYNAMIC)))
    short, long = steps.sequence([1] * 10), steps.sequence([1] * 20)
    assert lengths(short, 10) is None
    assert lengths(long, 3) == [20, 20, 20]
    steps.step((short, 10))
    short.token_ids += [1] * 9
    assert lengths(short, 9) == [11, 12, 13, 14, 15, 16, 17, 18, 19]


def lengths(sequence: Sequence, num_tokens: int) -> list[int] | None:
    found = rope_lengths(step_rows([Scheduled(sequence, num_tokens)]), DYNAMIC)
    return None if found is None else found.tolist()


def names(hasher: PrefixHasher, num_tokens: int) -> list[bytes]:
    sequence = Sequence(request([7] * num_tokens), 0.0)
    hasher.extend(sequence, 3)
    return sequence.block_hashes


def test_prompts_within_the_fixed_positions_share_blocks_and_longer_ones_with_their_length_only() -> None:
    plain, dynamic = PrefixHasher(4, "w"), PrefixHasher(4, "w", fixed_positions=16)
    assert names(dynamic, 13) == names(dynamic, 16) == names(plain, 16) == names(plain, 20)
    assert len({names(dynamic, n)[0] for n in (16, 17, 18, 40)}) == 4
    assert names(dynamic, 40) == names(dynamic, 40)


def test_a_prefix_cache_changes_no_token_of_a_model_with_dynamic_frequencies() -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 4
    prompts = [prompt[:n] for n in (9, 15, 16, 17, 20, 20, 32)]
    alone = [run_all(engine_of(fixed_positions=None, cached=False), [request(p, 12)]).popitem()[1] for p in prompts]
    engine = engine_of(fixed_positions=16)
    assert [run_all(engine, [request(p, 12)]).popitem()[1] for p in prompts] == alone
    wrong = engine_of(fixed_positions=None)
    assert [run_all(wrong, [request(p, 12)]).popitem()[1] for p in prompts] != alone  # or this could not fail


def engine_of(*, fixed_positions: int | None, cached: bool = True) -> Engine:
    hasher = PrefixHasher(4, "w", fixed_positions=fixed_positions) if cached else None
    runner = Runner(Decoder(DYNAMIC, tiny_weights(DYNAMIC)), 257, 4, eos_token_ids=frozenset())
    return Engine(Scheduler(limits(), BlockPool(257, 4), STEP_TIME, hasher), runner, frozenset())
