"""Rotary position embedding, half-rotation layout (the first and the second half of a head form the pairs)."""

from __future__ import annotations

import torch


def inverse_frequencies(head_dim: int, theta: float) -> torch.Tensor:
    """Radians per position of each pair, float32 [head_dim / 2].

    Source: Su et al., "RoFormer", 2021, section 3.2.2.
    """
    return 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))


def rotations(positions: torch.Tensor, inverse: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines times `scale`, float32, each [num_positions, head_dim / 2].

    `positions` [num_positions] int64; `inverse` [head_dim / 2], or a row for each position.
    """
    angles = positions.float().unsqueeze(1) * inverse
    return angles.cos() * scale, angles.sin() * scale


def rope_table(head_dim: int, max_positions: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of positions 0 to `max_positions`, float32, each [max_positions, head_dim / 2]."""
    return rotations(torch.arange(max_positions), inverse_frequencies(head_dim, theta))


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Reference. `x` [num_tokens, num_heads, head_dim]; `cos`, `sin` [num_tokens, head_dim / 2] at their positions.

    Returns a new tensor of x's shape and dtype; `cos` and `sin` are used in x's dtype, as transformers' Llama does.
    """
    cos = cos.to(x.dtype).unsqueeze(1)  # [num_tokens, 1, head_dim / 2]
    sin = sin.to(x.dtype).unsqueeze(1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
