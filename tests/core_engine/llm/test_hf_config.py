"""config.json: what is read, what is refused by name, and that nothing that changes a logit is passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core_engine.errors import ModelFileError
from core_engine.llm.hf_config import eos_token_ids, read_hf_config
from core_engine.llm.model_config import RopeScaling
from tests.core_engine.llm.families import CASES, CLASSES, SIZES

BASE: dict[str, Any] = {"model_type": "llama", **SIZES}


def written(folder: Path, **changes: Any) -> Path:
    """A folder whose config.json is the base's with `changes`; a key that is ... is left out."""
    config = {key: value for key, value in (BASE | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_llama_of_few_words_has_transformers_defaults(tmp_path: Path) -> None:
    config = read_hf_config(written(tmp_path, num_key_value_heads=...))
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 8, 10_000.0)
    assert (config.tie_embeddings, config.qkv_bias, config.qk_norm, config.sliding_window) == (
        False,
        False,
        False,
        None,
    )
    assert config.rope == RopeScaling()


@pytest.mark.parametrize("case", CASES)
def test_sizes_are_those_of_transformers_own_reading(tmp_path: Path, case: str) -> None:
    kind, options = CASES[case]
    theirs = CLASSES[kind][0](**{**SIZES, **options})
    theirs.save_pretrained(tmp_path)
    ours = read_hf_config(tmp_path)
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.rope.type == theirs.rope_parameters["rope_type"]


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="'mamba' is unknown; known are llama, mistral, qwen2, qwen3"):
        read_hf_config(written(tmp_path, model_type="mamba"))
    with pytest.raises(ModelFileError, match="architecture None is unknown"):
        read_hf_config(written(tmp_path, model_type=...))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", True),
        ("mlp_bias", True),
        ("hidden_act", "gelu"),
        ("quantization_config", {"quant_method": "gptq"}),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("num_experts", 8),
        ("num_local_experts", 8),
        ("no_rope_layers", [1, 0]),
        ("partial_rotary_factor", 0.5),
        ("sliding_window", 16),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ModelFileError, match=rf"config\.json: {key} = .*not supported"):
        read_hf_config(written(tmp_path, **{key: value}))


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": ["linear_attention", "linear_attention"]},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ],
)
def test_layers_that_differ_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="layer_types of several kinds are not supported"):
        read_hf_config(written(tmp_path, model_type="qwen2", **changes))


def test_a_window_that_is_switched_off_is_none(tmp_path: Path) -> None:
    assert read_hf_config(written(tmp_path, model_type="qwen2", sliding_window=8)).sliding_window is None
    full = ["full_attention"] * 2
    on = {"use_sliding_window": True, "sliding_window": 8}
    assert read_hf_config(written(tmp_path, model_type="qwen2", layer_types=full, **on)).sliding_window is None
    assert read_hf_config(written(tmp_path, model_type="mistral", sliding_window=None)).sliding_window is None
    assert read_hf_config(written(tmp_path, model_type="mistral")).sliding_window == 4096


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", ...),
        ("hidden_size", "32"),
        ("vocab_size", None),
        ("num_attention_heads", 4.0),
        ("intermediate_size", True),
        ("rms_norm_eps", ...),
        ("rms_norm_eps", "small"),
        ("max_position_embeddings", ...),
    ],
)
def test_a_key_that_is_missing_or_of_another_type_is_named(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ModelFileError, match=rf"config\.json: {key} = .*expected"):
        read_hf_config(written(tmp_path, **{key: value}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_key_value_heads": 3}, "num_heads = 4 is no multiple of num_kv_heads = 3"),
        ({"num_attention_heads": 0}, "num_heads = 0, expected at least 1"),
        ({"num_hidden_layers": -2}, "num_layers = -2, expected at least 1"),
        ({"head_dim": 7}, "head_dim = 7 is odd"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps = 0.0, expected a positive number"),
    ],
)
def test_a_shape_that_cannot_be_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        read_hf_config(written(tmp_path, **changes))


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        (
            {"rope_type": "longrope"},
            "rope_type 'longrope' is unknown; known are default, linear, dynamic, llama3, yarn",
        ),
        ({"rope_type": "linear"}, "key 'factor' is missing for rope_type 'linear'"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0}, "key 'beta_fast' is unknown for rope_type 'linear'"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0}, "key 'high_freq_factor' is missing"),
        ({"rope_type": "yarn", "factor": "2"}, "factor = '2', expected a positive number"),
        ({"rope_type": "linear", "factor": -1.0}, "factor = -1.0, expected a positive number"),
        ({"full_attention": {"rope_type": "default"}}, "key 'full_attention' is unknown"),
    ],
)
@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_rotary_scaling_that_is_not_known_whole_is_refused(
    tmp_path: Path, name: str, rope: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelFileError, match=says):
        read_hf_config(written(tmp_path, **{name: rope}))


def test_the_older_form_of_rotary_scaling_means_the_same(tmp_path: Path) -> None:
    new = written(tmp_path, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0})
    expected = read_hf_config(new)
    old = written(tmp_path, rope_scaling={"type": "linear", "factor": 2.0}, rope_theta=500.0)
    assert read_hf_config(old) == expected
    assert expected.rope == RopeScaling("linear", 2.0, original_positions=64)


def test_dynamic_scaling_allows_as_many_positions_as_its_factor_makes(tmp_path: Path) -> None:
    config = read_hf_config(written(tmp_path, rope_parameters={"rope_type": "dynamic", "factor": 2.5}))
    assert (config.max_positions, config.rope.original_positions) == (160, 64)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_broken_config_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        read_hf_config(tmp_path)


def test_ends_come_from_the_generation_settings_first(tmp_path: Path) -> None:
    written(tmp_path, eos_token_id=5)
    assert eos_token_ids(tmp_path) == {5}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert eos_token_ids(tmp_path) == {7, 9}
    (tmp_path / "generation_config.json").write_text("{}")
    assert eos_token_ids(tmp_path) == {5}
    assert eos_token_ids(written(tmp_path)) == frozenset()
    with pytest.raises(ModelFileError, match="eos_token_id = 'end', expected token ids"):
        eos_token_ids(written(tmp_path, eos_token_id="end"))
