"""Every architecture and every kind of rotary scaling: saved by transformers, read by us, the same logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from core_engine.llm.decoder import Decoder
from core_engine.llm.model_config import RopeScaling
from core_engine.llm.model_files import LoadedModel, load_model
from tests.core_engine.llm.families import CASES, LONG, continued, hf_model, logits_of, save
from tests.core_engine.llm.stepping import Stepper

ATOL = 1e-4
SEEN = 1e-2  # what a wrong variant must at least turn over
BLOCK = 4


@dataclass(frozen=True)
class Saved:
    """transformers' model, the folder that it was saved to, and its logits of `LONG` as a whole."""

    model: Any
    folder: Path
    logits: torch.Tensor


Find = Callable[[str], Saved]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Find:
    """By case; each is made once."""
    made: dict[str, Saved] = {}

    def find(case: str) -> Saved:
        if case not in made:
            model = hf_model(case)
            made[case] = Saved(model, save(model, tmp_path_factory.mktemp(case)), logits_of(model, LONG))
        return made[case]

    return find


def stepper(folder: Path, **changes: Any) -> Stepper:
    model = load_model(folder, torch.float32)
    return Stepper(Decoder(replace(model.config, **changes), model.weights), block_size=BLOCK)


@pytest.mark.parametrize("case", CASES)
def test_a_whole_prefill_gives_transformers_logits_at_every_position(saved: Find, case: str) -> None:
    found = saved(case)
    torch.testing.assert_close(stepper(found.folder).prefill(LONG), found.logits, rtol=0, atol=ATOL)


@pytest.mark.parametrize("chunk", [1, 3, BLOCK, BLOCK + 1, 32])
@pytest.mark.parametrize("case", CASES)
def test_a_prefill_in_chunks_gives_transformers_logits_of_the_whole(saved: Find, case: str, chunk: int) -> None:
    found = saved(case)
    torch.testing.assert_close(stepper(found.folder).prefill(LONG, chunk), found.logits, rtol=0, atol=ATOL)


@pytest.mark.parametrize("case", CASES)
def test_decode_steps_give_transformers_logits_alone_and_among_neighbours(saved: Find, case: str) -> None:
    found = saved(case)
    ours = stepper(found.folder)
    running = [ours.sequence(LONG[:n]) for n in (1, 5, 14, 23)]  # 14: crosses the trained context while it decodes
    for sequence in running:
        ours.step((sequence, sequence.num_prompt_tokens))
    rows: list[list[torch.Tensor]] = [[] for _ in running]
    late = ours.sequence(LONG)
    for token in LONG[:6]:
        for sequence in running:
            sequence.token_ids.append(token)
        for row, logits in zip(rows, ours.step(*((s, 1) for s in running), (late, 5)), strict=False):
            row.append(logits[0])
    for sequence, row in zip(running, rows, strict=True):
        prompt = LONG[: sequence.num_prompt_tokens]
        if "dynamic" in case:  # a whole prefill of the lot would have another length from its first token on
            expected = continued(found.model, prompt, LONG[:6])
        else:
            expected = logits_of(found.model, prompt + LONG[:6])[len(prompt) :]
        torch.testing.assert_close(torch.stack(row), expected, rtol=0, atol=ATOL)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("mistral_window", {"sliding_window": 8}),
    ("mistral_window", {"sliding_window": 6}),
    ("mistral_window", {"sliding_window": None}),
    ("qwen3_window", {"sliding_window": 10}),
    ("qwen2_idle_window", {"sliding_window": 6}),
    *(
        (case, {"rope": RopeScaling()})
        for case in CASES
        if case.startswith("llama_") and "rope_parameters" in CASES[case][1]
    ),
    ("llama", {"rope_theta": 20_000.0}),
    ("llama", {"rms_norm_eps": 1.0}),
]


@pytest.mark.parametrize(("case", "changes"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_shape_would_be_seen(saved: Find, case: str, changes: dict[str, Any]) -> None:
    found = saved(case)
    wrong = stepper(found.folder, **changes).prefill(LONG, 5) - found.logits
    assert wrong.abs().max() > SEEN


@pytest.mark.parametrize("field", ["factor", "original_positions", "low_freq_factor", "high_freq_factor"])
def test_a_wrong_dial_of_llama3_would_be_seen(saved: Find, field: str) -> None:
    assert_dial_is_seen(saved("llama_llama3"), field)


@pytest.mark.parametrize("field", ["factor", "original_positions", "beta_fast", "beta_slow", "attention_factor"])
def test_a_wrong_dial_of_yarn_would_be_seen(saved: Find, field: str) -> None:
    assert_dial_is_seen(saved("llama_yarn_dialled"), field)


def assert_dial_is_seen(found: Saved, field: str) -> None:
    rope = load_model(found.folder, torch.float32).config.rope
    wrong = stepper(found.folder, rope=replace(rope, **{field: getattr(rope, field) * 2})).prefill(LONG)
    assert (wrong - found.logits).abs().max() > SEEN


@pytest.mark.parametrize(("case", "part"), [("qwen2", "qkv_bias"), ("qwen3", "qk_norm"), ("qwen3_tied", "qk_norm")])
def test_a_part_left_out_would_be_seen(saved: Find, case: str, part: str) -> None:
    found = saved(case)
    ours = stepper(found.folder)
    without: dict[str, Any] = {part: None}
    assert isinstance(ours.decoder, Decoder)
    ours.decoder.layers = [replace(layer, **without) for layer in ours.decoder.layers]
    assert (ours.prefill(LONG) - found.logits).abs().max() > SEEN


def test_norms_of_queries_and_keys_are_not_exchanged(saved: Find) -> None:
    found = saved("qwen3")
    model: LoadedModel = load_model(found.folder, torch.float32)
    for layer in range(model.config.num_layers):
        names = [f"blk.{layer}.attn_{part}_norm.weight" for part in "qk"]
        model.weights[names[0]], model.weights[names[1]] = model.weights[names[1]], model.weights[names[0]]
    exchanged = Stepper(Decoder(model.config, model.weights), block_size=BLOCK).prefill(LONG)
    assert (exchanged - found.logits).abs().max() > SEEN


def test_a_dynamic_length_is_the_prompt_s_and_does_not_hang_on_chunks_or_neighbours(
    saved: Find,
) -> None:
    found = saved("llama_dynamic")
    ours = stepper(found.folder)
    alone, short = ours.prefill(LONG, 4), ours.prefill(LONG[:20], 4)
    long, brief = ours.sequence(LONG), ours.sequence(LONG[:20])
    beside = [ours.step((long, 10), (brief, 5)) for _ in range(4)]
    torch.testing.assert_close(torch.cat([rows[0] for rows in beside]), alone, rtol=0, atol=ATOL)
    torch.testing.assert_close(torch.cat([rows[1] for rows in beside]), short, rtol=0, atol=ATOL)
    assert (alone[:20] - short).abs().max() > SEEN  # another prompt length, other frequencies


def test_bfloat16_weights_compute_in_bfloat16_close_to_float32(saved: Find) -> None:
    for case in ("llama", "qwen2_window", "qwen3_yarn"):
        found = saved(case)
        model = load_model(found.folder, torch.bfloat16)
        ours = Stepper(Decoder(model.config, model.weights)).prefill(LONG, 7)
        expected = found.logits
        assert ours.dtype == torch.float32
        assert float((ours - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()) < 0.05
