"""The shape of a Llama-family decoder, whatever file it came from. Plain numbers: the runner, the KV sizing and the
loaders share it. Weights go by the names that llama.cpp gave them; `expected_shapes` lists them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]
ROPE_TYPES: tuple[str, ...] = get_args(RopeType)
LAYER_LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are changed for contexts beyond the trained one; the formulas are in `rope_scaling`."""

    type: RopeType = "default"
    factor: float = 1.0
    original_positions: int = 0  # the trained context: dynamic, llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # cosines and sines are multiplied by it


@dataclass(frozen=True, slots=True)
class ModelConfig:
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rope_theta: float
    rms_norm_eps: float
    tie_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False  # RMSNorm of every query and key head before the rotation
    sliding_window: int | None = None  # a token sees so many tokens at most, itself included
    rope: RopeScaling = RopeScaling()
    has_rope_factors: bool = False  # the file has a divisor for each rotary frequency, as llama.cpp writes llama3

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Keys and values of all layers for one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element

    def faults(self) -> list[str]:
        """What cannot be right about these numbers, a phrase each; empty for a sound shape."""
        sizes = {name: getattr(self, name) for name in self.__slots__ if isinstance(getattr(self, name), int)}
        counts = {name: size for name, size in sizes.items() if not isinstance(size, bool)}
        faults = [f"{name} = {size}, expected at least 1" for name, size in counts.items() if size < 1]
        if self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads:
            faults.append(f"num_heads = {self.num_heads} is no multiple of num_kv_heads = {self.num_kv_heads}")
        if self.head_dim % 2:
            faults.append(f"head_dim = {self.head_dim} is odd, rotary pairs need an even one")
        for name, number in (("rope_theta", self.rope_theta), ("rms_norm_eps", self.rms_norm_eps)):
            if not (number > 0 and math.isfinite(number)):
                faults.append(f"{name} = {number}, expected a positive number")
        return faults


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """Source: Peng et al., "YaRN", 2023, eq. 22; the two-sided form is DeepSeek-V3's."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    return scale(mscale) / scale(mscale_all_dim) if mscale and mscale_all_dim else scale(1.0)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of every weight that a model of this shape has."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        shapes["output.weight"] = (config.vocab_size, hidden)
    if config.has_rope_factors:
        shapes["rope_freqs.weight"] = (config.head_dim // 2,)
    layer = _layer_shapes(config)
    for index in range(config.num_layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def is_layer_linear(name: str) -> bool:
    """Whether a weight multiplies a layer's activations: quantised weights are these, and the LM head."""
    part = name.removesuffix(".weight").rpartition(".")[2]
    return name.startswith("blk.") and name.endswith(".weight") and part in LAYER_LINEARS


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    query, kv = config.num_heads * dim, config.num_kv_heads * dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (query, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, query),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (inner, hidden),
        "ffn_up.weight": (inner, hidden),
        "ffn_down.weight": (hidden, inner),
    }
    if config.qkv_bias:
        shapes |= {"attn_q.bias": (query,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if config.qk_norm:
        shapes |= {"attn_q_norm.weight": (dim,), "attn_k_norm.weight": (dim,)}
    return shapes
