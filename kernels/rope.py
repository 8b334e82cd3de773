"""Rotary position embedding, half-rotation layout (the first and the second half of a head form the pairs)."""

from __future__ import annotations

import torch


def rope_table(head_dim: int, max_positions: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, float32, each [max_positions, head_dim / 2].

    Source: Su et al., "RoFormer", 2021, section 3.2.2.
    """
    inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    angles = torch.outer(torch.arange(max_positions, dtype=torch.int64).float(), inverse)
    return angles.cos(), angles.sin()


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Reference. `x` [num_tokens, num_heads, head_dim]; `cos`, `sin` [num_tokens, head_dim / 2] at their positions.

    Returns a new tensor of x's shape and dtype; `cos` and `sin` are used in x's dtype, as transformers' Llama does.
    """
    cos = cos.to(x.dtype).unsqueeze(1)  # [num_tokens, 1, head_dim / 2]
    sin = sin.to(x.dtype).unsqueeze(1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
