"""Tiny random models of every architecture, made by transformers, for our reading and computing to be held against."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
TRAINED = 16  # positions that rotary scaling starts from
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
ROPE: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED},
    "yarn_dialled": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": TRAINED,
        "beta_fast": 1.5,
        "beta_slow": 0.25,
        "attention_factor": 1.3,
        "truncate": False,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": TRAINED,
        "mscale": 0.7,
        "mscale_all_dim": 1.4,
    },
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_wide_heads": ("llama", {"head_dim": 16, "num_key_value_heads": 1}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral_window": ("mistral", {"sliding_window": 7}),
    "mistral_window_of_one": ("mistral", {"sliding_window": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2_tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_window": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}),
    "qwen2_idle_window": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "qwen3_tied": ("qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3_window": (
        "qwen3",
        {"head_dim": 12, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
    ),
    **{f"llama_{kind}": ("llama", {"rope_parameters": {"rope_theta": 500.0, **rope}}) for kind, rope in ROPE.items()},
    **{
        f"qwen3_{kind}": ("qwen3", {"head_dim": 12, "rope_parameters": {"rope_theta": 900.0, **ROPE[kind]}})
        for kind in ROPE
    },
}
LONG = torch.randint(0, SIZES["vocab_size"], (40,), generator=torch.Generator().manual_seed(7)).tolist()


def hf_model(case: str, **changes: Any) -> Any:
    """The model of a case, float32, every parameter random and large enough to be seen in the logits."""
    kind, options = CASES[case]
    options = SIZES | options | changes
    if "dynamic" in case:
        options["max_position_embeddings"] = TRAINED
    config_class, model_class = CLASSES[kind]
    model = model_class(config_class(**copy.deepcopy(options))).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.3 * noise)
    return model


def logits_of(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[num_tokens, vocab] of a whole prefill by a model that has seen nothing: dynamic RoPE remembers lengths."""
    with torch.inference_mode():
        logits: torch.Tensor = copy.deepcopy(model)(torch.tensor([ids])).logits[0]
    return logits


def continued(model: Any, prompt: Sequence[int], then: Sequence[int]) -> torch.Tensor:
    """[len(then), vocab]: the logits of further tokens, one at a time on transformers' own cache."""
    model, cache, rows = copy.deepcopy(model), DynamicCache(config=model.config), []
    with torch.inference_mode():
        model(torch.tensor([prompt]), cache=cache, use_cache=True)
        for token in then:
            out = model(torch.tensor([[token]]), cache=cache, use_cache=True)
            rows.append(out.logits[0, -1])
    return torch.stack(rows)


def save(model: Any, folder: Path, shard_bytes: int | None = None) -> Path:
    """As `save_pretrained` writes it, in one file or in shards."""
    model.save_pretrained(folder, max_shard_size=shard_bytes or "1GB")
    return folder
