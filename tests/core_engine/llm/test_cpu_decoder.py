"""The C++ step against the reference decoder and transformers; that it repeats its bits: `test_cpu_decoder_bits`."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core_engine.llm.cpu_decoder import CpuDecoder
from core_engine.llm.decoder import KvPrecision
from core_engine.llm.model_config import ModelConfig, RopeScaling
from core_engine.llm.model_files import load_model
from kernels.cpu import KernelUnavailable
from kernels.cpu.compiler import find_compiler
from kernels.cpu.isa import Level
from kernels.cpu.step import open_library
from tests.core_engine.llm.crowd import alone, crowd, script
from tests.core_engine.llm.families import CASES, LONG, hf_model, logits_of, save
from tests.core_engine.llm.precisions import (
    BLOCK,
    KV,
    PRECISIONS,
    SHAPES,
    at_precision,
    cpu_decoder,
    one_span,
    ours,
    random_weights,
    reference,
    shape,
    tolerance,
)
from tests.core_engine.llm.stepping import Stepper
from tests.kernels.cpu.native import RUNNABLE
from tests.kernels.tolerance import relative_rms

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

AROUND_BLOCKS = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 79, 80, 81]
BESIDE = [script(9, 12, seed=1), script(33, 4, seed=2), script(1, 20, seed=3)]


def theirs(config: ModelConfig, precision: str, kv: KvPrecision, **changes: Any) -> Stepper:
    """The reference; `changes` make another shape of the same weights."""
    weights = random_weights(config, precision)
    return Stepper(reference(replace(config, **changes), weights, kv), num_blocks=600, block_size=BLOCK)


def error(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return relative_rms(torch.cat(actual), torch.cat(expected).double())


# ---- equality with the reference


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_crowd_s_logits_are_the_references_at_every_precision(precision: str, kv: KvPrecision) -> None:
    config, scripts = SHAPES["smollm"], [script(40, 5), *BESIDE]
    actual = crowd(ours(config, precision, kv), scripts, seed=1)
    expected = crowd(theirs(config, precision, kv), scripts, seed=1)
    assert error(actual, expected) < tolerance(precision, kv)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("precision", ["float32", "int4"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_crowd_s_logits_are_the_references_in_every_shape(name: str, precision: str, kv: KvPrecision) -> None:
    config, scripts = SHAPES[name], [script(40, 5), *BESIDE]
    actual = crowd(ours(config, precision, kv), scripts, seed=2)
    expected = crowd(theirs(config, precision, kv), scripts, seed=2)
    assert error(actual, expected) < tolerance(precision, kv)


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    kv_heads, per_kv = draw(st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 1), (1, 8), (2, 4)]))
    config = shape(
        num_layers=draw(st.integers(1, 3)),
        hidden=draw(st.sampled_from([16, 48, 80, 112])),
        intermediate=2 * draw(st.integers(1, 70)),
        heads=(kv_heads * per_kv, kv_heads),
        head_dim=draw(st.sampled_from([16, 32, 48, 64, 80, 128])),
        tied=draw(st.booleans()),
    )
    return replace(
        config,
        vocab_size=draw(st.integers(97, 140)),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        sliding_window=draw(st.none() | st.integers(1, 70)),
    )


@given(
    config=configs(),
    precision=st.sampled_from(PRECISIONS),
    kv=st.sampled_from(KV),
    block_size=st.sampled_from([16, 32, 64]),
    lengths=st.lists(st.tuples(st.sampled_from(AROUND_BLOCKS), st.integers(0, 6)), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_any_shape_precision_and_schedule_gives_the_references_logits(
    config: ModelConfig, precision: str, kv: KvPrecision, block_size: int, lengths: list[tuple[int, int]], seed: int
) -> None:
    scripts = [script(prompt, answer, seed + index) for index, (prompt, answer) in enumerate(lengths)]
    actual = crowd(ours(config, precision, kv, block_size=block_size), scripts, seed)
    expected = [alone(theirs(config, precision, kv), told) for told in scripts]
    # a short sequence in a small model has few numbers to take the mean of
    assert error(actual, expected) < 2 * tolerance(precision, kv)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4 by 32"])
@pytest.mark.parametrize("level", RUNNABLE)
def test_every_instruction_set_gives_the_references_logits(level: Level, precision: str, kv: KvPrecision) -> None:
    config, scripts = SHAPES["eight heads"], [script(40, 5), *BESIDE]
    actual = crowd(ours(config, precision, kv, level=level), scripts, seed=3)
    expected = crowd(theirs(config, precision, kv), scripts, seed=3)
    assert error(actual, expected) < tolerance(precision, kv)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_a_first_token_has_the_references_logits_but_for_the_order_of_additions(
    precision: str, kv: KvPrecision
) -> None:
    """It sees itself alone, so that attention rounds nothing more; an activation may still get the next code."""
    config = replace(SHAPES["smollm"], qkv_bias=True)
    firsts = [script(1, 0, seed) for seed in range(40)]
    actual, expected = (
        torch.cat([alone(steps, told) for told in firsts])
        for steps in (ours(config, precision, kv), theirs(config, precision, kv))
    )
    errors = (actual - expected).norm(dim=1) / expected.norm(dim=1)
    assert errors.quantile(0.25) < 1e-5


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("window", {"sliding_window": 18}),
    ("window", {"sliding_window": 20}),
    ("window", {"sliding_window": None}),
    ("eight heads", {"qk_norm": False}),
    ("eight heads", {"qkv_bias": False}),
    ("smollm", {"rope_theta": 20_000.0}),
    ("smollm", {"rms_norm_eps": 1.0}),
    ("dynamic", {"rope": RopeScaling()}),
    ("yarn", {"rope": RopeScaling("yarn", 4.0, original_positions=16)}),
    ("factors", {"has_rope_factors": False}),
]


@pytest.mark.parametrize(("name", "changes"), WRONG, ids=str)
def test_a_wrong_shape_would_be_seen(name: str, changes: dict[str, Any]) -> None:
    told = script(60, 0)
    actual = alone(ours(SHAPES[name], "int8", "int8"), told)
    wrong = alone(theirs(SHAPES[name], "int8", "int8", **changes), told)
    assert error([actual], [wrong]) > 2 * tolerance("int8", "int8")


# ---- equality with transformers


def taken(case: str) -> dict[str, Any]:
    """What a case of `families` must be changed to for the kernel to take it."""
    changes: dict[str, Any] = {"hidden_size": 48}
    if "head_dim" in CASES[case][1]:
        return {**changes, "head_dim": 16}
    return {**changes, "num_attention_heads": 3, "num_key_value_heads": 1}


@pytest.mark.parametrize("case", CASES)
def test_every_family_gives_transformers_logits(case: str, tmp_path: Path) -> None:
    model = hf_model(case, **taken(case))
    loaded = load_model(save(model, tmp_path), torch.float32)
    steps = Stepper(cpu_decoder(loaded.config, loaded.weights, "bfloat16"), num_blocks=99, block_size=BLOCK)
    expected = logits_of(model, LONG)
    for chunk in (len(LONG), 7):
        assert relative_rms(steps.prefill(LONG, chunk), expected.double()) < 1.5e-2


# ---- logits, cache and refusals


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_logits_of_some_tokens_are_those_columns(precision: str, num_threads: int) -> None:
    decoder = ours(shape(tied=False), precision, "int8", num_threads=num_threads).decoder
    hidden = torch.randn(7, 48, generator=torch.Generator().manual_seed(0))
    logits = decoder.logits(hidden)
    assert (logits.dtype, logits.shape) == (torch.float32, (7, 97))
    for ids in ([0], [96, 31, 32, 5, 5, 64], list(range(97)), []):
        some = decoder.logits(hidden, torch.tensor(ids, dtype=torch.int64))
        assert torch.equal(some, logits[:, ids])
    assert torch.equal(decoder.logits(hidden[2:3]), logits[2:3])
    assert decoder.logits(hidden[:0]).shape == (0, 97)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_the_best_token_is_the_first_of_the_largest_logits(precision: str, num_threads: int, sign: int) -> None:
    config = shape(tied=False)
    weights = random_weights(config, "float32")
    head = weights["output.weight"]
    assert isinstance(head, torch.Tensor)
    head = sign * head.abs()  # below zero what fills the last panel up would win
    head[[40, 96]] = head[5].clone()
    floats = {name: each for name, each in weights.items() if isinstance(each, torch.Tensor)}
    decoder = cpu_decoder(config, at_precision({**floats, "output.weight": head}, precision), "int8", num_threads)
    hidden = torch.randn(70, 48, generator=torch.Generator().manual_seed(0)).abs()
    hidden[3] = head[5] * sign * 50  # where `sign` is 1, tokens 5, 40 and 96 are best alike
    tokens, are_finite = decoder.best(hidden)
    assert tokens == decoder.logits(hidden).argmax(dim=1).tolist()
    assert all(are_finite)
    assert decoder.best(hidden[:0]) == ([], [])


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_the_best_token_of_a_row_that_is_no_number_is_told_to_be_none(precision: str) -> None:
    hidden = torch.ones(4, 48)
    hidden[1, 7], hidden[2, 40] = torch.nan, torch.inf
    _, are_finite = ours(shape(), precision, "int8").decoder.best(hidden)
    assert are_finite == [True, False, False, True]


def test_a_step_of_which_nobody_wants_a_row_writes_the_cache() -> None:
    steps = ours(shape(), "int8", "int8")
    own = steps.sequence(LONG)
    rows = replace(one_span(own, len(LONG) - 1), output_rows=[])
    assert steps.decoder.forward(rows, steps.cache).shape == (0, 48)
    own.num_computed_tokens = len(LONG) - 1
    assert torch.equal(steps.step((own, 1))[0][0], steps.prefill(LONG)[-1])


@pytest.mark.parametrize("kv", KV)
def test_a_block_has_as_many_bytes_as_it_takes_in_the_cache(kv: KvPrecision) -> None:
    config = SHAPES["smollm"]
    steps = ours(config, "int8", kv, block_size=32)
    assert steps.cache.num_blocks == 600
    assert steps.cache.num_bytes == 600 * steps.decoder.block_bytes(32)
    numbers = 32 * config.kv_bytes_per_token(1)
    scales = 32 * config.num_layers * config.num_kv_heads * 2 * 4
    assert steps.decoder.block_bytes(32) == (2 * numbers if kv == "bfloat16" else numbers + scales)


def test_seconds_are_told_by_part_of_the_step() -> None:
    steps = ours(shape(), "int8", "int8")
    decoder = steps.decoder
    assert isinstance(decoder, CpuDecoder)
    assert set(decoder.seconds().values()) == {0.0}
    begin = time.perf_counter()
    steps.prefill(LONG)
    spent = time.perf_counter() - begin
    assert set(decoder.seconds()) == {"products", "attention", "head", "other"}
    assert all(part > 0 for part in decoder.seconds().values())
    assert sum(decoder.seconds().values()) < spent


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (replace(shape(), hidden_size=35), "hidden size is 35, the kernel takes multiples of 16"),
        (shape(head_dim=10), "heads have 10 dimensions, the kernel takes multiples of 16 up to 256"),
        (shape(head_dim=24), "heads have 24 dimensions"),
        (shape(head_dim=264), "heads have 264 dimensions"),
        (shape(head_dim=272), "heads have 272 dimensions"),
    ],
)
def test_a_shape_that_the_kernel_does_not_take_is_refused_by_name(config: ModelConfig, told: str) -> None:
    with pytest.raises(KernelUnavailable, match=told):
        cpu_decoder(config, random_weights(config, "float32"), "int8")


def test_pinned_threads_give_the_same_bits_and_leave_the_caller_where_it_was() -> None:
    config, cpus = shape(), os.sched_getaffinity(0)
    weights = random_weights(config, "int8")
    decoder = CpuDecoder(open_library(), config, weights, "int8", cpus=(min(cpus), max(cpus)))
    assert torch.equal(Stepper(decoder, block_size=BLOCK).prefill(LONG), ours(config, "int8", "int8").prefill(LONG))
    assert os.sched_getaffinity(0) == cpus


def test_threads_that_cannot_be_pinned_are_named() -> None:
    config = shape()
    with pytest.raises(KernelUnavailable, match=r"threads cannot be started: .*CPU 9999"):
        CpuDecoder(open_library(), config, random_weights(config, "int8"), cpus=(9999,))
