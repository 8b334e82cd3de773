"""The Llama-family decoder: RMSNorm, RoPE, grouped-query attention over the paged cache, SwiGLU, tied or own head.

Plain functions of kernels over stacked weights; no module state beyond them. What a step looks like (which rows are
decode, which are chunks, where their KV lies) comes in as an argument, `StepInput`, built by `runner`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from core_engine.llm.model_config import ModelConfig
from kernels.paged_attention import decode_attention, prefill_attention, write_kv
from kernels.rms_norm import rms_norm
from kernels.rope import rope, rope_table
from kernels.silu_mul import silu_mul


@dataclass(frozen=True, slots=True)
class Chunk:
    """One prefill chunk: its rows in the step, [start, end), the slots of its whole context, and its causal bias."""

    start: int
    end: int
    slots: torch.Tensor  # [context]
    bias: torch.Tensor  # [end - start, context]


@dataclass(frozen=True, slots=True)
class StepInput:
    """One step's tensors. Decode rows come first, prefill chunks after them."""

    token_ids: torch.Tensor  # [num_tokens]
    positions: torch.Tensor  # [num_tokens]
    new_slots: torch.Tensor  # [num_tokens], where each token's K and V go
    num_decode: int
    decode_slots: torch.Tensor  # [num_decode, max_context]
    decode_bias: torch.Tensor  # [num_decode, 1, 1, max_context]
    chunks: tuple[Chunk, ...]
    output_rows: torch.Tensor  # [num_outputs], rows whose hidden state is wanted


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: torch.Tensor  # [hidden]
    qkv: torch.Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]
    attn_out: torch.Tensor  # [hidden, num_heads * head_dim]
    ffn_norm: torch.Tensor  # [hidden]
    gate_up: torch.Tensor  # [2 * intermediate, hidden]
    down: torch.Tensor  # [hidden, intermediate]


def _nothing() -> None:
    """Nobody waits between layers."""


class Decoder:
    """Weights of one model, and `forward` over one step. Holds no cache and knows no sequence."""

    def __init__(self, config: ModelConfig, weights: dict[str, torch.Tensor]) -> None:
        self.config = config
        self.embedding = weights["token_embd.weight"]
        self.head = weights.get("output.weight", self.embedding)
        self.norm = weights["output_norm.weight"]
        self.layers = [_layer(weights, index) for index in range(config.num_layers)]
        self.cos, self.sin = rope_table(config.head_dim, config.max_positions, config.rope_theta)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def forward(self, step: StepInput, cache: torch.Tensor, between: Callable[[], None] = _nothing) -> torch.Tensor:
        """Final hidden states [num_outputs, hidden]; writes the step's K and V into `cache` in place.

        `cache` is [num_layers, 2, num_slots, num_kv_heads, head_dim] in the weights' dtype. `between` is called after
        each layer: what cannot wait for a whole step is done there.
        """
        hidden = F.embedding(step.token_ids, self.embedding)
        cos, sin = self.cos[step.positions], self.sin[step.positions]
        for index, layer in enumerate(self.layers):
            normed = rms_norm(hidden, layer.attn_norm, self.config.rms_norm_eps)
            hidden = hidden + self._attention(layer, normed, step, cos, sin, cache[index])
            normed = rms_norm(hidden, layer.ffn_norm, self.config.rms_norm_eps)
            hidden = hidden + F.linear(silu_mul(F.linear(normed, layer.gate_up)), layer.down)
            between()
        return rms_norm(hidden[step.output_rows], self.norm, self.config.rms_norm_eps)

    def logits(self, hidden: torch.Tensor, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 [num_rows, vocab] of final hidden states [num_rows, hidden]; with `token_ids` only those columns."""
        head = self.head if token_ids is None else self.head[token_ids]
        return F.linear(hidden, head).float()

    def _attention(
        self,
        layer: Layer,
        hidden: torch.Tensor,
        step: StepInput,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: torch.Tensor,
    ) -> torch.Tensor:
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        qkv = F.linear(hidden, layer.qkv).view(-1, heads + 2 * kv_heads, dim)
        # queries and keys turn together: one call instead of two
        rotated = rope(qkv[:, : heads + kv_heads], cos, sin)
        query, key, value = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        write_kv(cache[0], key, step.new_slots)
        write_kv(cache[1], value, step.new_slots)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        if step.num_decode:
            rows = query[: step.num_decode].contiguous()
            out[: step.num_decode] = decode_attention(rows, cache[0], cache[1], step.decode_slots, step.decode_bias)
        for chunk in step.chunks:
            rows = query[chunk.start : chunk.end].contiguous()
            out[chunk.start : chunk.end] = prefill_attention(rows, cache[0], cache[1], chunk.slots, chunk.bias)
        return F.linear(out.view(-1, heads * dim), layer.attn_out)


def _layer(weights: dict[str, torch.Tensor], index: int) -> Layer:
    def get(name: str) -> torch.Tensor:
        return weights.pop(f"blk.{index}.{name}.weight")

    return Layer(
        attn_norm=get("attn_norm"),
        qkv=torch.cat((get("attn_q"), get("attn_k"), get("attn_v"))),
        attn_out=get("attn_output"),
        ffn_norm=get("ffn_norm"),
        gate_up=torch.cat((get("ffn_gate"), get("ffn_up"))),
        down=get("ffn_down"),
    )
