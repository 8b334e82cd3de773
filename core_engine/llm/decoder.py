"""The Llama family's decoder: RMSNorm, RoPE, grouped-query attention over the paged cache, SwiGLU, tied or own head.

One code for Llama, SmolLM2, Mistral, Qwen2 and Qwen3: a bias or a norm that a model lacks is None. Plain functions of
kernels over stacked weights; no module state beyond them. What a step looks like (which rows are decode, which are
chunks, where their KV lies) comes in as an argument; `step_input` makes tensors of it, and a sliding window is in
their slots and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch.nn import functional as F

from core_engine.llm.kv_cache import KvCache
from core_engine.llm.model_config import ModelConfig
from core_engine.llm.rope_scaling import dynamic_frequencies, scaled_frequencies
from core_engine.llm.step_input import StepInput, step_input
from core_engine.llm.step_rows import StepRows
from kernels.kv_quantise import dequantise_kv, quantise_kv
from kernels.linear import Weight, linear, rows_of, stacked
from kernels.paged_attention import decode_attention, prefill_attention, write_kv
from kernels.rms_norm import rms_norm
from kernels.rope import rope, rotations
from kernels.silu_mul import silu_mul

KvPrecision = Literal["bfloat16", "int8"]


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: torch.Tensor  # [hidden]
    qkv: Weight  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]
    qkv_bias: torch.Tensor | None  # [(num_heads + 2 * num_kv_heads) * head_dim]
    qk_norm: torch.Tensor | None  # [num_heads + num_kv_heads, head_dim]
    attn_out: Weight  # [hidden, num_heads * head_dim]
    ffn_norm: torch.Tensor  # [hidden]
    gate_up: Weight  # [2 * intermediate, hidden]
    down: Weight  # [hidden, intermediate]


class Projected(NamedTuple):
    """Of a step's rows, queries and keys turned to their positions."""

    query: torch.Tensor  # [num_tokens, num_heads, head_dim]
    key: torch.Tensor  # [num_tokens, num_kv_heads, head_dim]
    value: torch.Tensor  # [num_tokens, num_kv_heads, head_dim]


def _nothing() -> None:
    """Nobody waits between layers."""


class Decoder:
    """Weights of one model, and `forward` over one step. Holds no cache and knows no sequence."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Weight], kv: KvPrecision | None = None) -> None:
        """`weights` are those of `expected_shapes`: all of one dtype, or those of a quantised model.

        `kv`: what the cache holds of keys and values is rounded to it; None: they are as computed. It is kept in
        `dtype` all the same: this is where the numbers of a smaller cache can be had without its kernel.
        """
        self.config, self.kv = config, kv
        self.embedding = plain(weights, "token_embd.weight")
        self.head = weights.get("output.weight", self.embedding)
        self.norm = plain(weights, "output_norm.weight")
        self.layers = [layer_of(config, weights, index) for index in range(config.num_layers)]
        self.cos, self.sin = rotation_table(config, weights)

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: the weights' own, float32 where they are quantised."""
        return self.norm.dtype

    def block_bytes(self, block_size: int) -> int:
        """Keys and values of one block in all layers."""
        return block_size * self.config.kv_bytes_per_token(self.dtype.itemsize)

    def new_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """Room for the keys and values of so many blocks, in the weights' dtype."""
        config = self.config
        shape = (config.num_layers, 2, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        # zeros, not empty: a padding slot that held NaN would survive the mask (NaN * 0)
        return KvCache(torch.zeros(shape, dtype=self.dtype), block_dim=2, block_size=block_size)

    def forward(self, rows: StepRows, cache: KvCache, between: Callable[[], None] = _nothing) -> torch.Tensor:
        """Final hidden states [num_outputs, hidden]; writes the step's K and V into `cache` in place.

        `between` is called after each layer: what cannot wait for a whole step is done there.
        """
        return self.run_layers(self.step_input(rows, cache.block_size), cache, between)

    def step_input(self, rows: StepRows, block_size: int) -> StepInput:
        return step_input(rows, self.config, block_size, self.dtype)

    def run_layers(self, step: StepInput, cache: KvCache, between: Callable[[], None]) -> torch.Tensor:
        hidden = F.embedding(step.token_ids, self.embedding).to(self.dtype)
        cos, sin = self.rotations(step)
        for layer, (keys, values) in zip(self.layers, cache.tensor.flatten(2, 3), strict=True):
            rows = self.project(layer, hidden, cos, sin)
            write_kv(keys, self.as_kept(rows.key), step.new_slots)
            write_kv(values, self.as_kept(rows.value), step.new_slots)
            attended = self.attend(rows.query, keys, values, step)
            hidden = self.finish(layer, hidden, attended)
            between()
        return self.normed(hidden[step.output_rows])

    def logits(self, hidden: torch.Tensor, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 [num_rows, vocab] of final hidden states [num_rows, hidden]; with `token_ids` only those columns."""
        head = self.head if token_ids is None else rows_of(self.head, token_ids)
        return linear(hidden, head).float()

    def best(self, hidden: torch.Tensor) -> tuple[list[int], list[bool]]:
        """The token of each row's largest logit (of equal ones the first), and whether that is a finite number."""
        largest, tokens = self.logits(hidden).max(dim=-1)  # NaN and +inf win, -inf only where nothing is left
        return tokens.tolist(), largest.isfinite().tolist()

    def rotations(self, step: StepInput) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of the step's tokens, each [num_tokens, head_dim / 2] in the weights' dtype."""
        if step.rope_lengths is None:
            cos, sin = self.cos[step.positions], self.sin[step.positions]
        else:
            cos, sin = rotations(step.positions, dynamic_frequencies(self.config, step.rope_lengths))
        return cos.to(self.dtype), sin.to(self.dtype)

    def project(self, layer: Layer, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Projected:
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        normed = rms_norm(hidden, layer.attn_norm, self.config.rms_norm_eps)
        qkv = linear(normed, layer.qkv, layer.qkv_bias).view(len(hidden), heads + 2 * kv_heads, -1)
        # queries and keys are normed and turn together: one call instead of two
        query_key = qkv[:, : heads + kv_heads]
        if layer.qk_norm is not None:
            query_key = rms_norm(query_key, layer.qk_norm, self.config.rms_norm_eps)
        rotated = rope(query_key, cos, sin)
        return Projected(rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :])

    def as_kept(self, rows: torch.Tensor) -> torch.Tensor:
        """Keys or values [num_tokens, num_kv_heads, head_dim] as the cache gives them back."""
        match self.kv:
            case None:
                return rows
            case "bfloat16":
                return rows.bfloat16().to(self.dtype)
            case "int8":
                return dequantise_kv(quantise_kv(rows)).to(self.dtype)

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: StepInput) -> torch.Tensor:
        """[num_tokens, num_heads, head_dim]; `keys` and `values` are one layer's cache, the step's own in it."""
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        if step.num_decode:
            rows = query[: step.num_decode].contiguous()
            out[: step.num_decode] = decode_attention(rows, keys, values, step.decode_slots, step.decode_bias)
        for chunk in step.chunks:
            rows = query[chunk.start : chunk.end].contiguous()
            out[chunk.start : chunk.end] = prefill_attention(rows, keys, values, chunk.slots, chunk.bias)
        return out

    def finish(self, layer: Layer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """What leaves the layer, [num_tokens, hidden]: attention's output and the gated MLP, each added to the rest."""
        hidden = hidden + linear(attended.flatten(1), layer.attn_out)
        normed = rms_norm(hidden, layer.ffn_norm, self.config.rms_norm_eps)
        return hidden + linear(self.activate(linear(normed, layer.gate_up)), layer.down)

    def activate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_mul(gate_up)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, self.norm, self.config.rms_norm_eps)


def layer_of(config: ModelConfig, weights: Mapping[str, Weight], index: int) -> Layer:
    def get(name: str) -> torch.Tensor:
        return plain(weights, f"blk.{index}.{name}")

    def together(*names: str) -> Weight:
        return stacked(*(weights[f"blk.{index}.{name}"] for name in names))

    def qk_norm() -> torch.Tensor:
        query, key = get("attn_q_norm.weight"), get("attn_k_norm.weight")
        return torch.cat((query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)))

    return Layer(
        attn_norm=get("attn_norm.weight"),
        qkv=together("attn_q.weight", "attn_k.weight", "attn_v.weight"),
        qkv_bias=torch.cat([get(f"attn_{each}.bias") for each in "qkv"]) if config.qkv_bias else None,
        qk_norm=qk_norm() if config.qk_norm else None,
        attn_out=weights[f"blk.{index}.attn_output.weight"],
        ffn_norm=get("ffn_norm.weight"),
        gate_up=together("ffn_gate.weight", "ffn_up.weight"),
        down=weights[f"blk.{index}.ffn_down.weight"],
    )


def plain(weights: Mapping[str, Weight], name: str) -> torch.Tensor:
    """A weight that is never quantised: a norm, a bias, the embedding."""
    weight = weights[name]
    assert isinstance(weight, torch.Tensor), f"{name} is quantised"
    return weight


def rotation_table(config: ModelConfig, weights: Mapping[str, Weight]) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every position, float32, each [max_positions, head_dim / 2]."""
    inverse = scaled_frequencies(config)
    if config.has_rope_factors:
        inverse = inverse / plain(weights, "rope_freqs.weight").float()
    return rotations(torch.arange(config.max_positions), inverse, config.rope.attention_factor)
