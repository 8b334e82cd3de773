"""Keys and values of 8 bits, per token and head: scale = amax / 127, code = round(x * (127 / amax)), halves to even.

A head of zeros has scale and codes 0. With float32 scales a token costs num_kv_heads * (head_dim + 4) bytes a side.

Source: Hooper et al., "KVQuant", 2024, section 3 (per-token quantisation); the same scheme as activations', by head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.quantise import quantise_activations


class QuantisedKv(NamedTuple):
    codes: torch.Tensor  # int8 [num_tokens, num_kv_heads, head_dim]
    scales: torch.Tensor  # float32 [num_tokens, num_kv_heads]


def quantise_kv(new: torch.Tensor) -> QuantisedKv:
    """Reference. Of one side's `new` [num_tokens, num_kv_heads, head_dim], any float type."""
    codes, scales = quantise_activations(new.flatten(0, 1), new.shape[2])
    return QuantisedKv(codes.view(new.shape), scales.view(new.shape[:2]))


def dequantise_kv(quantised: QuantisedKv) -> torch.Tensor:
    """Float32 [num_tokens, num_kv_heads, head_dim]."""
    return quantised.codes.float() * quantised.scales[..., None]
