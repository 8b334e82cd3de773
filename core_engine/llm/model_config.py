"""The shape of a Llama-family decoder. Plain numbers: the runner, the KV sizing and the loaders share it."""

from __future__ import annotations

from dataclasses import dataclass


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

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Keys and values of all layers for one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_element
