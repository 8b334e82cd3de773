"""Every architecture, tensor type and kind of rotary scaling that llama.cpp writes, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from core_engine.errors import ModelFileError
from core_engine.llm.decoder import Decoder
from core_engine.llm.model_files import load_model
from kernels.rope import inverse_frequencies
from tests.core_engine.llm.families import LONG, TRAINED, hf_model, logits_of
from tests.core_engine.llm.gguf_files import Change, write_gguf
from tests.core_engine.llm.stepping import Stepper

ATOL = 1e-4
SEEN = 1e-2
WIDE: dict[str, Any] = {  # K-quants come in blocks of 256
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
}


def stepper(path: Path) -> Stepper:
    model = load_model(path, torch.float32)
    return Stepper(Decoder(model.config, model.weights))


def assert_same(path: Path, reference: Any) -> None:
    ours, expected = stepper(path), logits_of(reference, LONG)
    torch.testing.assert_close(ours.prefill(LONG), expected, rtol=0, atol=ATOL)
    torch.testing.assert_close(ours.prefill(LONG, 5), expected, rtol=0, atol=ATOL)
    sequence = ours.sequence(LONG[:30])
    ours.step((sequence, 30))
    decoded = torch.stack([ours.decode(sequence, token) for token in LONG[30:]])
    torch.testing.assert_close(decoded, expected[30:], rtol=0, atol=ATOL)


@pytest.mark.parametrize(
    "case", ["llama", "llama_tied", "llama_wide_heads", "mistral", "qwen2", "qwen2_tied", "qwen3", "qwen3_tied"]
)
def test_every_architecture_gives_transformers_logits(tmp_path: Path, case: str) -> None:
    model = hf_model(case)
    assert_same(write_gguf(tmp_path / "m.gguf", model, change=wide_heads(model)), model)


def wide_heads(model: Any) -> Change:
    """A llama whose heads are not hidden_size / num_heads wide says so."""

    def change(writer: gguf.GGUFWriter) -> None:
        config = model.config
        if config.model_type == "llama" and config.head_dim * config.num_attention_heads != config.hidden_size:
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)

    return change


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K]
)
@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3"])
def test_every_tensor_type_stands_for_its_dequantised_numbers(tmp_path: Path, case: str, kind: Kind) -> None:
    model = hf_model(case, **WIDE, **({"head_dim": 32} if case == "qwen3" else {}))
    before = model.model.layers[0].self_attn.q_proj.weight.clone()
    path = write_gguf(tmp_path / "m.gguf", model, kind)
    assert not torch.equal(before, model.model.layers[0].self_attn.q_proj.weight)
    weights = load_model(path, torch.float32).weights
    assert torch.equal(weights["blk.0.attn_q.weight"], model.model.layers[0].self_attn.q_proj.weight)
    assert torch.equal(weights["blk.0.ffn_down.weight"], model.model.layers[0].mlp.down_proj.weight)
    torch.testing.assert_close(stepper(path).prefill(LONG), logits_of(model, LONG), rtol=1e-5, atol=ATOL)


def linear(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def linear_of_old(writer: gguf.GGUFWriter) -> None:
    writer.add_float32(f"{writer.arch}.rope.scale_linear", 4.0)


def yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(TRAINED)


def no_scaling(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("llama_linear", linear),
        ("llama_linear", linear_of_old),
        ("llama_yarn", yarn),
        ("qwen3_yarn", yarn),
        ("qwen3_linear", linear),
        ("qwen2", no_scaling),
    ],
)
def test_rotary_scaling_is_read(tmp_path: Path, case: str, change: Change) -> None:
    model = hf_model(case)
    assert_same(write_gguf(tmp_path / "m.gguf", model, change=change), model)
    if change is not no_scaling:
        without = stepper(write_gguf(tmp_path / "n.gguf", model)).prefill(LONG)
        assert (without - logits_of(model, LONG)).abs().max() > SEEN


def test_yarn_has_its_dials(tmp_path: Path) -> None:
    def dialled(writer: gguf.GGUFWriter) -> None:
        yarn(writer)
        writer.add_rope_scaling_yarn_beta_fast(1.5)
        writer.add_rope_scaling_yarn_beta_slow(0.25)

    model = hf_model("llama_yarn")
    plain = load_model(write_gguf(tmp_path / "m.gguf", model, change=yarn), torch.float32).config.rope
    rope = load_model(write_gguf(tmp_path / "n.gguf", model, change=dialled), torch.float32).config.rope
    assert (plain.beta_fast, plain.beta_slow) == (32.0, 1.0)
    assert (rope.beta_fast, rope.beta_slow, rope.original_positions) == (1.5, 0.25, TRAINED)


def test_llama3_scaling_lies_in_a_tensor_of_divisors(tmp_path: Path) -> None:
    model = hf_model("llama_llama3")
    factors = inverse_frequencies(8, 500.0) / model.model.rotary_emb.inv_freq
    assert factors.max() > 2
    assert_same(write_gguf(tmp_path / "m.gguf", model, factors=factors), model)


def test_a_sliding_window_is_read(tmp_path: Path) -> None:
    model = hf_model("mistral_window")
    path = write_gguf(tmp_path / "m.gguf", model, change=lambda writer: writer.add_sliding_window(7))
    assert_same(path, model)


def test_queries_of_a_llama_are_turned_back_and_those_of_qwen_are_not(tmp_path: Path) -> None:
    for case, prefix in (("llama", "qwen2"), ("qwen2", "llama")):
        model = hf_model(case)
        path = write_gguf(tmp_path / f"{case}.gguf", model)
        weights = load_model(path, torch.float32).weights
        own = model.model.layers[0].self_attn.q_proj.weight
        stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}["blk.0.attn_q.weight"].data
        assert torch.equal(weights["blk.0.attn_q.weight"], own), prefix
        assert torch.equal(torch.from_numpy(stored.copy()), own) == (case == "qwen2")


def refusals() -> dict[str, Callable[[gguf.GGUFWriter], None]]:
    def uint(key: str, value: int) -> Change:
        return lambda writer: writer.add_uint32(f"llama.{key}", value)

    return {
        r"llama\.expert_count = 8 is not supported": uint("expert_count", 8),
        r"attention\.value_length = 16 is not supported": uint("attention.value_length", 16),
        r"attention\.sliding_window_pattern = .* is not supported": lambda writer: writer.add_array(
            "llama.attention.sliding_window_pattern", [True, False]
        ),
        r"rope\.scaling\.type = 'longrope' is unknown; known are none, linear, yarn": lambda writer: (
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        ),
        r"final_logit_softcapping = 30\.0 is not supported": lambda writer: writer.add_final_logit_softcapping(30.0),
        r"yarn_log_multiplier = .* is not supported": lambda writer: writer.add_rope_scaling_yarn_log_mul(0.1),
        r"tensor blk\.0\.attn_output\.bias is unknown": lambda writer: writer.add_tensor(
            "blk.0.attn_output.bias", torch.zeros(32).numpy()
        ),
        r"tensor rope_freqs\.weight has shape \(3,\), expected \(4,\)": lambda writer: writer.add_tensor(
            "rope_freqs.weight", torch.ones(3).numpy()
        ),
    }


@pytest.mark.parametrize("says", refusals())
def test_what_would_be_computed_wrongly_is_refused_by_name(tmp_path: Path, says: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", hf_model("llama"), change=refusals()[says])
    with pytest.raises(ModelFileError, match=says):
        load_model(path, torch.float32)


def test_a_half_rotated_head_is_refused(tmp_path: Path) -> None:
    model = hf_model("qwen2")
    path = write_gguf(tmp_path / "m.gguf", model, change=lambda writer: writer.add_rope_dimension_count(4))
    with pytest.raises(ModelFileError, match=r"qwen2\.rope\.dimension_count = 4 is not supported.*width is 8"):
        load_model(path, torch.float32)


def test_layers_with_heads_of_their_own_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", hf_model("qwen2"), head_count_kv=[2, 2])
    with pytest.raises(ModelFileError, match=r"head_count_kv = \[2, 2\], expected a whole number, the same for all"):
        load_model(path, torch.float32)


@pytest.mark.parametrize(("case", "name"), [("qwen2", "blk.1.attn_q.bias"), ("qwen3", "blk.0.attn_k_norm.weight")])
def test_a_missing_bias_or_norm_is_named(tmp_path: Path, case: str, name: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", hf_model(case), without=name)
    with pytest.raises(ModelFileError, match=f"tensor {name} is missing"):
        load_model(path, torch.float32)
