"""Gated activation: silu(gate) * up, with gate and up side by side in one tensor."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Reference. `gate_up` [num_tokens, 2 * intermediate], gate first; returns [num_tokens, intermediate].

    Source: Shazeer, "GLU Variants Improve Transformer", 2020, SwiGLU.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
